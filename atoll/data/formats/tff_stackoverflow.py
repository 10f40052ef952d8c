"""StackOverflow, as TensorFlow Federated has it."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field as Bound

from atoll.data.dataset import IGNORE, Dataset
from atoll.data.formats import safe_read
from atoll.data.formats.tff_hdf5 import Array, Field, TffExamples, read_tff, tff_dataset
from atoll.data.formats.tokenise import Vocabulary, Words, compact
from atoll.data.sources import Tokens
from atoll.tree import Tree

_BEGIN, _END = "<BOS>", "<EOS>"
Count = Annotated[int, Bound(ge=1)]


def tff_stackoverflow(
    path: Path,
    clients: Count | Literal["all"] = 1000,
    per_client: Count | Literal["all"] = 256,
    test_clients: Count | Literal["all"] = 200,
    field: str = "tokens",
    length: Count = 20,
    vocabulary: Vocabulary = 10_004,
    words: Path | None = None,
) -> Dataset:
    """StackOverflow of TensorFlow Federated (HDF5): the next word of posts; natural clients by "client", the user.

    `path` holds stackoverflow_train.h5 and stackoverflow_test.h5. The whole is 135 million sentences: the first
    `clients` and `test_clients` by name are read, and `per_client` sentences of each. A sentence is <BOS>, at most
    `length` words, and <EOS> if there is room. Tokens: 0 padding, 1 unknown, 2 <BOS>, 3 <EOS>, then the training
    words by frequency, `vocabulary` in all, or those of the file `words` (TFF's stackoverflow.word_count has them).
    `field` may be "title". Needs h5py: pip install 'atoll[hdf5]'. Authors of TensorFlow Federated (2019); Reddi et
    al. (2021), https://arxiv.org/abs/2003.00295.
    """
    folder, all_words = safe_read.existing_folder(path), Words()

    def convert(values: Array, where: str) -> Array:
        sentences = [_text(v, where).split()[:length] for v in values]
        return all_words.rows([[_BEGIN, *s, _END][: length + 1] for s in sentences], length + 1)

    fields = {field: Field((), (length + 1,), np.int32, convert)}
    names = ["stackoverflow_train.h5"], ["stackoverflow_test.h5"]
    train = read_tff(safe_read.required_member(folder, names[0]), fields, _most(clients), _most(per_client))
    test = read_tff(safe_read.required_member(folder, names[1]), fields, _most(test_clients), _most(per_client))
    final, size = all_words.settle(train.columns[field], vocabulary, (_BEGIN, _END), words)

    def columns(part: TffExamples) -> Tree:
        tokens = final[part.columns[field]]
        x, y = tokens[:, :-1], tokens[:, 1:]
        return {"x": compact(x, size), "y": compact(np.where(y > 0, y, IGNORE), size)}

    dataset = tff_dataset("stackoverflow", "next_token", (train, test), columns, (length,), size, Tokens(), size)
    return replace(dataset, fitted="" if words else "vocabulary")


def _most(count: int | Literal["all"]) -> int | None:
    return None if count == "all" else count


def _text(value: bytes | str, where: str) -> str:
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as e:
        safe_read.refuse(where, f"has a text that is no UTF-8 ({e})", "Fetch it again")
