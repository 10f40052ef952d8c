"""What is measured, which direction is better, and how a value is shown."""

from collections.abc import Sequence
from dataclasses import dataclass

from atoll.records import Record

NOT_METRICS = {"round", "train_loss"}


@dataclass(frozen=True)
class MetricInfo:
    """A measured quantity; a share lies between 0 and 1, and may be shown in percent."""

    key: str
    title: str
    higher_is_better: bool
    percent: bool = False
    share: bool = False

    @property
    def scale(self) -> float:
        """From the recorded to the shown value."""
        return 100.0 if self.percent else 1.0

    @property
    def unit(self) -> str:
        """The title with its unit, as on an axis."""
        return f"{self.title} (%)" if self.percent else self.title

    @property
    def better(self) -> str:
        """The direction in words."""
        return "higher is better" if self.higher_is_better else "lower is better"


ACCURACY = MetricInfo("accuracy", "accuracy", higher_is_better=True, percent=True, share=True)
LOSS = MetricInfo("loss", "loss", higher_is_better=False)
TRAIN_LOSS = MetricInfo("train_loss", "training loss", higher_is_better=False)
PREFERRED = (
    ACCURACY,
    MetricInfo("auroc", "AUROC", higher_is_better=True, share=True),
    MetricInfo("perplexity", "perplexity", higher_is_better=False),
    MetricInfo("mse", "mean squared error", higher_is_better=False),
    MetricInfo("mae", "mean absolute error", higher_is_better=False),
    LOSS,
    TRAIN_LOSS,
)


def primary(records: Sequence[Record]) -> MetricInfo:
    """The first preferred metric that every record has; else the first that any has."""
    have = [measured(record) for record in records]
    everywhere, anywhere = set.intersection(*have), set.union(*have)
    candidates = [m for m in PREFERRED if m.key in everywhere] + [m for m in PREFERRED if m.key in anywhere]
    return candidates[0] if candidates else TRAIN_LOSS


def measured(record: Record) -> set[str]:
    """The metrics of a record, on the central test set or over clients."""
    over_clients = {key for line in record.rounds for key in line.get("clients") or {}}
    return over_clients | set(central(record)) | ({"train_loss"} if record.series("train_loss").rounds.size else set())


def central(record: Record) -> list[str]:
    """Every plain number that the rounds carry, in the order of first appearance."""
    keys = dict.fromkeys(key for line in record.rounds for key, value in line.items() if _plain(value))
    return [key for key in keys if key not in NOT_METRICS]


def _plain(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
