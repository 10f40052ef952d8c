"""What a user should know of the data before the first round."""

from __future__ import annotations

from collections.abc import Mapping

from atoll.data import Dataset, Partition
from atoll.experiment.task import whole_numbers
from atoll.tasks import Metric


def data_notes(
    dataset: Dataset, training: Partition, batch: int, rows: int | str, metrics: Mapping[str, Metric]
) -> list[str]:
    """One sentence each."""
    notes = list(dataset.notes)
    few = int((training.sizes < batch).sum())
    if few:
        notes.append(
            f"{few} of {training.size} clients have fewer examples than local.batch = {batch} "
            f"(the smallest {int(training.sizes.min())}): each of their epochs is one smaller batch."
        )
    if rows != "all" and dataset.test is not None and len(dataset.test["y"]) > int(rows):
        notes.append(
            f"Metrics are of {int(rows):,} of the {len(dataset.test['y']):,} test examples, the same ones in every "
            'round. For all of them: evaluate.rows = "all".'
        )
    if dataset.kind == "regression" and whole_numbers(dataset) and "accuracy" not in metrics:
        notes.append("The targets are floats, so this is regression. If they are classes, give them as integers.")
    if dataset.kind == "classification" and dataset.test is not None:
        unseen = sorted(set(dataset.test["y"].unique().tolist()) - set(dataset.train["y"].unique().tolist()))
        if unseen:
            notes.append(f"The test data has labels that no training example has: {', '.join(map(str, unseen[:8]))}.")
    return notes
