"""From named columns to a data set: who plays which part, which rows are for the test, what is missing."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll import tree
from atoll.data.dataset import Dataset
from atoll.data.formats import safe_read
from atoll.data.formats.client_files import Files, find_files
from atoll.data.formats.column_file import Array, ColumnFile, Columns, memory_database
from atoll.data.formats.column_file import absent as missing_cells
from atoll.data.formats.features import Features, fitted_number
from atoll.data.formats.label_encoding import Kind, Targets, numbered, targets
from atoll.data.formats.preprocessing import Number, Preprocessing
from atoll.data.formats.split import held_out
from atoll.data.formats.stacked_files import FILE, StackedFiles, stacked
from atoll.errors import DataError

Missing = Literal["refuse", "mean", "median", "zero", "drop"]
Standardise = Literal["features", "all", "none"]


@dataclass(frozen=True)
class TablePlan:
    """What a user says about a table."""

    label: str
    client: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    categorical: tuple[str, ...] | Literal["auto"] = "auto"
    categories: int = 100
    kind: Kind | None = None
    missing: Missing = "refuse"
    standardise: Standardise = "features"
    test_by: str | None = None
    test_value: str | int | bool = "test"
    test_share: float | None = None
    seed: int = 0

    def wanted(self, files: Sequence[ColumnFile]) -> set[str]:
        """The columns that every file must have."""
        roles = {self.label, *self.client, *([self.test_by] if self.test_by else [])}
        everything = {name for file in files for name in file.holds}
        return roles & everything | (set(self.features) & everything or everything - set(self.exclude))


def dataset_from(
    open_file: Callable[[Any, Path], AbstractContextManager[ColumnFile]],
    suffixes: Sequence[str],
    path: Files,
    test: Files | None,
    plan: TablePlan,
) -> Dataset:
    """The data set that the plan makes of the files at `path`, and perhaps of others for the test."""
    with memory_database() as base, ExitStack() as opened:

        def table(files: Files, option: str) -> StackedFiles:
            found = find_files(files, suffixes, option)
            columns = [opened.enter_context(open_file(base, file)) for file in found.paths]
            return stacked(found, columns, not plan.client, plan.wanted(columns))

        train = table(path, "path")
        far = None if test is None else table(test, "test")
        return build_dataset(train, far, replace(plan, client=(FILE,)) if train.clients else plan)


def build_dataset(train: StackedFiles, test: StackedFiles | None, plan: TablePlan) -> Dataset:
    """The data set that the plan makes of one table, or of two."""
    _one_test(test, plan)
    numbers, texts = _features(train, plan)
    columns, first = _read(train, test, plan, numbers, texts)
    everyone = {name: columns[name][:first] for name in plan.client}
    columns, first, notes = _complete(train.where, columns, first, plan)
    y = targets(columns[plan.label], plan.kind, plan.label)
    inside, outside = _split(columns, first, test is not None, plan, y)
    auto, scaled = plan.categorical == "auto", plan.standardise != "none"
    features = Features(numbers, texts, auto, plan.categories, plan.missing, scaled)
    target = _target(y, inside, plan)
    fitted = Preprocessing(*features.fit(train.where, columns, inside), plan.label, y.classes, target)
    tensors = {**fitted.apply(columns), "y": y.column if target is None else _scaled(target, y)}
    parts = tree.rows(tensors, inside), None if outside is None else tree.rows(tensors, outside)
    holders = {name: _clients(columns, name, inside) for name in plan.client}
    notes += [note for name in plan.client for note in _vanished(name, everyone[name], holders[name][1])]
    return Dataset(
        train.name,
        y.kind,
        *parts,
        inputs=(fitted.width,),
        outputs=y.outputs,
        decode=fitted.decode,
        keys={name: numbers for name, (numbers, _) in holders.items()},
        classes=y.classes,
        client_names={name: names for name, (_, names) in holders.items()},
        notes=tuple(notes),
        preprocessing=fitted.as_json(),
        fitted=features.fitted(columns, target is not None),
    ).check()


def _target(y: Targets, inside: Tensor, plan: TablePlan) -> Number | None:
    """How the target is standardised, if it is."""
    if y.kind != "regression" or plan.standardise != "all":
        return None
    return fitted_number(plan.label, y.y.numpy()[inside.numpy()])


def _scaled(target: Number, y: Targets) -> Tensor:
    return torch.from_numpy(target.apply(y.y.numpy()))


def _one_test(test: StackedFiles | None, plan: TablePlan) -> None:
    options = {"test": test, "test_by": plan.test_by, "test_share": plan.test_share}
    stated = [name for name, value in options.items() if value is not None]
    if len(stated) > 1:
        raise DataError(f"data.{stated[1]}: the test rows are already told by {stated[0]}. Leave one of them out.")


def _features(table: StackedFiles, plan: TablePlan) -> tuple[list[str], list[str]]:
    """The feature columns that are numbers, and those that become one-hot."""
    roles = [plan.label, *plan.client, *([plan.test_by] if plan.test_by else [])]
    for option, names in (("label", roles[:1]), ("client", plan.client), ("test_by", roles[1 + len(plan.client) :])):
        for name in names:
            table.need(name, option)
    chosen = [table.need(n, "features") for n in plan.features]
    left_out = {table.need(n, "exclude") for n in plan.exclude} | set(roles)
    if clash := [n for n in chosen if n in roles]:
        raise DataError(f"data.features: {clash[0]!r} is also the label, the client or test_by. Leave it out.")
    chosen = chosen or [n for n in table.holds if n not in left_out]
    hot = () if plan.categorical == "auto" else [table.need(n, "categorical") for n in plan.categorical]
    texts = [n for n in chosen if n in hot or (table.holds[n] == "texts" and plan.categorical == "auto")]
    numbers = [n for n in chosen if n not in texts]
    for name in numbers:
        if table.holds[name] != "numbers":
            _not_a_number(table, name)
    if not chosen:
        raise DataError(f"data.features: {table.name} has no column left to learn from beside {roles}.")
    return numbers, texts


def _not_a_number(table: StackedFiles, name: str) -> None:
    if table.holds[name] == "texts":
        what, instead = "text", f"Add it to categorical, or leave it out with exclude = ['{name}']"
    else:
        what, instead = table.holds[name], f"Leave it out with exclude = ['{name}'], or write numbers in its place"
    raise DataError(f"data.features: column {name!r} holds {what}, which is no number. {instead}.")


def _read(
    train: StackedFiles, test: StackedFiles | None, plan: TablePlan, numbers: list[str], texts: list[str]
) -> tuple[Columns, int]:
    """What is needed of both tables, one below the other, and how many rows are the first one's."""
    as_text = [*texts, *plan.client, *([plan.test_by] if plan.test_by else [])]
    as_number = list(numbers)
    (as_number if train.holds[plan.label] == "numbers" else as_text).append(plan.label)
    columns = train.read(as_number, as_text)
    first = len(columns[plan.label])
    if test is None:
        return columns, first
    inside = [n for n in [*as_number, *as_text] if n not in plan.client]  # who holds a test row is not asked
    for name in inside:
        test.need(name, "test")
        if name in as_number and test.holds[name] != "numbers":
            raise DataError(
                f"data.test: column {name!r} of {test.name} is no number everywhere; in "
                f"{train.name} it is. Make them alike."
            )
    further = test.read(as_number, [n for n in as_text if n in inside])
    none = np.full(len(further[plan.label]), "", object)
    return {n: np.concatenate([v, further.get(n, none)]) for n, v in columns.items()}, first


