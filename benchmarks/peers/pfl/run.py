"""pfl-research: `FederatedAveraging` on a `SimulatedBackend`, one process with all cores as torch threads."""

import torch
from common import main
from models import arrays, module


# user code
def train(job, tick):
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    cross_entropy = torch.nn.CrossEntropyLoss()

    def loss(x, y):
        net.train()
        return cross_entropy(net(x), y)

    def metrics(x, y):
        net.eval()
        with torch.no_grad():
            return {"loss": Weighted(cross_entropy(net(x), y).item() * len(y), len(y))}

    class Tick(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            tick()
            return False, Metrics()

    net = module(job)
    net.loss, net.metrics = loss, metrics
    users = [[torch.from_numpy(part) for part in job.client(c)] for c in range(job.work.clients)]
    sampler = get_user_sampler("minimize_reuse", list(range(job.work.clients)))
    data = FederatedDataset(lambda user: Dataset(users[user], user_id=str(user)), sampler)
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    FederatedAveraging().run(
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=job.rounds + 1,
            train_cohort_size=job.work.clients,
            val_cohort_size=0,
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=job.work.epochs, local_learning_rate=job.work.rate, local_batch_size=job.work.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=job.work.batch),
        callbacks=[Tick()],
    )
    return arrays(net)


# end of user code

if __name__ == "__main__":
    main(train)
