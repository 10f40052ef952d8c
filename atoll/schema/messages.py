"""Mistakes in one line each: where, what, and what instead."""

import difflib
import re
from collections.abc import Collection, Iterable
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from atoll.records import renamed_option
from atoll.schema import toml
from atoll.schema.argument import Argument
from atoll.schema.limits import beyond
from atoll.schema.type_names import has_choice, sentence, short_toml

# More than the bound itself says, by the place of the value; of a list, by the place of any item.
HINTS = {
    "partition.alpha": "For an even split use partition.name = 'iid'.",
    "partition.clients": "To train on all data in one place use algorithm.name = 'centralised'.",
    "cohort.size": "For all clients use cohort.name = 'everyone'.",
    "local.batch": "0 means all examples of the client at once.",
    "local.epochs": "To stop earlier than after an epoch use local.max_steps.",
    "local.max_steps": "To go through all batches leave it out.",
    "evaluate.every": "To evaluate rarely use a large number.",
    "evaluate.holdout": "It is a share: 0.2 keeps a fifth of each client's examples.",
    "checkpoint.every": "0 means only at the end.",
    "clock.seconds_per_step": "0 is a client that computes in no time.",
    "clock.up_mbps": "For a link that takes no time leave it out; for clients out of reach use availability.",
    "clock.down_mbps": "For a link that takes no time leave it out; for clients out of reach use availability.",
    "clock.latency_ms": "It is the time of one way: 0 for a link without any.",
    "clock.loss": "It is a share of packets: 0.01 sends every hundredth again.",
    "clock.deadline": "To wait for everybody leave it out.",
    "clock.over_selection": "1.3 asks 13 clients and waits for 10.",
    "transform.share": "It is the share of the entries that are sent: 0.01 sends every hundredth.",
    "transform.bits": "They are bits of every number that is sent: half has 16, and without a compressor there are 32.",
    "transform.levels": "1 tells a number's sign and whether it is sent at all; 16 are usual.",
    "transform.rank": "A matrix is sent as two factors of so many columns: 2 to 8 are usual.",
    "secure.dropout": "It is the probability that a client is lost during the protocol: 0.1 loses every tenth.",
    "secure.fixed_point.bits": "Sums are modulo 2^bits: 32 is usual, and 24 take three quarters of its bytes.",
    "secure.protocol.splits": "One part is the vector itself: use 2, which keeps one part and gives one away.",
    "secure.threshold": "0.7 is a share of the cohort, 7 is a number of clients.",
}

EXAMPLES: dict[str, Any] = {
    "data": {"name": "digits"},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "rounds": 50,
    "lr": 0.1,
    "mu": 0.01,
    "alpha": 0.3,
    "clients": 20,
    "size": 10,
    "start": 0.1,
    "over": 50,
    "every": 20,
    "patience": 10,
    "per_client": 2,
    "path": "my.csv",
    "protocol": "secagg",
}
_ELSEWHERE = {
    "secure.protocol.threshold": "secure.threshold",
    "secure.protocol.bits": "secure.fixed_point.bits",
    "secure.protocol.insecure_seed": "secure.insecure_seed",
}
_OF_A_KIND = {"models": {"name": "mlp"}}
_CANDIDATES: tuple[Any, ...] = (0.1, 1, 2, 0.5, "text", True, [1], ["text"], [0.5], [[1]], {})

_BROKEN = {
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "finite_number": "a finite number",
}
_LENGTH = {"too_short": "at least {min_length}", "too_long": "at most {max_length}"}
_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "dict": "a table",
    "path": "a path",
}
_ALSO = {"learning_rate": "lr", "client_lr": "lr", "eta": "lr"}  # what others call it
_TOP = ("rounds", "seed", "label", "metric", "on_divergence")


def closest_name(word: object, known: Iterable[str]) -> str | None:
    """The known word that is most like this one.

    >>> closest_name("fedprx", ["fedavg", "fedprox"])
    'fedprox'
    """
    spelt = {k.lower(): k for k in known}
    if (also := _ALSO.get(str(word).lower())) in spelt:
        return also
    found = difflib.get_close_matches(str(word).lower(), spelt, n=1)
    return spelt[found[0]] if found else None


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """The question, to be put behind a message; nothing where no word is near."""
    meant = closest_name(word, known)
    return f" Did you mean {meant!r}?" if meant else ""


def unknown_name(at: str, name: str, known: Collection[str]) -> str:
    """A name that is in no dict."""
    guess = did_you_mean(name, known)
    if not guess and (dotted := re.fullmatch(r"(\w+(?:\.\w+)*)\.(\w+)", name)):
        guess = f" For code of your own write '{dotted[1]}:{dotted[2]}'."
    return f"{at}: {name!r} is not known.{guess} Known: {', '.join(known)}."


