"""The file, checked: one frozen value that says everything about a run.

>>> e = Experiment.parse({"rounds": 5, "data": "digits", "partition": {"name": "iid", "clients": 4},
...                       "algorithm": {"name": "fedavg", "lr": 0.1}})
>>> e.local.batch, e.algorithm["server_lr"], e.cohort
(32, 1.0, {'name': 'everyone'})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from atoll.clock import ClockTable
from atoll.core import Count, Seed, Table, Whole
from atoll.experiment.registry import CHECKS
from atoll.experiment.signatures import Of, schema
from atoll.privacy.run import LocalPrivacyTable, PrivacyTable
from atoll.records import experiment_digest
from atoll.schema import Entry, one_experiment, override, read, to_json, toml_text


class LoraTable(Table):
    """task.lora: low-rank adapters learn, the rest of the model is frozen and shared by all clients."""

    rank: Count = 8
    alpha: Annotated[float, Field(gt=0)] = 16.0  # adapters count alpha / rank
    targets: Annotated[list[str], Field(min_length=1)] = Field(default=["*"])  # linear layers, by name or pattern
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0  # of what enters adapters
    also_train: list[str] = Field(default=[])  # parameters that learn as they are, by name or pattern


class TaskTable(Table):
    """[task]: the model and how it is measured."""

    model: Annotated[Entry | None, Of("models")] = None  # None: follows from the data
    loss: Annotated[Entry | None, Of("losses")] = None  # None: cross-entropy of classes, squared error of numbers
    batch_norm: Literal["average", "local", "recompute", "freeze", "group"] = "average"
    top_k: list[Count] = Field(default=[])
    start: str | None = None  # weights to start from: a file, a folder of the hub's, or the folder of a run
    lora: LoraTable | None = None  # None: all of the model learns


class LocalTable(Table):
    """[local]: one client's training in one round."""

    epochs: Count = 1
    batch: Whole = 32  # 0: all examples of the client
    shuffle: bool = True
    max_steps: Count | None = None
    privacy: LocalPrivacyTable | None = None


class EvaluateTable(Table):
    """[evaluate]: when and on whom the model is measured."""

    every: Count = 1
    clients: Whole | Literal["all"] = 200  # how many get metrics of their own
    holdout: Annotated[float, Field(ge=0, lt=1)] = 0.0  # share of each client's examples kept from training
    after: bool = False  # also after local training
    batch: Count = 512
    rows: Count | Literal["all"] = 30_000  # at most, of the test data; and of the clients' own examples in all
    metrics: list[str] | None = None  # beside the usual ones: names, or functions of scores and targets by import path


class CrflTable(Table):
    """server.crfl: the model after every round, clipped and noisy, and against whom that is certified."""

    max_norm: Annotated[float, Field(gt=0)]
    std: Annotated[float, Field(gt=0)]
    attackers: Count = 1
    rate: Annotated[float, Field(gt=0)] = 1.0  # how far one moves its model at most, per unit of its backdoor
    lipschitz: Annotated[float, Field(gt=0)] = 1.0
    votes: Count = 1000  # of noisy models
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.001


class ServerTable(Table):
    """[server]: what the server keeps beside its model."""

    ema: Annotated[float, Field(gt=0, lt=1)] | None = None  # decay of a moving average of the model
    root: Annotated[float, Field(gt=0, lt=1)] | None = None  # share of all examples that it holds itself
    crfl: CrflTable | None = None  # clip and noise on the model, with a certificate


class StopTable(Table):
    """[stop]: when to end before the last round."""

    patience: Count | None = None  # evaluations without an improvement
    metric: str | None = None  # a dotted key of the record's lines; None: the first one of the task
    better: Literal["higher", "lower"] | None = None  # None: follows from the metric
    threshold: Annotated[float, Field(ge=0)] = 0.0  # what counts as an improvement
    target: float | None = None  # end as soon as it is reached


