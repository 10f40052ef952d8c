"""Data sets of Hugging Face."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from atoll.data.dataset import Dataset
from atoll.data.formats import safe_read
from atoll.data.formats.label_encoding import Kind
from atoll.data.formats.pictures import Size
from atoll.data.formats.python_columns import Columns, Reading, from_columns
from atoll.data.formats.split import Share
from atoll.data.formats.tokenise import Vocabulary
from atoll.errors import DataError

_SAVED = ("dataset_dict.json", "state.json")  # what save_to_disk leaves


def huggingface(
    path: str,
    label: str = "label",
    image: str | None = None,
    text: str | None = None,
    features: tuple[str, ...] = (),
    client: str | tuple[str, ...] = (),
    config: str | None = None,
    revision: str | None = None,
    train: str = "train",
    test: str = "test",
    kind: Kind | None = None,
    size: Size | None = None,
    grey: bool = False,
    length: Annotated[int, Field(ge=1)] = 200,
    vocabulary: Vocabulary = 10_000,
    test_share: Share = 0.2,
    seed: int = 0,
) -> Dataset:
    """A data set of Hugging Face, by its name on the hub or its folder: images, text or numbers.

    What is learned from is the column `image`, the column `text` (its first `length` words as tokens, 0 for padding,
    1 for an unknown word) or the columns `features`; where none is named it follows from what the columns hold.
    Without a split called `test` `test_share` of the rows is held out. Pin `revision`: what a name stands for may
    change. Needs the package datasets: pip install 'atoll[huggingface]'. No code of a data set is run.
    """
    splits = _loaded(path, config, revision)
    if train not in splits:
        raise DataError(
            f"data.train: {path} has no split {train!r}.{safe_read.did_you_mean(train, splits)} "
            f"It has {safe_read.list_names(list(splits))}."
        )
    holders = (client,) if isinstance(client, str) else client
    reading = Reading(label, image, text, features, holders, kind, size, grey, length, vocabulary, test_share, seed)
    return from_columns(path, splits[train], splits.get(test), reading)


def _loaded(path: str, config: str | None, revision: str | None) -> dict[str, Columns]:
    datasets = safe_read.import_extra("datasets", "huggingface")
    folder = Path(path).expanduser()
    try:
        if any((folder / name).is_file() for name in _SAVED):
            loaded = datasets.load_from_disk(str(folder))
        else:
            loaded = datasets.load_dataset(path, config, revision=revision)
    except Exception as e:  # the package raises whatever its parts raise
        raise DataError(
            f"data.path: {path} cannot be loaded ({type(e).__name__}: {str(e).partition(chr(10))[0]}). "
            "Give a name of the hub that needs no code of its own, or a folder that save_to_disk wrote."
        ) from e
    splits = loaded if hasattr(loaded, "keys") else {"train": loaded}
    return {name: _columns(splits[name]) for name in splits}


def _columns(split: Any) -> Columns:
    return {name: split[name] for name in split.column_names}
