"""What people have in a notebook, as columns."""

from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from atoll.errors import DataError

Kind: TypeAlias = Literal["classification", "regression", "next_token"]  # what is learned
InputKind: TypeAlias = Literal["tokens", "pixels", "features"]  # what x holds


def column(values: Any, where: str) -> Tensor:
    """A numpy or torch array on the host: float32, uint8 as it is, other whole numbers int64."""
    if isinstance(values, Tensor):
        x = values.detach().cpu()
        if x.is_complex() or x.layout != torch.strided:
            raise DataError(f"{where}: is {x.dtype}, {x.layout}. Give real numbers in a dense array.")
    else:
        try:
            array = np.asarray(values)
        except ValueError as e:
            raise DataError(
                f"{where}: is no array ({e}). Give rows of one length; the data of several clients as one array, with "
                "the client of each row (clients = ids)."
            ) from e
        if array.dtype.kind not in "biuf":
            raise DataError(f"{where}: has dtype {array.dtype}. Give numbers: encode text and categories first.")
        if array.dtype.kind in "iu" and array.dtype != np.uint8:
            array = array.astype(np.int64)  # torch has no arithmetic for the other unsigned types
        # torch wants memory of its own or memory it may write to
        x = torch.from_numpy(array if array.flags.writeable and array.flags.c_contiguous else array.copy())
    if x.ndim == 0:
        raise DataError(f"{where}: is a single number. Give an array with a row for each example.")
    if x.is_floating_point():
        return x.float()
    return x if x.dtype == torch.uint8 else x.long()


def infer(x: Tensor, y: Tensor) -> Kind:
    """What is to be learned, from the columns alone."""
    if y.is_floating_point():
        return "regression"
    if y.ndim == 1:
        return "classification"
    if y.ndim == 2 and y.shape[1] > 1 and x.shape != y.shape and bool(((y == 0) | (y == 1)).all()):
        return "regression"  # labels, each there or not
    if x.ndim == 2 and x.shape == y.shape and not x.is_floating_point():
        return "next_token"
    raise DataError(
        f"y: whole numbers of shape {tuple(y.shape)} beside x of shape {tuple(x.shape)} fit no kind. "
        "Use one label for each example (y.reshape(-1)), float targets, or tokens of one shape in x and y."
    )


def input_kind(x: Tensor) -> InputKind:
    """What whole numbers are where nobody says: bytes in the shape of images are pixels, all others numbers."""
    return "pixels" if x.dtype == torch.uint8 and x.ndim >= 3 else "features"


def as_inputs(x: Tensor, kind: InputKind) -> Tensor:
    """The column as it is kept: tokens as whole numbers, pixels as bytes, features as floats."""
    if kind == "tokens":
        if x.is_floating_point():
            raise DataError(f"x: is {x.dtype}, and tokens are whole numbers. Give them as integers.")
        return x.long()
    if kind == "pixels" and x.dtype != torch.uint8:
        raise DataError(f"x: is {x.dtype}, and kind = 'pixels' is for bytes 0..255. Use x.astype('uint8').")
    return channels_first(x) if kind == "pixels" else x.float()


def channels_first(x: Tensor) -> Tensor:
    """uint8 images (n, H, W) or (n, H, W, C) as (n, C, H, W); other shapes as they are."""
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[1] not in (1, 3, 4) and x.shape[3] in (1, 3, 4):
        return x.permute(0, 3, 1, 2).contiguous()
    return x
