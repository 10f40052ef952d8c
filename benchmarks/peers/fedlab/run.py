"""FedLab: `StandalonePipeline` with its FedAvg server and its serial client trainer."""

import absent
import torch
from common import main
from models import arrays, module

absent.stand_in("torchvision")


# user code
def train(job, tick):
    from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
    from fedlab.contrib.algorithm.basic_server import SyncServerHandler
    from fedlab.contrib.dataset.basic_dataset import BaseDataset, FedDataset
    from fedlab.core.standalone import StandalonePipeline
    from torch.utils.data import DataLoader

    class Clients(FedDataset):
        def get_dataset(self, id, type="train"):
            x, y = job.client(id)
            return BaseDataset(torch.from_numpy(x), torch.from_numpy(y))

        def get_dataloader(self, id, batch_size, type="train"):
            return DataLoader(self.get_dataset(id, type), batch_size=batch_size, shuffle=True)

    class Pipeline(StandalonePipeline):
        def evaluate(self):
            tick()

    trainer = SGDSerialClientTrainer(module(job), job.work.clients, cuda=False)
    trainer.setup_dataset(Clients())
    trainer.setup_optim(epochs=job.work.epochs, batch_size=job.work.batch, lr=job.work.rate)
    handler = SyncServerHandler(module(job), job.rounds, sample_ratio=1.0, cuda=False)
    Pipeline(handler, trainer).main()
    return arrays(handler.model)


# end of user code

if __name__ == "__main__":
    main(train)
