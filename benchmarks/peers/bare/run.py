"""No simulator: the loop over clients that one would write by hand, with torch's own threads."""

import torch
import torch.nn.functional as F
from common import main
from models import arrays, module


# user code
def train(job, tick):
    model, work = module(job), job.work
    x, y = torch.from_numpy(job.x), torch.from_numpy(job.y)
    server = [p.detach().clone() for p in model.parameters()]
    for _ in range(job.rounds):
        total = [torch.zeros_like(p) for p in server]
        for c in range(work.clients):
            load(model, server)
            optimizer = torch.optim.SGD(model.parameters(), lr=work.rate)
            for _ in range(work.epochs):
                for rows in (torch.randperm(work.each) + c * work.each).split(work.batch):
                    optimizer.zero_grad()
                    F.cross_entropy(model(x[rows]), y[rows]).backward()
                    optimizer.step()
            for t, p in zip(total, model.parameters(), strict=True):
                t.add_(p.detach(), alpha=1 / work.clients)
        server = total
        tick()
    load(model, server)
    return arrays(model)


def load(model, weights):
    with torch.no_grad():
        for p, w in zip(model.parameters(), weights, strict=True):
            p.copy_(w)


# end of user code

if __name__ == "__main__":
    main(train)
