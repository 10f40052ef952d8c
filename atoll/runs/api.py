"""Running an experiment from Python: `run` for files, `simulate` for arrays in a notebook."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor, nn

from atoll import tree
from atoll.data import InputKind, Partition
from atoll.engines.ranks import World, join
from atoll.experiment import Device, Entry, Experiment, Setup, assemble, find_device, load, make_partition, set_up
from atoll.records import Info, RunFolder, ended
from atoll.runs.callbacks import Callback, Callbacks, Watcher, checked
from atoll.runs.lifecycle import claim, default_folder, run_all, same_device
from atoll.runs.per_client_data import check_test, joined
from atoll.runs.progress import shown
from atoll.runs.python_data import make_dataset
from atoll.runs.python_inputs import (
    ARRAYS,
    CLIENTS,
    asked_metrics,
    cohort_entry,
    is_entry,
    listed,
    make_module,
    merged,
    named,
    named_functions,
)
from atoll.runs.run_result import Run
from atoll.tree import Tree


def run(
    experiment: Experiment | str | Path | Mapping[str, Any],
    out: Path | str | None = None,
    *,
    resume: bool = False,
    device: Device = "auto",
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    watch: Watcher | None = None,
    profile: bool = False,
) -> Run:
    """Run an experiment (a path, a dict, or an `Experiment`) and return what came of it.

    `callbacks` are told of every round, and may end the run. `progress` shows how far it is: a bar in a terminal or
    notebook, lines elsewhere; None is a bar where there can be one. `watch` is a function in place of a callback.
    `profile` looks at a few rounds and says in the run's folder `profile/` where their time goes. Under torchrun every
    process calls this alike, and gets the same `Run`.
    """
    told = Callbacks([*checked(callbacks, watch), *shown(progress)])
    world = join()
    with world.reporting_failure():
        whole = _experiment(experiment)
        folder = RunFolder(world.on_rank_zero(lambda: Path(out) if out is not None else default_folder(whole, resume)))
        return _done(world, folder, whole, resume, device, told, lambda where: set_up(whole, where), profile=profile)


def _experiment(given: Experiment | str | Path | Mapping[str, Any]) -> Experiment:
    if isinstance(given, str | Path):
        return load(given)
    return given if isinstance(given, Experiment) else Experiment.parse(given)


def _done(
    world: World,
    folder: RunFolder,
    experiment: Experiment,
    resume: bool,
    device: Device,
    callback: Callback,
    build: Callable[[Device], Setup],
    temporary: bool = False,
    profile: bool = False,
    module: nn.Module | None = None,
) -> Run:
    """What came of it, once there is nothing left to do."""
    world.check_same("experiment", experiment.digest())
    info: Info | None = world.on_rank_zero(lambda: claim(folder, experiment, resume))
    if not ended(info):
        device = world.on_rank_zero(lambda: same_device(info, device))
        here = world.on_device(find_device(device))
        run_all(here.local_rank_zero_first(lambda: build(device)), folder, info, callback, here, profile)
    if world.size == 1:
        return Run(folder.path, temporary, module=module)
    run = world.on_rank_zero(lambda: Run(folder.path))
    params = world.broadcast_tree(run.params if world.rank == 0 else None)
    best = world.broadcast_tree(run.best_params if world.rank == 0 and run.best else None) if run.best else {}
    contents = {"info": run.info, "history": run.history, "params": params, "best": best}
    return Run(folder.path, temporary and world.rank == 0, contents, module)


def simulate(
    model: nn.Module | Any,
    data: tuple[Any, Any] | Any,
    test: tuple[Any, Any] | Any | None = None,
    *,
    clients: Sequence[Any] | Mapping[str, Any] | Partition | str | None = None,
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
    loss: Callable[[Tensor, Tensor], Tensor] | Entry | str | None = None,
    metrics: Sequence[Any] | Mapping[str, Any] = (),
    kind: InputKind | None = None,
    augment: Callable[[Tree], Tree] | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    watch: Watcher | None = None,
    **tables: Any,
) -> Run:
    """Simulate federated learning on arrays.

    `model` is a module (its weights are where training starts) or a function that makes one (drawn from `seed`).
    `data` and `test` are pairs (x, y) of arrays, sparse matrices or frames, torch data sets or loaders, or `data` a
    `Dataset`; `kind` says what whole numbers in x are ("tokens", "pixels", "features"), `augment` changes a decoded
    training batch (draw from batch["key"]). `clients` is a list of index arrays, one per client, a dict of these by
    name, the id of each row's client, or a partition entry such as
    `{"name": "dirichlet", "clients": 20, "alpha": 0.3}`; it is left out where `data` is a list with one pair or torch
    data set for each client, or a dict of these by name. `cohort` is None (everyone), a number (that many, without
    replacement) or an entry. `loss(outputs, targets)` replaces the usual one (cross-entropy for classes, squared error
    for numbers): torch's own or any function of a batch, or an entry as in a file,
    `{"name": "cross_entropy", "weight": "balanced"}`.
    `metrics` are measured beside the usual ones: names, or functions of scores and targets; in a dict one may stand
    with its direction, `{"cost": (cost, "lower")}`. Without `out` the run's folder goes when the `Run` goes.
    `callbacks`, `progress` and `watch` are those of `run`. Further tables of the file go by name:
    `evaluate={"every": 5}`, `round="gossip"`.
    Under torchrun every process must hand over the same model and data: draw them from a seed.
    """
    told = Callbacks([*checked(callbacks, watch), *shown(progress)])
    world = join()
    module = make_module(model, seed)
    check_test(test)
    data, clients = joined(data, clients)
    dataset = make_dataset(data, test, kind, module, augment)
    partition = None if isinstance(clients, str) or is_entry(clients) else listed(clients, dataset)
    own = None if isinstance(loss, str | Mapping) else loss
    task: dict[str, Any] = {"model": named(module, own, drawn=module is not model)}
    task |= {"loss": loss} if isinstance(loss, str | Mapping) else {}
    given = {"rounds": rounds, "seed": seed, "algorithm": algorithm, "reducer": reducer, "engine": engine}
    made_here = {
        "data": {"name": ARRAYS, "digest": tree.digest(dataset.tensors())},
        "partition": {"name": CLIENTS, "digest": partition.digest()} if partition else clients,
        "cohort": cohort_entry(cohort),
        "task": merged(tables.pop("task", {}), task),
        "local": merged({"epochs": epochs, "batch": batch, "shuffle": shuffle}, tables.pop("local", {})),
        "evaluate": merged(tables.pop("evaluate", {}), asked_metrics(metrics)),
        "transform": transforms if isinstance(transforms, str | Mapping) else list(transforms),
        "checkpoint": {"every": 0} if out is None else {},
    }
    experiment = Experiment.parse({**given, **made_here, **tables})

    def build(where: Device) -> Setup:
        held = partition or make_partition(experiment, dataset)
        return assemble(experiment, dataset, held, module, where, own, named_functions(metrics))

    with world.reporting_failure(), _place(out, world) as folder:
        run = _done(world, folder, experiment, resume, device, told, build, temporary=out is None, module=module)
    if run.info["engine"]["name"] == "loop" != experiment.engine["name"] and world.rank == 0:
        Console(stderr=True).print(f"atoll: {run.info['engine']['reason']}", markup=False, highlight=False)
    return run


@contextmanager
def _place(out: Path | str | None, world: World) -> Iterator[RunFolder]:
    """The folder asked for, or one of our own, which goes at once if nothing comes of it."""
    if out is not None:
        yield RunFolder(Path(out))
        return
    place = world.on_rank_zero(lambda: Path(tempfile.mkdtemp(prefix="atoll-")))
    try:
        yield RunFolder(place)
    except BaseException:
        if world.rank == 0:
            shutil.rmtree(place, ignore_errors=True)
        raise
