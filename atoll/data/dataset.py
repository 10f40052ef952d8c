"""Data sets: the examples, once, as compact columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from atoll import tree
from atoll.data.arrays import InputKind, Kind, as_inputs, column, infer, input_kind
from atoll.data.decode import Chained, Pixels, Same
from atoll.errors import DataError
from atoll.tree import Tree

LEARNED = ("classification", "regression", "next_token")
INPUT_KINDS = ("tokens", "pixels", "features")
IGNORE = -100  # a next-token target that is none


@dataclass(frozen=True, eq=False)
class Dataset:
    """Columns {"x": (n, ...), "y": (n, ...)}, what they mean, and who could hold them.

    classification: y int64 (n,). regression: y float32 (n, outputs). next_token: x and y int64 (n, T), y = -100
    where there is no target. `decode` turns one client's rows into what a model takes, of shape (B, *inputs).

    >>> data = Dataset.from_arrays([[0.0], [1.0], [2.0]], [0, 1, 1])
    >>> data.kind, data.inputs, data.outputs
    ('classification', (1,), 2)
    """

    name: str
    kind: Kind
    train: Tree
    test: Tree | None
    inputs: tuple[int, ...]  # the shape of one decoded x
    outputs: int  # classes, regression targets, or the vocabulary
    decode: Callable[[Tree], Tree] = Same()
    keys: dict[str, Tensor] = field(default_factory=dict)  # natural clients of the training rows, by name: int64 (n,)
    augment: Callable[[Tree], Tree] | None = None  # of a decoded training batch; draws from batch["key"]
    validation: Tree | None = None  # a third part, where the split has one
    vocabulary: int | None = None  # tokens that x can hold, where x is text
    classes: tuple[str, ...] = ()  # what the classes are called
    parties: dict[str, tuple[int, ...]] = field(default_factory=dict)  # vertical: whose are which columns of x
    ids: Tensor | None = None  # who or what each training row is about, so that parties can find it: int64 (n,)
    client_names: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of a key's clients, by the key's name
    notes: tuple[str, ...] = ()  # what a user should know of how it was read
    preprocessing: dict[str, Any] | None = None  # what was done to a file's columns, as JSON
    fitted: str = ""  # what of all training rows is in the coding of each: "means and deviations", "vocabulary"

    @property
    def training_decode(self) -> Callable[[Tree], Tree]:
        """What a batch goes through in training: `decode`, then `augment` if there is one."""
        return self.decode if self.augment is None else Chained(self.decode, self.augment)

    @property
    def examples(self) -> int:
        return len(self.train["x"])

    @property
    def labels(self) -> Tensor | None:
        """The class of each training row, where there are classes."""
        return self.train["y"] if self.kind == "classification" else None

    def digest(self) -> str:
        """A short fingerprint of every column and key."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        return tree.large_digest(self.tensors())

    def tensors(self) -> Tree:
        """Every column and key."""
        parts = {"train": self.train, "test": self.test or {}, "keys": self.keys}
        return parts | ({"validation": self.validation} if self.validation is not None else {})

    def check(self) -> Dataset:
        """This data set, or a DataError that says where, what, and what instead."""
        self._check_part("train", self.train)
        for part, held in (("test", self.test), ("validation", self.validation)):
            if held is not None:
                self._check_part(part, held)
                self._check_alike(part, held)
        decoded = self.decode(tree.rows(self.train, slice(0, 1)))["x"]
        shape = self.inputs if isinstance(decoded, dict) else tuple(decoded.shape[1:])
        if shape != self.inputs:
            self._refuse("inputs", f"{self.inputs}, but a decoded row has shape {shape}", "Use the decoded shape")
        for name, key in self.keys.items():
            if key.dtype != torch.int64 or key.shape != (self.examples,) or bool((key < 0).any()):
                self._refuse(f"keys[{name!r}]", "not one client number for each training row", "Use int64 (n,), from 0")
        self._check_names()
        self._check_meaning()
        return self

    def _check_names(self) -> None:
        for name, names in self.client_names.items():
            highest = int(self.keys[name].max()) if name in self.keys else len(names)
            if highest >= len(names):
                self._refuse(f"client_names[{name!r}]", f"{len(names)} names", "Give one for each number of the key")

    def _check_meaning(self) -> None:
        if self.classes and len(self.classes) != self.outputs:
            self._refuse("classes", f"{len(self.classes)} names for {self.outputs} outputs", "Give each one name")
        held = [c for columns in self.parties.values() for c in columns]
        if held and (len(set(held)) != len(held) or set(held) - set(range(self.inputs[-1]))):
            self._refuse("parties", "a column is held twice, or is none of x", f"Share out 0..{self.inputs[-1] - 1}")
        if self.ids is not None and (self.ids.dtype != torch.int64 or self.ids.shape != (self.examples,)):
            self._refuse("ids", "not one number for each training row", "Use int64 (n,)")

    def _check_alike(self, part: str, held: Tree) -> None:
        for name in ("x", "y"):
            ours, theirs = self.train[name].shape[1:], held[name].shape[1:]
            if ours != theirs:
                what = f"rows have shape {_shape(theirs)}, in train {_shape(ours)}"
                self._refuse(f"{part}.{name}", what, "Make them alike")

    def _check_part(self, part: str, columns: Tree) -> None:
        x, y = columns["x"], columns["y"]
        if len(x) == 0:
            self._refuse(part, "has no examples", "Leave test out (None) or give rows")
        if len(x) != len(y):
            self._refuse(part, f"x has {len(x)} rows and y has {len(y)}", "Give one target for each example")
        for name, values in columns.items():
            self._check_finite(f"{part}.{name}", values)
        if self.kind == "classification":
            self._check_whole(f"{part}.y", y, 1)
        elif self.kind == "next_token":
            self._check_whole(f"{part}.x", x, 2)
            self._check_whole(f"{part}.y", y, 2, ignore=True)
            if x.shape != y.shape:
                self._refuse(f"{part}.y", f"has shape {_shape(y.shape)}, x {_shape(x.shape)}", "Shift x by one for y")
        elif y.shape != (len(x), self.outputs) or not y.is_floating_point():
            self._refuse(f"{part}.y", f"is {y.dtype} of shape {_shape(y.shape)}", f"Use float32 (n, {self.outputs})")

    def _check_finite(self, where: str, values: Tensor) -> None:
        if not values.is_floating_point():
            return
        bad = ~torch.isfinite(values)
        if bool(bad.any()):
            first = int(bad.reshape(len(bad), -1).any(1).nonzero()[0, 0])
            self._refuse(
                where, f"{int(bad.sum())} values are not finite, the first in row {first}", "Fill or drop them"
            )

    def _check_whole(self, where: str, values: Tensor, axes: int, ignore: bool = False) -> None:
        if values.is_floating_point() or values.is_complex() or values.ndim != axes:
            self._refuse(where, f"is {values.dtype} with {values.ndim} axes", f"Use whole numbers with {axes}")
        bad = (values < 0) | (values >= self.outputs)
        if ignore:
            bad &= values != IGNORE
        if bool(bad.any()):
            at = tuple(bad.nonzero()[0].tolist())
            instead = f"Number them 0..{self.outputs - 1}, or set outputs to at least {int(values.max()) + 1}"
            self._refuse(where, f"{int(values[at])} in row {at[0]} is outside 0..{self.outputs - 1}", instead)

    def _refuse(self, where: str, what: str, instead: str) -> None:
        raise DataError(f"data {self.name!r}, {where}: {what}. {instead}.")

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        test: tuple[Any, Any] | None = None,
        kind: Kind | InputKind | None = None,
        outputs: int | None = None,
        *,
        name: str = "arrays",
        keys: dict[str, Any] | None = None,
    ) -> Dataset:
        """Numpy or torch arrays as a data set.

        `kind` says what is learned ("classification", "regression", "next_token") or what x holds ("tokens", "pixels",
        "features"). What is learned follows from y: whole numbers (n,) are classes, floats are regression targets,
        whole numbers of the shape of x are next tokens; 0 and 1 in several columns are labels, as floats. uint8 in the
        shape of images is pixels (0..255 to 0..1); all other numbers in x are features, as they are.
        """
        if kind not in (None, *LEARNED, *INPUT_KINDS):
            known = ", ".join(map(repr, (*LEARNED, *INPUT_KINDS)))
            raise DataError(f"kind: {kind!r} is not known. Known: {known}.")
        pair = column(x, "x"), column(y, "y")
        held_in: InputKind = kind if kind in INPUT_KINDS else input_kind(pair[0])  # type: ignore[assignment]
        learned: Kind = infer(*pair) if kind is None or kind in INPUT_KINDS else kind  # type: ignore[assignment]
        train = _columns(*pair, learned, held_in)
        part = None if test is None else (column(test[0], "test x"), column(test[1], "test y"))
        held = None if part is None else _columns(*part, learned, held_in)
        decode = Pixels() if train["x"].dtype == torch.uint8 else Same()
        width = outputs or _outputs([train] if held is None else [train, held], learned)
        inputs = tuple(decode(tree.rows(train, slice(0, 1)))["x"].shape[1:])
        numbers = {k: column(v, f"keys[{k!r}]").long() for k, v in (keys or {}).items()}
        words = 1 + max(int(c["x"].max()) for c in (train, held) if c) if held_in == "tokens" else None
        notes = _said(pair[0]) if kind is None and learned != "next_token" else ()
        return cls(name, learned, train, held, inputs, width, decode, numbers, vocabulary=words, notes=notes).check()


def _said(x: Tensor) -> tuple[str, ...]:
    """What was made of whole numbers, where that could have been something else."""
    if x.dtype == torch.uint8 and x.ndim == 2:
        return ("x is uint8 with 2 axes: its numbers are taken as they are. If they are pixels: kind = 'pixels'.",)
    return ()


def _columns(x: Tensor, y: Tensor, kind: Kind, held_in: InputKind) -> Tree:
    if kind == "next_token":
        return {"x": _whole(x), "y": _whole(y)}
    inputs = as_inputs(x, held_in)
    if kind == "classification":
        return {"x": inputs, "y": _whole(y)}
    return {"x": inputs, "y": y.float()[:, None] if y.ndim == 1 else y.float()}


def _whole(values: Tensor) -> Tensor:
    return values if values.is_floating_point() else values.long()  # check() refuses floats, with the reason


def _outputs(parts: list[Tree], kind: Kind) -> int:
    if kind == "regression":
        return int(parts[0]["y"].shape[-1])
    names = ("x", "y") if kind == "next_token" else ("y",)
    return 1 + max(int(p[n].max()) if p[n].numel() else 0 for p in parts for n in names)


def _shape(shape: torch.Size) -> tuple[int, ...]:
    return tuple(shape)
