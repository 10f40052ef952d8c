"""Chat, by user."""

import json
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from atoll.data.dataset import Dataset
from atoll.data.fetch import Download, Files, Offer, Package, ParsedColumns, Recipe, parsed_columns
from atoll.data.sources.windows import Targets, next_tokens, split_texts, stored
from atoll.data.text import Alphabet, Corpus, Ints, Vocabulary, characters, split_words

_CHAT_FILE = Download(
    "chitchat_dataset-0.9.0-py3-none-any.whl",
    "7bf89f36645e2d5ec87d53370c8e851b5a688479c7beb7079cb4c87fc5acea3e",
    8.2,
    Package("pip", "chitchat-dataset==0.9.0"),
    "chitchat_dataset/",
)
CHAT = Recipe(
    "chat",
    (Offer((_CHAT_FILE,), ("dataset.json",)),),
    "MIT (BYU PCC Lab)",
    "Myers, Etchart, Fulda: Conversational scaffolding: an analogy-based approach to response prioritization in "
    "open-domain dialogs. ICAART 2020 (the Chit-Chat dataset).",
    "https://github.com/BYU-PCCL/chitchat-dataset",
    kind="next character or word",
    clients="1,315 users",
)
_END = "\n"  # of a message


def chat(
    unit: Literal["character", "word"] = "character",
    targets: Targets = "all",
    window: Annotated[int, Field(ge=2)] | None = None,
    stride: Annotated[int, Field(ge=1)] | None = None,
    vocabulary: Annotated[int, Field(ge=3, le=32_000)] | None = None,
    folder: str | None = None,
) -> Dataset:
    """Chat: the next character or word in 258,145 messages between students; natural clients by "user" (1,315).

    Every user's messages in their order, with a line break (words: the token "\\n") behind each. `window`: 80
    characters or 20 words; `vocabulary`: at most 100 characters or 10,000 words, of the training text. `targets` and
    `stride` as in `shakespeare`. The last 20 % of every user's text is the test set; users with too little text for a
    window are left out.
    """
    size = vocabulary or (100 if unit == "character" else 10_000)
    cached = parsed_columns(CHAT, parse, folder, unit=unit, vocabulary=size)
    window = window or (80 if unit == "character" else 20)
    return next_tokens("chat", cached, "user", cached.notes["vocabulary"], targets, window, stride)


def parse(files: Files, unit: Literal["character", "word"], vocabulary: int) -> ParsedColumns:
    """The text of each user as one run of tokens."""
    texts_of: dict[str, list[str]] = {}
    talks = json.loads(files.read("dataset.json"))
    for talk in talks.values():
        for turn in talk["messages"]:
            for message in turn:
                texts_of.setdefault(message["sender"], []).append(message["text"])
    texts = [_END.join([*messages, ""]) for messages in texts_of.values()]
    if unit == "character":
        train, test = split_texts([characters(text) for text in texts])
        alphabet = Alphabet.most_common(np.concatenate(train), vocabulary)
        size, tokens = len(alphabet), list(alphabet.characters)
        parts = [alphabet.encoded(t) for t in train], [alphabet.encoded(t) for t in test]
    else:
        corpus = Corpus.read(texts, _with_ends)
        learned = split_texts(_runs(corpus.flat, corpus))[0]
        ends = np.cumsum([0, *map(len, learned)])
        every = np.ones(len(learned), np.bool_)
        word_vocabulary = Vocabulary.most_common(
            Corpus(np.concatenate(learned), ends, corpus.tokens), every, vocabulary
        )
        size, tokens = len(word_vocabulary), list(word_vocabulary.tokens)
        parts = split_texts(_runs(word_vocabulary.encoded(corpus), corpus))
    messages = sum(len(m) for m in texts_of.values())
    return ParsedColumns(
        stored(*parts), {"vocabulary": size, "tokens": tokens, "users": len(texts_of), "messages": messages}
    )


def _with_ends(text: str) -> list[str]:
    return [token for line in text.split(_END)[:-1] for token in (*split_words(line), _END)]


def _runs(flat: Ints, corpus: Corpus) -> list[Ints]:
    """What each text of the corpus has of `flat`."""
    return np.split(flat, corpus.offsets[1:-1])
