"""What is measured, which direction is better, and how a value is shown."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from atoll.errors import RecordError
from atoll.records import Record, Results

NOT_METRICS = {"round", "train_loss"}


@dataclass(frozen=True)
class MetricInfo:
    """A measured quantity, shown times `scale`; a share lies between 0 and 1."""

    key: str
    title: str
    higher_is_better: bool
    scale: float = 1.0
    share: bool = False

    @property
    def percent(self) -> bool:
        """Is it shown in per cent?"""
        return self.scale == 100

    @property
    def unit(self) -> str:
        """The title with its unit, as on an axis."""
        scaled = "" if self.scale == 1 else f" (x {self.scale:g})"
        return f"{self.title} (%)" if self.percent else f"{self.title}{scaled}"

    def heading(self, when: str = "") -> str:
        """The title, its unit and its direction, as above a table."""
        return f"{self.title}{' in percent' if self.percent else ''}{when}, {self.better}"

    @property
    def better(self) -> str:
        """The direction in words."""
        return "higher is better" if self.higher_is_better else "lower is better"

    def gap(self, size: float) -> str:
        """A shown difference with what it is counted in, if that has a name."""
        return f"{size:g} percentage point{'' if size == 1 else 's'}" if self.percent else f"{size:g}"


ACCURACY = MetricInfo("accuracy", "accuracy", higher_is_better=True, scale=100.0, share=True)
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
    MetricInfo("attack.success", "attack success", higher_is_better=False, scale=100.0, share=True),
    MetricInfo("balanced_accuracy", "balanced accuracy", higher_is_better=True, scale=100.0, share=True),
    MetricInfo("f1", "F1", higher_is_better=True, share=True),
    MetricInfo("f1_macro", "macro F1", higher_is_better=True, share=True),
    MetricInfo("precision", "precision", higher_is_better=True, share=True),
    MetricInfo("recall", "recall", higher_is_better=True, share=True),
    MetricInfo("ece", "calibration error", higher_is_better=False, share=True),
    MetricInfo("brier", "Brier score", higher_is_better=False),
    MetricInfo("r2", "R2", higher_is_better=True),
)


def primary(records: Sequence[Record], asked: str | None = None) -> MetricInfo:
    """The metric asked for, the one that all runs name; the first preferred one that every record has, or any has."""
    have = [measured(record) for record in records]
    if asked:
        return _asked(records, asked, set.union(*have))
    named = {str(record.run.get("metric")) for record in records}
    if len(named) == 1 and named <= set.intersection(*have):
        return _known_to(records, named.pop())
    everywhere, anywhere = set.intersection(*have), set.union(*have)
    candidates = [m for m in PREFERRED if m.key in everywhere] + [m for m in PREFERRED if m.key in anywhere]
    return candidates[0] if candidates else TRAIN_LOSS


def _asked(records: Sequence[Record], asked: str, have: set[str]) -> MetricInfo:
    """A metric by its name, or a number by its path in the record (`clients.accuracy.mean`)."""
    if asked not in have and not any(record.series(asked).rounds.size for record in records):
        raise RecordError(f"--metric: no such metric as {asked!r}; there are {', '.join(sorted(have))}.")
    return _known_to(records, asked)


def _known_to(records: Sequence[Record], key: str) -> MetricInfo:
    """In the direction that the runs say."""
    directions = [better[key] for record in records if key in (better := record.run.get("better") or {})]
    known = known_metric(key)
    return replace(known, higher_is_better=directions[0] == "higher") if directions else known


def known_metric(key: str) -> MetricInfo:
    """A metric by name; one that nobody listed is better the higher it is, unless it is an error or a cost.

    >>> known_metric("top5_accuracy").unit
    'top5 accuracy (%)'
    """
    listed = {metric.key: metric for metric in PREFERRED}
    words = key.replace(".", "_").split("_")
    lower = any(word in key for word in ("loss", "error", "mse", "mae", "perplexity")) or {"ece", "brier"} & {*words}
    cost = key == "clock.end" or key.startswith(("bytes.", "seconds."))
    accuracy = "accuracy" in words
    return listed.get(
        key,
        MetricInfo(
            key, key.replace("_", " ").replace(".", ", "), not (lower or cost), 100.0 if accuracy else 1.0, accuracy
        ),
    )


def suite_metric(results: Results) -> MetricInfo:
    """What a suite measures, in the direction and scale that it says."""
    known = known_metric(results.metric)
    return MetricInfo(results.metric, known.title, results.higher, results.scale, known.share)


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
