"""Running an experiment from Python: `run` for files, `simulate` for arrays in a notebook."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from atoll.config import Entry, Experiment, load
from atoll.config.setup import Device, assemble, partitioned, set_up
from atoll.data import Dataset, Partition
from atoll.runs.begin import claim, default_folder, drive, ended, same_device
from atoll.runs.folder import Folder
from atoll.runs.given import cohort_entry, listed, made, merged, named, pair
from atoll.runs.outcome import Run
from atoll.runs.progress import Watcher, silent


def run(
    experiment: Experiment | str | Path | Mapping[str, Any],
    out: Path | str | None = None,
    *,
    resume: bool = False,
    device: Device = "auto",
    watch: Watcher = silent,
) -> Run:
    """Run an experiment (a path, a dict, or an `Experiment`) and return what came of it."""
    if isinstance(experiment, str | Path):
        experiment = load(experiment)
    elif not isinstance(experiment, Experiment):
        experiment = Experiment.parse(experiment)
    folder = Folder(Path(out) if out is not None else default_folder(experiment, resume))
    info = claim(folder, experiment, resume)
    if not ended(info):
        drive(set_up(experiment, same_device(info, device)), folder, info, watch)
    return Run(folder.path)


def simulate(
    model: nn.Module | Any,
    data: tuple[Any, Any],
    test: tuple[Any, Any] | None = None,
    *,
    clients: Sequence[Any] | Partition | Entry | str,
    algorithm: Entry | str,
    rounds: int = 10,
    cohort: int | Entry | str | None = None,
    batch: int = 32,
    epochs: int = 1,
    shuffle: bool = True,
    seed: int = 0,
    engine: Entry | str = "auto",
    device: Device = "auto",
    transforms: Sequence[Entry | str] = (),
    reducer: Entry | str = "mean",
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    watch: Watcher = silent,
    **tables: Any,
) -> Run:
    """Simulate federated learning on arrays.

    `model` is a module (its weights are where training starts) or a function that makes one (drawn from `seed`).
    `clients` is a list of index arrays, one per client, or a partition entry such as
    `{"name": "dirichlet", "clients": 20, "alpha": 0.3}`. `cohort` is None (everyone), a number (that many, without
    replacement) or an entry. `loss(outputs, targets)` replaces the usual one (cross-entropy for classes, squared error
    for numbers); it is taken example by example. Without `out` the run's folder goes when the `Run` goes.
    Further tables of the file go by name: `evaluate={"every": 5}`, `round="gossip"`.
    """
    dataset = Dataset.from_arrays(*pair(data, "data"), test=None if test is None else pair(test, "test"))
    module = made(model, seed)
    partition = None if isinstance(clients, str | Mapping) else listed(clients, dataset)
    experiment = Experiment.parse(
        {
            "rounds": rounds,
            "seed": seed,
            "data": {"name": "atoll.runs.given:arrays", "digest": dataset.digest()},
            "partition": {"name": "atoll.runs.given:clients", "digest": partition.digest()} if partition else clients,
            "cohort": cohort_entry(cohort),
            "task": merged(tables.pop("task", {}), {"model": named(module, loss)}),
            "local": merged({"epochs": epochs, "batch": batch, "shuffle": shuffle}, tables.pop("local", {})),
            "algorithm": algorithm,
            "transform": transforms if isinstance(transforms, str | Mapping) else list(transforms),
            "reducer": reducer,
            "engine": engine,
            "checkpoint": {"every": 0} if out is None else {},
            **tables,
        }
    )
    with _place(out) as folder:
        info = claim(folder, experiment, resume)
        if not ended(info):
            parts = dataset, partition or partitioned(experiment, dataset), module
            drive(assemble(experiment, *parts, same_device(info, device), loss), folder, info, watch)
        return Run(folder.path, temporary=out is None)


@contextmanager
def _place(out: Path | str | None) -> Iterator[Folder]:
    """The folder asked for, or one of our own, which goes at once if nothing comes of it."""
    if out is not None:
        yield Folder(Path(out))
        return
    place = Path(tempfile.mkdtemp(prefix="atoll-"))
    try:
        yield Folder(place)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