def unknown_option(at: str, key: str, owner: str, known: Collection[str]) -> str:
    """A key that is no argument."""
    if now := renamed_option(owner, key):
        return f"{at}: is called {now} now."
    if not known:
        return f"{at}: is not an option of {owner}, which has none.{_misplaced(at, key, owner)}"
    meant = closest_name(key, known)
    guess = f" Did you mean {meant}?" if meant else _misplaced(at, key, owner)
    return f"{at}: is not an option of {owner}.{guess} Options: {', '.join(known)}."


def intended(key: str, owner: str, known: Iterable[str]) -> str | None:
    """The option that was meant: what it is called now, or what it is most like."""
    return renamed_option(owner, key) or closest_name(key, known)


def missing(at: str, owner: str, argument: Argument) -> str:
    """A key that must be there."""
    value = example(argument)
    shown_example = "" if value is None else f" Example: {argument.name} = {toml.inline(value)}"
    return f"{at}: is missing; {owner} needs it.{shown_example}"


def example(argument: Argument) -> Any:
    """A value that the argument takes."""
    typical = EXAMPLES.get(argument.name, _OF_A_KIND.get(argument.kind or ""))
    if argument.kind or argument.table:
        return typical
    return next((x for x in (typical, *_CANDIDATES) if x is not None and not mistakes(argument, x, "")), None)


def mistakes(argument: Argument, value: Any, at: str) -> list[str]:
    """Everything that is wrong with a plain value."""
    if excess := beyond(argument.type, value, at):
        return [f"{place}: {what}{_hint(place)}" for place, what in excess]
    try:
        argument.read(value)
    except TypeError:
        return [_whole(argument, value, at)]
    except ValidationError as e:
        choice = has_choice(argument.type)
        return [_whole(argument, value, at)] if choice else [_explain(error, at) for error in e.errors()]
    return []


def _whole(argument: Argument, value: Any, at: str) -> str:
    wanted = sentence(argument.type)
    return f"{at}: must be {wanted} (got {short_toml(value)}).{_instead(wanted, value)}{_hint(at)}"


def _explain(error: ErrorDetails, at: str) -> str:
    """One of pydantic's errors, in our words."""
    kind, got = error["type"], error["input"]
    place = ".".join([at, *map(str, error["loc"])])
    if kind in _BROKEN:
        bound = _BROKEN[kind].format(**{k: _short(v) for k, v in error.get("ctx", {}).items()})
        return f"{place}: must be {bound} (got {short_toml(got)}).{_hint(place)}"
    if kind in _LENGTH:
        count = _LENGTH[kind].format(**error["ctx"])
        return f"{place}: must have {count} items (got {len(got)})."
    if kind == "literal_error":
        return f"{place}: must be {error['ctx']['expected']} (got {short_toml(got)}).{_choice(got, error)}"
    wanted = _TYPES.get(kind.rsplit("_", 1)[0], error["msg"])
    return f"{place}: must be {wanted} (got {short_toml(got)}).{_instead(wanted, got)}"


def _short(bound: Any) -> Any:
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound


def _hint(place: str) -> str:
    place = re.sub(r"\.\d+(?=\.)", "", place)
    return f" {HINTS[place]}" if place in HINTS else ""


def _misplaced(at: str, key: str, owner: str) -> str:
    """Of another table; or TOML's trap: a key after a [table] belongs to that table."""
    if at in _ELSEWHERE:
        return f" Write it as {_ELSEWHERE[at]}."
    if key in _TOP and owner != "an experiment":
        return f" For the experiment's {key} write it above the first [table]."
    return ""


def _choice(got: Any, error: ErrorDetails) -> str:
    return did_you_mean(got, re.findall(r"'([^']*)'", error["ctx"]["expected"]))


def _instead(wanted: str, got: Any) -> str:
    """How the same value is written rightly, where that is plain."""
    if wanted in ("a number", "a whole number") and isinstance(got, str) and _number(got, wanted):
        return f" Write {got.strip()} without quotes."
    if wanted == "a whole number" and isinstance(got, float) and got.is_integer():
        return f" Write {int(got)} without a point."
    if wanted == "true or false" and str(got).lower() in ("true", "false"):
        return f" Write {str(got).lower()} without quotes."
    if wanted == "text" and not isinstance(got, bool | str | list | dict | None):
        return f' Write "{short_toml(got)}" in quotes.'
    return f" Write [{short_toml(got)}]." if wanted == "a list" and not isinstance(got, dict) else ""


def _number(text: str, wanted: str) -> bool:
    try:
        int(text) if wanted == "a whole number" else float(text)
    except ValueError:
        return False
    return True
