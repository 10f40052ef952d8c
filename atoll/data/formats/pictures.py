"""Image files as one array of bytes."""

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from atoll.data.formats import safe_read
from atoll.errors import DataError

Side = Annotated[int, Field(ge=1)]
Size = Side | tuple[Side, Side]  # height and width, or both in one

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_DEEP = ("I", "F")  # modes with more than 8 bits, with or without a mark for the byte order


def read_images(paths: Sequence[Path], size: Size | None, grey: bool) -> Tensor:
    """uint8 (n, C, H, W): resized to `size` where given; otherwise all must be of one size."""
    with _no_bombs():  # around the threads, not in them: warning filters are the process's
        first = _from_file(paths[0], size, grey)
        safe_read.check_memory(len(paths) * first.size, paths[0].parent, "Set size to make the images smaller")
        pixels = np.empty((len(paths), *first.shape), np.uint8)

        def put(i: int) -> None:
            image = _from_file(paths[i], size, grey)
            if image.shape != first.shape:
                ours, theirs = (f"{s[1]} x {s[2]}" for s in (image.shape, first.shape))
                safe_read.refuse(paths[i], f"has {ours} pixels, {paths[0].name} {theirs}", "Set size, e.g. size = 64")
            pixels[i] = image

        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # Pillow decodes without the interpreter's lock
            for _ in pool.map(put, range(len(paths))):
                pass
    return torch.from_numpy(pixels)


def stack_images(images: Iterable[Any], size: Size | None, grey: bool) -> Tensor:
    """Images that Pillow has opened, as `read_images` has them."""
    pixels = [_pixels(image, "data.image", size, grey) for image in images]
    shapes = {image.shape for image in pixels}
    if len(shapes) > 1:
        two = " and ".join(f"{h} x {w}" for _, h, w in sorted(shapes)[:2])
        safe_read.refuse("data.image", f"the images differ in size ({two} pixels)", "Set size, e.g. size = 64")
    return torch.from_numpy(np.stack(pixels))


def _from_file(path: Path, size: Size | None, grey: bool) -> NDArray[np.uint8]:
    from PIL import Image  # here, so that atoll starts without it

    try:
        with Image.open(path) as image:
            return _pixels(image, str(path), size, grey)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as e:
        safe_read.refuse(path, f"is suspiciously large ({e})", "Make it smaller first")
    except (OSError, SyntaxError, ValueError) as e:
        if isinstance(e, DataError):
            raise
        safe_read.refuse(path, f"is no image, or damaged ({e})", "Fetch it again, or take it out")


def _pixels(image: Any, where: str, size: Size | None, grey: bool) -> NDArray[np.uint8]:
    """One image, channels first."""
    if image.mode.partition(";")[0] in _DEEP:
        safe_read.refuse(where, f"has more than 8 bits for each pixel (mode {image.mode})", "Save it with 8")
    image = image.convert("L" if grey else "RGB")
    if size is not None:
        height, width = (size, size) if isinstance(size, int) else size
        image = image.resize((width, height), 2)  # bilinear
    array = np.asarray(image, np.uint8)
    return array[None] if grey else array.transpose(2, 0, 1)


@contextmanager
def _no_bombs() -> Iterator[None]:
    """Inside, an image that claims very many pixels is an error."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def to_bytes(values: NDArray[Any], where: Path | str, instead: str) -> NDArray[np.uint8]:
    """Pixels from 0 to 1, which were bytes once, as bytes again: without loss, or not at all."""
    scaled = values * 255.0
    rounded = np.rint(scaled)
    if not (np.abs(scaled - rounded) < 1e-3).all() or rounded.min(initial=0) < 0 or rounded.max(initial=0) > 255:
        safe_read.refuse(where, "its pixels are not multiples of 1/255 from 0 to 1", instead)
    return rounded.astype(np.uint8)
