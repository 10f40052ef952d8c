"""Running an experiment from Python: `run` for files, `simulate` for arrays in a notebook."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from atoll import rng, tree
from atoll.config import Entry, Experiment, build, load
from atoll.config.setup import Device, Setup, assemble, seed_of, set_up
from atoll.data import PARTITIONS, Dataset, Partition
from atoll.engines import Choice, Threads, Vector
from atoll.errors import ConfigError, RecordError
from atoll.runs.driver import Driver
from atoll.runs.folder import FORMAT, Folder
from atoll.runs.machine import hardware, versions
from atoll.runs.progress import Watcher, silent
from atoll.tree import Tree


class Run:
    """A run that has ended (or was interrupted), read from its folder."""

    def __init__(self, folder: Path | str, temporary: Any = None) -> None:
        self.folder = Path(folder)
        self._files = Folder(self.folder)
        self._temporary = temporary  # a temporary folder lives as long as its run
        self.info: dict[str, Any] = self._files.info
        self.history: list[dict[str, Any]] = self._files.record()

    @property
    def params(self) -> Tree:
        """The learned model, keyed like the module's state: `module.load_state_dict(run.params)`."""
        return self._files.load("model.pt")

    @property
    def final(self) -> dict[str, Any]:
        """The metrics of the last evaluation, flat, with the last training loss and the round."""
        last: dict[str, Any] = {"round": len(self.history)}
        for entry in self.history:
            last |= {k: v for k, v in entry.items() if isinstance(v, float)}
            last |= {k: entry[k] for k in ("clients", "after") if k in entry}
        return last

    @property
    def status(self) -> str:
        """ "finished", "stopped early: ...", "interrupted" or "running"."""
        return str(self.info["status"])

    def report(self, out: Path | str | None = None) -> Path:
        """Write the report of this run; `atoll report` puts several side by side."""
        from atoll.report import write  # matplotlib is slow to import

        return write([self.folder], Path(out) if out is not None else self.folder / "report.html")

    def __repr__(self) -> str:
        shown = ", ".join(f"{k} {v:.4g}" for k, v in self.final.items() if isinstance(v, float))
        return f"Run({str(self.folder)!r}, {self.status}, {len(self.history)} rounds, {shown})"


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
    folder = Folder(Path(out) if out is not None else _default_folder(experiment, resume))
    info = _claim(folder, experiment, resume)
    if info and info["status"] == "finished":
        return Run(folder.path)
    return _drive(set_up(experiment, device), folder, info, watch)


def simulate(
    model: nn.Module | Any,
    data: tuple[Any, Any],
    test: tuple[Any, Any] | None = None,
    *,
    clients: Sequence[Any] | Entry | str,
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
    out: Path | str | None = None,
    watch: Watcher = silent,
    **tables: Any,
) -> Run:
    """Simulate federated learning on arrays.

    `model` is a module (its weights are where training starts) or a function that makes one (drawn from `seed`).
    `clients` is a list of index arrays, one per client, or a partition entry such as
    `{"name": "dirichlet", "clients": 20, "alpha": 0.3}`. `cohort` is None (everyone), a number (that many, without
    replacement) or an entry. Further tables of the file go by name: `evaluate={"every": 5}`, `round="gossip"`.
    """
    dataset = Dataset.from_arrays(*_pair(data, "data"), test=None if test is None else _pair(test, "test"))
    given = not isinstance(clients, str | Mapping)
    module = _made(model, seed)
    task = dict(tables.pop("task", {}))
    experiment = Experiment.parse(
        {
            "rounds": rounds,
            "seed": seed,
            "data": {"name": "atoll.runs.given:arrays", "digest": dataset.digest()},
            "partition": {"name": "atoll.runs.given:clients", "digest": "rows"} if given else clients,
            "cohort": _cohort(cohort),
            "task": {**task, "model": {"name": "atoll.runs.given:module", "kind": type(module).__name__}},
            "local": {"epochs": epochs, "batch": batch, "shuffle": shuffle},
            "algorithm": algorithm,
            "transform": list(transforms),
            "reducer": reducer,
            "engine": engine,
            "checkpoint": {"every": 0} if out is None else {},
            **tables,
        }
    )
    partition = _listed(clients, dataset) if given else _partitioned(experiment, dataset)
    setup = assemble(experiment, dataset, partition, module, device)
    temporary = tempfile.TemporaryDirectory(prefix="atoll-") if out is None else None
    folder = Folder(Path(out if temporary is None else temporary.name))  # type: ignore[arg-type]
    _claim(folder, experiment, resume=False)
    return _drive(setup, folder, None, watch, temporary)


def _drive(setup: Setup, folder: Folder, info: dict[str, Any] | None, watch: Watcher, temporary: Any = None) -> Run:
    choice = Choice(**info["engine"]["choice"]) if info else None  # a resumed run goes on with the engine it had
    driver = Driver(setup, folder, choice)
    folder.create(_needed_bytes(driver))
    if info:
        driver.resume()
        folder.write_info({**info, "status": "running"})
    else:
        info = _info(driver)
        folder.write_info({**info, "status": "running"})
    try:
        status = driver.run(watch)
    except BaseException as e:
        folder.write_info({**info, "status": f"failed: {type(e).__name__}"})
        raise
    folder.write_info({**info, "status": status})
    return Run(folder.path, temporary)