def _complete(where: str, columns: Columns, first: int, plan: TablePlan) -> tuple[Columns, int, list[str]]:
    """The columns without the rows that `missing` leaves out, and a note of how many these are.

    Where features are filled, a row without a label is of no use; who holds a row is never guessed.
    """
    absent = {n: missing_cells(v) for n, v in columns.items()}
    _check_present(where, absent, plan)
    labels = absent[plan.label]
    rows = np.logical_or.reduce(list(absent.values())) if plan.missing == "drop" else labels
    if rows[:first].all() or (len(rows) > first and rows[first:].all()):
        what = "every row misses something" if plan.missing == "drop" else "no row has a label"
        safe_read.refuse(where, f"{what}, so none is left", "Fill them: missing = 'mean'")
    if not rows.any():
        return columns, first, []
    what = f"without a label ({plan.label!r})" if not (rows & ~labels).any() else "that miss a value"
    notes = [f"{int(rows.sum()):,} of {len(rows):,} rows {what} are left out."]
    return {n: v[~rows] for n, v in columns.items()}, first - int(rows[:first].sum()), notes


def _check_present(where: str, absent: dict[str, NDArray[np.bool_]], plan: TablePlan) -> None:
    """Refuse what is missing and is neither filled nor left out."""
    if plan.missing == "drop":
        return
    holders = {*plan.client, plan.test_by}
    counted = {n: int(m.sum()) for n, m in absent.items() if m.any() and (plan.missing == "refuse" or n in holders)}
    if not counted:
        return
    several = ", ".join(f"{n!r} {count:,}" for n, count in list(counted.items())[:8])
    rows = np.logical_or.reduce([absent[n] for n in counted])
    fill = "" if holders & set(counted) else ", fill them with missing = 'mean', 'median' or 'zero'"
    fill += " (rows without a label are then left out)" if fill and plan.label in counted else ""
    safe_read.refuse(
        where,
        f"{int(rows.sum()):,} of {len(rows):,} rows miss a value ({several})",
        f"Leave those rows out with missing = 'drop'{fill}, or leave the columns out with exclude",
    )


