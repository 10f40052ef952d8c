"""Flower: a `ServerApp` with its FedAvg strategy and a `ClientApp`, in `run_simulation` on Ray, one core per client."""

import os
from pathlib import Path

import torch
from common import job, main
from models import arrays, module

os.environ.setdefault("RAY_DEDUP_LOGS", "0")


# user code
def fit(message, context):
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from torch.utils.data import DataLoader, TensorDataset

    config = message.content["config"]
    mine = job(config["workload"], 1, Path(config["folder"]))  # read once in a process
    model = module(mine)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = mine.client(context.node_config["partition-id"])
    data = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    optimizer, cross_entropy = torch.optim.SGD(model.parameters(), lr=mine.work.rate), torch.nn.CrossEntropyLoss()
    model.train()
    for _ in range(mine.work.epochs):
        for inputs, targets in DataLoader(data, batch_size=mine.work.batch, shuffle=True):
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(content), reply_to=message)


def train(work, tick):
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    model, client, server = module(work), ClientApp(), ServerApp()
    client.train()(fit)

    @server.main()
    def serve(grid, context):
        everyone = {"min_train_nodes": work.work.clients, "min_available_nodes": work.work.clients}
        result = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, **everyone).start(
            grid,
            ArrayRecord(model.state_dict()),
            num_rounds=work.rounds,
            train_config=ConfigRecord({"workload": work.name, "folder": str(work.folder)}),
            evaluate_fn=lambda current, held: tick() if current else None,
        )
        model.load_state_dict(result.arrays.to_torch_state_dict())

    run_simulation(
        server, client, work.work.clients, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    )
    return arrays(model)


# end of user code

if __name__ == "__main__":
    main(train)
