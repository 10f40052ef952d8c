"""What is asked about: an experiment's file, a run, or data by name; as data and how unlike its clients are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.analysis.advise import next_step
from atoll.core import Transform
from atoll.errors import AtollError, ConfigError
from atoll.experiment import Experiment, build, load, load_dataset, make_partition, override
from atoll.records import RunFolder
from atoll.suites import skew, skew_of
from atoll.transforms import TRANSFORMS

_ANY = {"rounds": 50, "algorithm": {"name": "fedavg", "lr": 0.1}}  # a file needs them; clients do not depend on them


@dataclass(frozen=True)
class Target:
    """Clients to be advised on."""

    name: str
    data: str
    skew: Mapping[str, float]
    digest: str = ""  # of the partition
    private: bool = False  # is there a mechanism, on updates or on examples?
    next_step: str = ""  # what to do where there is no evidence


def target(
    asked: str, changes: Sequence[str] = (), partition: Mapping[str, Any] | None = None, seed: int | None = None
) -> Target:
    """Measure what is asked about.

    `changes` are of a file's keys, or of a data set's options; `partition` and `seed` go with data by name.
    """
    path = Path(asked)
    whole = path.is_file() or path.suffix == ".toml" or path.is_dir()
    if whole and (partition or seed is not None):
        raise ConfigError(
            "--partition, --seed: go with data by name. Of a file use --set 'partition={name=\"iid\", ...}'."
        )
    if path.is_dir():
        return _of_run(path)
    if whole:
        experiment = load(path, changes)
        return _measured(asked, experiment, next_step.of_file(asked, changes, experiment))
    data = override({"data": {"name": asked}}, [f"data.{change}" for change in changes])["data"]
    entry = {} if not partition else {"partition": dict(partition)}
    experiment = Experiment.parse({**_ANY, "seed": seed or 0, "data": data, **entry})
    return _measured(asked, experiment, next_step.of_experiment(experiment))


def _measured(name: str, experiment: Experiment, command: str) -> Target:
    dataset = load_dataset(experiment)
    clients = make_partition(experiment, dataset)
    skew = skew_of(dataset, clients, experiment.partition)
    return Target(name, str(experiment.data["name"]), skew, clients.digest(), _private(experiment), command)


def _private(experiment: Experiment) -> bool:
    layers = [build(TRANSFORMS, t, where=f"transform.{i}") for i, t in enumerate(experiment.transform)]
    return experiment.local.privacy is not None or any(type(x).event is not Transform.event for x in layers)


def _of_run(path: Path) -> Target:
    """As its experiment says; what run.json has of it, where that cannot be built again here."""
    info = RunFolder(path).info
    experiment = Experiment.parse(info["experiment"])
    try:
        return _measured(str(path), experiment, next_step.of_experiment(experiment))
    except AtollError:
        if not info.get("label_counts"):
            raise
        digest = str((info.get("partition") or {}).get("digest") or "")
        private, step = _private(experiment), next_step.of_experiment(experiment)
        return Target(str(path), str(experiment.data["name"]), skew(info), digest, private, step)
