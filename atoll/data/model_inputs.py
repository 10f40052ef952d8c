"""What a model takes and what its answers mean, kept with a run: so that it can be used where its data is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from atoll import tree
from atoll.core import class_logits
from atoll.data.arrays import Kind, channels_first, column
from atoll.data.dataset import Dataset
from atoll.data.decode import Fields, Pixels, Same
from atoll.data.formats import Preprocessing, columns_of, read_new_rows
from atoll.errors import DataError


@dataclass(frozen=True)
class ModelInputs:
    """The shapes and the meaning of a data set, without its examples."""

    kind: Kind
    inputs: tuple[int, ...]
    outputs: int
    vocabulary: int | None
    whole: bool  # does the model take whole numbers (tokens)?
    targets: tuple[int, ...]  # the shape of one target
    whole_targets: bool
    classes: tuple[str, ...]
    fields: Fields | None  # the inputs by name, where there are several; then x has them side by side
    pixels: Pixels | None  # how whole numbers become what it takes, where these are pixels
    columns: Preprocessing | None  # what is done to the columns of a file

    @classmethod
    def of(cls, dataset: Dataset) -> ModelInputs:
        decoded = dataset.decode(tree.rows(dataset.train, slice(0, 1)))["x"]
        fields = dataset.decode if isinstance(dataset.decode, Fields) else None
        decoded = decoded if fields is None else dataset.train["x"]
        y = dataset.train["y"]
        shapes = dataset.kind, dataset.inputs, dataset.outputs, dataset.vocabulary, not decoded.is_floating_point()
        targets = tuple(y.shape[1:]), not y.is_floating_point()
        pixels = dataset.decode if isinstance(dataset.decode, Pixels) else None
        columns = None if dataset.preprocessing is None else Preprocessing.from_json(dataset.preprocessing)
        return cls(*shapes, *targets, dataset.classes, fields, pixels, columns)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> ModelInputs:
        pixels = table["pixels"] and Pixels(
            table["pixels"]["scale"], tuple(table["pixels"]["mean"]), tuple(table["pixels"]["std"])
        )
        fields = table["fields"] and Fields(tuple((name, tuple(shape)) for name, shape in table["fields"]["shapes"]))
        columns = table["columns"] and Preprocessing.from_json(table["columns"])
        shapes = {name: tuple(table[name]) for name in ("inputs", "targets", "classes")}
        return cls(**{**table, **shapes, "fields": fields, "pixels": pixels, "columns": columns})

    def decoded(self, x: Any, options: Mapping[str, Any]) -> Tensor:
        """Rows as the model takes them, from an array; or from a file or a table, where it was trained on one.

        `options`: of the training data, for how a file is read.
        """
        if self.columns is not None:
            is_path = isinstance(x, str | Path)
            columns = read_new_rows(Path(x), self.columns, options) if is_path else columns_of(x, self.columns)
            return self.columns.rows(columns)
        if isinstance(x, str | Path):
            raise DataError(f"x: this model was not trained on a table, so {x} cannot be read for it. Give an array.")
        return self._array(column(x, "x") if self.fields is None else _side_by_side(x, self.fields))

    def _array(self, x: Tensor) -> Tensor:
        if self.pixels is not None and not x.is_floating_point():
            x = self.pixels({"x": channels_first(x)})["x"]
        if tuple(x.shape[1:]) != self.inputs:
            raise DataError(f"x: rows have shape {tuple(x.shape[1:])}, and the model takes {self.inputs}.")
        return x.long() if self.whole else x.float()

    def call(self, module: nn.Module, rows: Tensor) -> Tensor:
        """The module's outputs for decoded rows; by name, where it takes several inputs."""
        if self.fields is None:
            out: Tensor = module(rows)
            return out
        named = module(**self.fields({"x": rows})["x"])
        return named["logits"] if isinstance(named, dict) else named  # type: ignore[no-any-return]

    def answers(self, out: Tensor) -> NDArray[Any]:
        """What the outputs say: names of classes (or their numbers), or targets in their own scale."""
        if self.kind == "regression":
            target = self.columns and self.columns.target
            values = out.double().numpy()
            values = values if not target else values * target.deviation + target.mean
            return np.asarray(values[:, 0] if values.shape[1:] == (1,) else values)
        best = class_logits(out).argmax(-1).numpy()
        return np.array(self.classes)[best] if self.classes else best

    def probabilities(self, out: Tensor) -> NDArray[Any]:
        """Of each class."""
        if self.kind == "regression":
            raise DataError("predict: a regression has no probabilities. Leave probabilities out.")
        return np.asarray(class_logits(out).double().softmax(-1).numpy())

    def example(self) -> Dataset:
        """Zeros in the place of examples: enough to build a model and an algorithm."""
        x = torch.zeros(4, *self.inputs, dtype=torch.int64 if self.whole else torch.float32)
        y = torch.zeros(4, *self.targets, dtype=torch.int64 if self.whole_targets else torch.float32)
        shapes = (self.inputs, self.outputs)
        decode = Same() if self.fields is None else self.fields
        return Dataset("example", self.kind, {"x": x, "y": y}, None, *shapes, decode, vocabulary=self.vocabulary)


def _side_by_side(x: Any, fields: Fields) -> Tensor:
    names = [name for name, _ in fields.shapes]
    if not isinstance(x, Mapping) or any(name not in x for name in names):
        raise DataError(f"x: the model takes several inputs. Give a dict with {', '.join(map(repr, names))}.")
    parts = [column(x[name], f"x[{name!r}]") for name in names]
    return torch.cat([part.reshape(len(part), -1) for part in parts], 1)
