"""APPFL: `ServerAgent` and `ClientAgent`s in one process, its FedAvg aggregator and its vanilla trainer."""

import absent
import torch
from common import main
from models import arrays, module

absent.stand_in("piq")  # measures of pictures, on top of torchvision
absent.stand_in("torchvision")


# user code
def train(job, tick):
    from appfl.agent import ClientAgent, ServerAgent
    from appfl.config import ClientAgentConfig, ServerAgentConfig
    from omegaconf import OmegaConf
    from torch.utils.data import TensorDataset

    class Server(ServerAgent):
        def _load_model(self):
            self.model = module(job)

    class Client(ClientAgent):
        def _load_model(self):
            self.model = module(job)

        def _load_data(self):
            x, y = job.client(int(self.client_agent_config.client_id))
            self.train_dataset, self.val_dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), None

        def _load_metric(self):
            self.metric = lambda true, predicted: (true == predicted.argmax(1)).mean()

    training = {
        "trainer": "VanillaTrainer",
        "mode": "epoch",
        "num_local_epochs": job.work.epochs,
        "train_batch_size": job.work.batch,
        "optim": "SGD",
        "optim_args": {"lr": job.work.rate},
        "loss_fn": "CrossEntropyLoss",
        "device": "cpu",
        "optimize_memory": False,  # its default collects garbage several times a client, which takes most of the time
    }
    serving = {
        "num_clients": job.work.clients,
        "num_global_epochs": job.rounds,
        "aggregator": "FedAvgAggregator",
        "aggregator_kwargs": {"client_weights_mode": "sample_size", "optimize_memory": False},
        "scheduler": "SyncScheduler",
        "scheduler_kwargs": {"num_clients": job.work.clients, "optimize_memory": False},
        "optimize_memory": False,
        "device": "cpu",
    }
    server = Server(ServerAgentConfig(OmegaConf.create({"train_configs": training}), OmegaConf.create(serving)))
    clients = []
    for c in range(job.work.clients):
        config = ClientAgentConfig()
        config.client_id, config.optimize_memory = str(c), False
        clients.append(client := Client(config))
        client.load_config(server.get_client_configs())
        server.set_sample_size(client.get_id(), client.get_sample_size())
    while not server.training_finished():
        answers = []
        for client in clients:
            client.train()
            weights, about = client.get_parameters()
            answers.append(server.global_update(client.get_id(), weights, blocking=False, **about))
        for client, answer in zip(clients, answers, strict=True):
            client.load_parameters(answer.result())
        tick()
    return arrays(server.model)


# end of user code

if __name__ == "__main__":
    main(train)