class FixedPointTable(Table):
    """secure.fixed_point: how numbers become residues, where `transform` does not say it."""

    bits: Annotated[int, Field(ge=8, le=48)] = 32  # sums are modulo 2^bits
    range: Annotated[float, Field(gt=0)] | None = None  # of one number; None: the bound that updates have


class ProtocolSecondsTable(Table):
    """secure.seconds: what a protocol takes on the clock, where that is not to be measured on this machine."""

    client: Annotated[float, Field(ge=0)]  # of one with slowness 1
    server: Annotated[float, Field(ge=0)] = 0.0
    role: Annotated[float, Field(ge=0)] = 0.0  # of whoever deals a key or decrypts, while all others wait


class SecureTable(Table):
    """[secure]: by which protocol the server learns a sum and nothing else."""

    protocol: Annotated[Entry, Of("protocols")]
    threshold: Annotated[float, Field(gt=0, lt=1)] | Annotated[int, Field(ge=2)] | None = None  # who must stay
    fixed_point: FixedPointTable = FixedPointTable()
    mode: Literal["real", "cost"] = "real"  # cost: the same sum, with a model of what the protocol would take
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0  # probability of each client in each round, at a random step
    level: Count | None = None  # of edges, which are then the protocol's clients; None: clients themselves
    seconds: ProtocolSecondsTable | None = None  # on the clock; None: measured when the run begins
    insecure_seed: bool = False  # tests only: keys and masks from the run's seed


class CheckpointTable(Table):
    """[checkpoint]: how often a run can be resumed from."""

    every: Whole = 10  # rounds; 0: only at the end


class Experiment(BaseModel):
    """Everything about a run, checked when it is made. Entries have their defaults filled in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rounds: Count
    seed: Seed = 0
    on_divergence: Literal["stop", "drop"] = "stop"
    label: str | None = None
    metric: str | None = None  # of the verdict; None: follows from the data
    data: Annotated[Entry, Of("data")]
    partition: Annotated[Entry | None, Of("partitions")] = None  # None: the natural clients of the data
    cohort: Annotated[Entry, Of("cohorts")] = {"name": "everyone"}
    task: TaskTable = TaskTable()
    local: LocalTable = LocalTable()
    algorithm: Annotated[Entry, Of("algorithms")]
    transform: Annotated[list[Entry], Of("transforms")] = []
    broadcast: Annotated[list[Entry] | None, Of("transforms")] = None  # compressors of what the server sends
    reducer: Annotated[Entry, Of("reducers")] = {"name": "mean"}
    engine: Annotated[Entry, Of("engines")] = {"name": "auto"}
    round: Annotated[Entry, Of("rounds")] = {"name": "central"}
    server: ServerTable | None = None
    clock: ClockTable | None = None
    secure: SecureTable | None = None
    attack: Annotated[Entry | None, Of("attacks")] = None  # clients that mean harm
    evaluate: EvaluateTable = EvaluateTable()
    stop: StopTable | None = None
    privacy: PrivacyTable | None = None
    checkpoint: CheckpointTable = CheckpointTable()

    def __init__(self, /, **raw: Any) -> None:
        super().__init__(**CHECKS.experiment(schema(Experiment), raw))

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Experiment:
        """The experiment, or one ConfigError with everything that is wrong."""
        return cls(**one_experiment(raw))

    def complete(self) -> dict[str, Any]:
        """The whole file with every default written out; what is None is left out."""
        return self.model_dump(mode="json", exclude_none=True)

    def digest(self) -> str:
        """A short fingerprint: the same for the same experiment, however it was written."""
        return experiment_digest(self.complete())

    def to_toml(self) -> str:
        """A file that reads back as this experiment."""
        return toml_text(self.complete())


def load(path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment of a file, with changes such as "algorithm.lr=0.05"."""
    return Experiment.parse(override(read(path), overrides))


def plain_signatures() -> dict[str, Any]:
    """What an experiment and everything that it may name take, as JSON: enough to check a file by."""
    kinds = {kind: {n: to_json(b.arguments(n, "")) for n in b.names} for kind, b in CHECKS.kinds.items()}
    return {"experiment": to_json(schema(Experiment)), "kinds": kinds}
