"""The glossary speaks of code that is there."""

import re
from pathlib import Path

import pytest

import atoll

ROOM = Path(atoll.__file__).parent
PAGE = ROOM.parent / "docs" / "glossary.md"


def rows() -> list[tuple[list[str], list[str]]]:
    """Of every row of a table: the words of the code, and the files that define them."""
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in PAGE.read_text().splitlines()]
    tables = [row for row in cells if len(row) == 4 and row[0] not in ("read", "---")]
    return [(re.findall(r"`(\w+)`", row[1]), re.findall(r"`([\w/]+\.py)`", row[3])) for row in tables]


@pytest.mark.parametrize(("words", "files"), rows(), ids=lambda x: " ".join(x))
def test_a_word_of_the_glossary_stands_in_its_file(words: list[str], files: list[str]) -> None:
    assert files
    text = "\n".join((ROOM / file).read_text() for file in files)
    assert [word for word in words if not re.search(rf"\b{word}\b", text)] == []


def test_no_word_has_two_rows() -> None:
    words = [word for row, _ in rows() for word in row]
    assert sorted(set(words)) == sorted(words)
