"""Atoll: `atoll.simulate`. The engine is chosen by `auto`, which times the candidates anew: nothing is remembered."""

import os
import tempfile

import numpy as np
from common import main
from models import arrays, module

os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(dir=".")


# user code
def train(job, tick):
    import atoll

    model = module(job)
    with tempfile.TemporaryDirectory() as folder:
        run = atoll.simulate(
            model,
            data=(job.x, job.y),
            clients=np.split(np.arange(len(job.y)), job.work.clients),
            algorithm={"name": "fedavg", "lr": job.work.rate},
            batch=job.work.batch,
            epochs=job.work.epochs,
            rounds=job.rounds,
            evaluate={"every": job.rounds, "clients": 0},
            watch=lambda done, rounds, entry: tick(),
            out=f"{folder}/run",
        )
        model.load_state_dict(run.params)
    return arrays(model)


# end of user code

if __name__ == "__main__":
    main(train)