def _split(columns: Columns, first: int, given: bool, plan: TablePlan, y: Targets) -> tuple[Tensor, Tensor | None]:
    if given:
        return torch.arange(first), torch.arange(first, len(y.y))
    if plan.test_by is None:
        return held_out(y.groups, 0.2 if plan.test_share is None else plan.test_share, plan.seed)
    values = columns[plan.test_by]
    wanted = str(plan.test_value).lower() if isinstance(plan.test_value, bool) else str(plan.test_value)
    test = np.equal(values, wanted)
    if not test.any() or test.all():
        there = numbered(values)[1]
        part = "no row has" if not test.any() else "every row has"
        raise DataError(
            f"data.test_value: {part} {wanted!r} in column {plan.test_by!r}.{safe_read.did_you_mean(wanted, there)} "
            f"It has {safe_read.list_names(there)}."
        )
    return torch.from_numpy(np.flatnonzero(~test)), torch.from_numpy(np.flatnonzero(test))


def _clients(columns: Columns, name: str, inside: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """The client of each training row, from 0, and what they are called."""
    places, names = numbered(columns[name][inside.numpy()])
    if len(names) < 2:
        raise DataError(
            f"data.client: column {name!r} has one value only ({names[0]!r}), so there would be one client. "
            "Name another column, or leave client out and say how to split the rows in [partition]."
        )
    return torch.from_numpy(places), tuple(names)


def _vanished(column: str, everyone: Array, left: Sequence[str]) -> list[str]:
    """Who has no training row, since all went to the test part or were left out."""
    counts = Counter(v for v in everyone.tolist() if v is not None)
    gone = [f"{name!r} ({count:,})" for name, count in sorted(counts.items()) if name not in set(left)]
    if not gone:
        return []
    more = f" and {len(gone) - 8:,} more" if len(gone) > 8 else ""
    return [
        f"No training row is left of these clients ({column}), whose rows are all in the test part or left out: "
        f"{', '.join(gone[:8])}{more}. In brackets how many rows each has."
    ]
