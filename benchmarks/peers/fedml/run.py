"""FedML: `FedMLRunner` in its single-process simulation."""

import logging
from types import SimpleNamespace

import absent
import torch
from common import main
from models import arrays, module

absent.stand_in("torchvision")


# user code
def train(job, tick):
    import fedml
    from torch.utils.data import DataLoader, TensorDataset

    class Tick(logging.Handler):
        """A round ends where the next begins, the last one where its test begins."""

        def emit(self, record):
            what, _, number = record.getMessage().rpartition(" : ")
            begins = what.endswith("Communication round") and number != "0"
            if begins or (what.endswith("local_test_on_all_clients") and number == str(job.rounds - 1)):
                tick()

    def loader(c):
        data = TensorDataset(*(torch.from_numpy(part) for part in job.client(c)))
        return DataLoader(data, batch_size=job.work.batch, shuffle=True)

    clients, each = job.work.clients, job.work.each
    args = fedml.init(
        SimpleNamespace(
            training_type="simulation",
            backend="sp",
            federated_optimizer="FedAvg",
            dataset="given",
            client_id_list="[]",
            client_num_in_total=clients,
            client_num_per_round=clients,
            comm_round=job.rounds,
            epochs=job.work.epochs,
            batch_size=job.work.batch,
            client_optimizer="sgd",
            learning_rate=job.work.rate,
            weight_decay=0.0,
            frequency_of_the_test=job.rounds + 1,
            using_gpu=False,
            using_mlops=False,
            enable_wandb=False,
            enable_tracking=False,
            rank=0,
            role="client",
            run_id="0",
        )
    )
    logging.getLogger().addHandler(Tick())
    loaders = {c: loader(c) for c in range(clients)}
    tested = {c: loaders[0] if c == 0 else None for c in range(clients)}  # it tests in its first and last round
    sizes = dict.fromkeys(range(clients), each)
    data = [clients * each, each, None, None, sizes, loaders, tested, job.work.classes]
    model = module(job)
    fedml.FedMLRunner(args, torch.device("cpu"), data, model).run()
    return arrays(model)


# end of user code

if __name__ == "__main__":
    main(train)
