"""fluke: its `FedAVG` with its `FastDataLoader`, evaluation switched off."""

import absent
import torch
from common import main
from models import arrays, module

absent.stand_in("torchvision")


# user code
def train(job, tick):
    from fluke import DDict, FlukeENV
    from fluke.algorithms.fedavg import FedAVG
    from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
    from fluke.utils import FederationObserver

    class Tick(FederationObserver):
        def end_round(self, round):
            tick()

    def loader(c):
        x, y = job.client(c)
        tensors = torch.from_numpy(x), torch.from_numpy(y)
        return FastDataLoader(*tensors, num_labels=job.work.classes, batch_size=job.work.batch, shuffle=True)

    env = FlukeENV()
    env.set_device("cpu")
    env.set_inmemory(True)
    env.set_eval_cfg(server=False, locals=False, pre_fit=False, post_fit=False)
    clients = job.work.clients
    data = DummyDataContainer([loader(c) for c in range(clients)], [None] * clients, None, job.work.classes)
    settings = DDict(
        model=module(job),
        client=DDict(
            batch_size=job.work.batch,
            local_epochs=job.work.epochs,
            loss="CrossEntropyLoss",
            optimizer=DDict(name="SGD", lr=job.work.rate),
            scheduler=DDict(name="StepLR", step_size=1, gamma=1),
        ),
        server=DDict(weighted=True),
    )
    algorithm = FedAVG(clients, DataSplitter(data), settings)
    algorithm.set_callbacks([Tick()])
    algorithm.run(job.rounds, eligible_perc=1.0)
    return arrays(algorithm.server.model)


# end of user code

if __name__ == "__main__":
    main(train)
