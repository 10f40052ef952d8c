"""From named columns to a data set: who plays which part, which rows are for the test, what is missing."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from atoll import tree
from atoll.data.dataset import Dataset
from atoll.data.formats import safe_read
from atoll.data.formats.column_file import ColumnFile, Columns
from atoll.data.formats.column_file import absent as missing_cells
from atoll.data.formats.features import Features, standardised
from atoll.data.formats.label_encoding import Kind, Targets, numbered, targets
from atoll.data.formats.split import held_out
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


def dataset_from(
    open_table: Callable[[Path], AbstractContextManager[ColumnFile]], path: Path, test: Path | None, plan: TablePlan
) -> Dataset:
    """The data set that the plan makes of one file, or of two."""
    with ExitStack() as tables:
        train = tables.enter_context(open_table(safe_read.existing_file(path)))
        far = None if test is None else tables.enter_context(open_table(safe_read.existing_file(test, "test")))
        return build_dataset(train, far, plan)


def build_dataset(train: ColumnFile, test: ColumnFile | None, plan: TablePlan) -> Dataset:
    """The data set that the plan makes of one table, or of two."""
    _one_test(test, plan)
    numbers, texts = _features(train, plan)
    columns, first = _read(train, test, plan, numbers, texts)
    columns, first = _complete(train.path, columns, first, plan)
    y = targets(columns[plan.label], plan.kind, plan.label)
    inside, outside = _split(columns, first, test is not None, plan, y)
    auto, scaled = plan.categorical == "auto", plan.standardise != "none"
    features = Features(numbers, texts, auto, plan.categories, plan.missing, scaled)
    tensors, width, decode = features.columns(train.path, columns, inside)
    tensors["y"] = y.column
    if y.kind == "regression" and plan.standardise == "all":
        tensors["y"] = torch.from_numpy(standardised(y.y.numpy(), inside.numpy()))
    parts = tree.rows(tensors, inside), None if outside is None else tree.rows(tensors, outside)
    keys = {name: _clients(columns, name, inside) for name in plan.client}
    name, fitted = train.path.name, features.fitted(columns, y.kind == "regression" and plan.standardise == "all")
    return Dataset(name, y.kind, *parts, (width,), y.outputs, decode, keys, classes=y.classes, fitted=fitted).check()


def _one_test(test: ColumnFile | None, plan: TablePlan) -> None:
    options = {"test": test, "test_by": plan.test_by, "test_share": plan.test_share}
    stated = [name for name, value in options.items() if value is not None]
    if len(stated) > 1:
        raise DataError(f"data.{stated[1]}: the test rows are already told by {stated[0]}. Leave one of them out.")


def _features(table: ColumnFile, plan: TablePlan) -> tuple[list[str], list[str]]:
    """The feature columns that are numbers, and those that become one-hot."""
    roles = [plan.label, *plan.client, *([plan.test_by] if plan.test_by else [])]
    for option, names in (("label", roles[:1]), ("client", plan.client), ("test_by", roles[1 + len(plan.client) :])):
        for name in names:
            table.need(name, option)
    chosen = [table.need(n, "features") for n in plan.features]
    left_out = {table.need(n, "exclude") for n in plan.exclude} | set(roles)
    if clash := [n for n in chosen if n in roles]:
        raise DataError(f"data.features: {clash[0]!r} is also the label, the client or test_by. Leave it out.")
    chosen = chosen or [n for n in table.cells if n not in left_out]
    hot = () if plan.categorical == "auto" else [table.need(n, "categorical") for n in plan.categorical]
    texts = [n for n in chosen if n in hot or (table.holds[n] == "texts" and plan.categorical == "auto")]
    numbers = [n for n in chosen if n not in texts]
    for name in numbers:
        if table.holds[name] != "numbers":
            _not_a_number(table, name)
    if not chosen:
        raise DataError(f"data.features: {table.path.name} has no column left to learn from beside {roles}.")
    return numbers, texts


def _not_a_number(table: ColumnFile, name: str) -> None:
    if table.holds[name] == "texts":
        what, instead = "text", f"Add it to categorical, or leave it out with exclude = ['{name}']"
    else:
        what, instead = table.holds[name], f"Leave it out with exclude = ['{name}'], or write numbers in its place"
    raise DataError(f"data.features: column {name!r} holds {what}, which is no number. {instead}.")


def _read(
    train: ColumnFile, test: ColumnFile | None, plan: TablePlan, numbers: list[str], texts: list[str]
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
                f"data.test: column {name!r} of {test.path.name} is no number everywhere; in "
                f"{train.path.name} it is. Make them alike."
            )
    further = test.read(as_number, [n for n in as_text if n in inside])
    none = np.full(len(further[plan.label]), "", object)
    return {n: np.concatenate([v, further.get(n, none)]) for n, v in columns.items()}, first


def _complete(path: Path, columns: Columns, first: int, plan: TablePlan) -> tuple[Columns, int]:
    """The columns without rows that miss something, if that is wanted; else nothing may miss that must be there."""
    absent = {n: missing_cells(v) for n, v in columns.items()}
    rows = np.logical_or.reduce(list(absent.values()))
    if plan.missing == "drop":
        if rows[:first].all() or (len(rows) > first and rows[first:].all()):
            safe_read.refuse(path, "every row misses something, so none is left", "Fill them: missing = 'mean'")
        return {n: v[~rows] for n, v in columns.items()}, first - int(rows[:first].sum())
    roles = {plan.label, *plan.client, plan.test_by}
    counted = {n: int(m.sum()) for n, m in absent.items() if m.any() and (plan.missing == "refuse" or n in roles)}
    if counted:
        several = ", ".join(f"{n!r} {count:,}" for n, count in list(counted.items())[:8])
        affected = int(np.logical_or.reduce([absent[n] for n in counted]).sum())
        fill = "" if any(n in roles for n in counted) else ", fill them with missing = 'mean', 'median' or 'zero'"
        safe_read.refuse(
            path,
            f"{affected:,} of {len(rows):,} rows miss a value ({several})",
            f"Leave those rows out with missing = 'drop'{fill}, or leave the columns out with exclude",
        )
    return columns, first


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


def _clients(columns: Columns, name: str, inside: Tensor) -> Tensor:
    places, names = numbered(columns[name][inside.numpy()])
    if len(names) < 2:
        raise DataError(
            f"data.client: column {name!r} has one value only ({names[0]!r}), so there would be one client. "
            "Name another column, or leave client out and say how to split the rows in [partition]."
        )
    return torch.from_numpy(places)