def _info(driver: Driver) -> dict[str, Any]:
    setup, experiment = driver.setup, driver.experiment
    sizes = setup.training.sizes.double()
    engine = driver.engine
    choice: dict[str, Any] = {"name": engine.name}
    if isinstance(engine, Vector):
        choice |= {"chunk": engine.chunk, "capture": engine.capture}
    if isinstance(engine, Threads):
        choice |= {"workers": engine.count()}
    return {
        "format": FORMAT,
        "atoll": versions()["atoll"],
        "label": experiment.label or str(experiment.algorithm["name"]),
        "experiment": experiment.complete(),
        "digest": experiment.digest(),
        "seed": experiment.seed,
        "partition": {
            "digest": setup.partition.digest(),
            "clients": setup.training.size,
            "examples": int(sizes.sum()),
            "sizes": {"min": int(sizes.min()), "median": float(sizes.median()), "max": int(sizes.max())},
        },
        "model": {
            "name": (experiment.task.model or {}).get("name") or type(setup.task.original).__name__,
            "parameters": tree.count(setup.model["params"]),
        },
        "engine": {"name": engine.name, "reason": engine.reason, "choice": choice},
        "notes": setup.notes,
        "versions": versions(),
        "hardware": hardware(setup.device),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _claim(folder: Folder, experiment: Experiment, resume: bool) -> dict[str, Any] | None:
    """The run that is to be resumed here, if it is this experiment's; None for a new one."""
    if not folder.exists():
        if folder.path.exists() and not folder.path.is_dir():
            raise RecordError(f"{folder.path}: is a file. Name a folder with --out.")
        return None
    if not resume:
        raise RecordError(f"{folder.path}: holds a run already. Go on with it (--resume), or name another folder.")
    info = folder.info
    if info["digest"] != experiment.digest():
        raise RecordError(
            f"{folder.path}: holds another experiment (digest {info['digest'][:8]}, yours is "
            f"{experiment.digest()[:8]}). Resume it with the file it was started from, or name another folder."
        )
    return info


def _default_folder(experiment: Experiment, resume: bool) -> Path:
    """runs/<label>-<digest>, or the same with a number; the unfinished one, if it is to be resumed."""
    name = f"{experiment.label or experiment.algorithm['name']}-{experiment.digest()[:8]}"
    first = Path("runs") / name.replace("/", "-").replace(":", "-")
    tried = [first] + [first.with_name(f"{first.name}-{i}") for i in range(2, 1000)]
    if resume:
        there = [p for p in tried if (p / "run.json").exists()]
        open_ones = [p for p in there if Folder(p).info["status"] != "finished"]
        if not there:
            raise RecordError(f"{first}: there is no run to resume. Leave --resume out to start one.")
        return (open_ones or there)[-1]
    return next(p for p in tried if not p.exists())


def _needed_bytes(driver: Driver) -> int:
    """Two checkpoints (the old and the new), the model, and the record."""
    clients = driver.setup.population.size
    state = tree.nbytes(driver.server) + tree.nbytes(driver.state)
    memory = min(clients, driver.experiment.rounds * clients) * tree.nbytes(driver.memory.first)
    lines = driver.experiment.rounds * (2_000 + 8 * min(clients, 10_000))
    return 2 * (state + memory) + tree.nbytes(driver.setup.model) + lines


def _pair(data: Any, where: str) -> tuple[Any, Any]:
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise ConfigError(f"{where}: must be a pair of arrays (x, y), the inputs and what is to be predicted.")
    return data[0], data[1]


def _made(model: Any, seed: int) -> nn.Module:
    if isinstance(model, nn.Module):
        return model
    if not callable(model):
        raise ConfigError(f"model: must be a torch module, or a function that makes one (got {type(model).__name__}).")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(rng.key(seed, "init")))
        made = model()
    if not isinstance(made, nn.Module):
        raise ConfigError(f"model: the function gave a {type(made).__name__}, but must give a torch module.")
    return made


def _cohort(cohort: int | Entry | str | None) -> Entry | str:
    if cohort is None:
        return "everyone"
    return {"name": "fixed", "size": cohort} if isinstance(cohort, int) else cohort


def _listed(clients: Any, dataset: Dataset) -> Partition:
    rows = [torch.as_tensor(c, dtype=torch.int64) for c in clients]
    return Partition.from_lists(rows).check(dataset.examples, overlap=True)


def _partitioned(experiment: Experiment, dataset: Dataset) -> Partition:
    partitioner = build(PARTITIONS, experiment.partition, where="partition")
    found: Partition = partitioner(
        dataset.labels, dataset.keys, dataset.examples, rng.key(experiment.seed, "partition")
    )
    return found
