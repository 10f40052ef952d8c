"""Experiment files with something wrong in them: a valid one, drawn from all that a file can name, and mutated."""

import copy
import random
import string
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from atoll.errors import Accident, AtollError
from atoll.experiment import load
from atoll.experiment.catalogue import CATALOGUE, GIVEN
from atoll.experiment.setup import set_up
from atoll.experiment.signatures import schema
from atoll.records import RunFolder
from atoll.runs import RunLoop
from atoll.schema import toml
from atoll.schema.messages import example

Table = dict[str, Any]

# Of every kind what needs no file and no network, and is built in a moment.
_LOCAL = {"data": ["digits", "breast_cancer", "diabetes", "synthetic", "fcube"], "models": ["mlp", "linear", "cnn"]}
_TABLES: Table = {
    "local": {"epochs": 1, "batch": 16, "max_steps": 2},
    "evaluate": {"every": 1, "holdout": 0.2, "clients": 3, "rows": 50},
    "checkpoint": {"every": 2},
    "stop": {"patience": 2, "threshold": 0.1},
    "task": {"batch_norm": "average", "top_k": [2]},
    "privacy": {"delta": 1e-5},
}
WHOLE = [
    0,
    1,
    -1,
    2,
    3,
    7,
    100,
    10**5,
    10**6,
    2**31 - 1,
    2**31,
    2**53 + 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    10**40,
    -(2**63),
]
REAL = [0.0, -0.0, 0.5, 1.0, -1.0, 1e-9, 1e-38, 1e-300, 5e-324, 1e5, 1e20, 1e38, 1e39, 1e300, 1.7e308]
REAL += [float("nan"), float("inf"), float("-inf")]
TEXTS = [
    "",
    "a",
    "all",
    "auto",
    "mean",
    "\x00",
    "\u202e",
    "\U0001f4a5",
    "é" * 50,
    "x" * 5000,
    "../..",
    "/",
    "a:b",
    ":",
    "1e5",
]
TEXTS += ["os:abort_", "math:pi", "{}", "%s", "\ud7ff", "none", "nan"]


def drawn(draw: random.Random) -> Table:
    """A valid experiment, as far as signatures can tell; small."""
    table: Table = {
        "rounds": 2,
        "seed": draw.randrange(9),
        "engine": draw.choice(["loop", "vector", "auto", "threads"]),
    }
    table["data"] = {"name": draw.choice(["digits", "digits", *_LOCAL["data"]])}
    usual = {"name": draw.choice(["iid", "dirichlet"]), "clients": 4}
    table["partition"] = usual | ({"alpha": 0.5} if usual["name"] == "dirichlet" else {})
    if draw.random() < 0.3:
        table["partition"] = _entry(draw, "partitions")
    table["algorithm"] = _entry(draw, "algorithms")
    for key, kind in (("cohort", "cohorts"), ("reducer", "reducers"), ("round", "rounds")):
        if draw.random() < 0.3:
            table[key] = _entry(draw, kind)
    if draw.random() < 0.4:
        bounded = [{"name": "equal_weights"}, {"name": "clip_l2", "max_norm": 1.0}]
        table["transform"] = [*bounded, _entry(draw, "transforms")][draw.randint(0, 2) :]
    for name, inner in _TABLES.items():
        if name == "local" or draw.random() < 0.3:
            table[name] = dict(inner)
    if draw.random() < 0.4:
        table.setdefault("task", {})["model"] = _entry(draw, "models")
    return table


def _entry(draw: random.Random, kind: str) -> Table:
    """One of a kind with what it needs, and some of its options as they are by default."""
    name = draw.choice(_LOCAL.get(kind) or list(CATALOGUE[kind]))
    entry: Table = {"name": name}
    for argument in schema(CATALOGUE[kind][name], GIVEN.get(kind, ())).values():
        if argument.required:
            entry[argument.name] = example(argument)
        elif isinstance(argument.default, int | float | str) and draw.random() < 0.5:
            entry[argument.name] = argument.default
    known = schema(CATALOGUE[kind][name], GIVEN.get(kind, ()))
    small = {"clients": 4, "size": 2, "noise_multiplier": 0.5}
    return {k: v for k, v in entry.items() if v is not None} | {k: v for k, v in small.items() if k in known}


def mutated(draw: random.Random) -> str:
    """The text of a file with one to three mutations, rarely with some of its bytes changed too."""
    table = drawn(draw)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        draw.choice(MUTATIONS)(draw, table)
    text = toml.dumps(table)
    if draw.random() < 0.03:
        text += "\n" + draw.choice([f"z = {'[' * 3000}", f"{'a.' * 3000}b = 1", f"z = {'{a=' * 2000}", "[" * 5000])
    return _garbled(draw, text) if draw.random() < 0.1 else text


def _places(inside: Any) -> list[tuple[Any, Any]]:
    """Every container of the table and a key of it."""
    keys = list(inside) if isinstance(inside, dict) else range(len(inside)) if isinstance(inside, list) else []
    return [(inside, k) for k in keys] + [place for k in keys for place in _places(inside[k])]


def _a_value(draw: random.Random, like: Any = None) -> Any:
    if isinstance(like, bool) or like is None or draw.random() < 0.3:
        some = [True, date(2020, 2, 2), [], {}, [[1]], {"name": "digits"}, {"name": "cosine", "start": 1.0, "over": 2}]
        return copy.deepcopy(draw.choice([*some, draw.choice(WHOLE), draw.choice(REAL), draw.choice(TEXTS)]))
    if isinstance(like, int):
        return draw.choice(WHOLE)
    return draw.choice(REAL) if isinstance(like, float) else draw.choice(TEXTS)


def _replace(draw: random.Random, table: Table) -> None:
    inside, key = draw.choice(_places(table))
    inside[key] = _a_value(draw, inside[key])


def _number(draw: random.Random, table: Table) -> None:
    numbers = [(t, k) for t, k in _places(table) if isinstance(t[k], int | float)]
    inside, key = draw.choice(numbers)
    inside[key] = draw.choice(WHOLE if isinstance(inside[key], int) else REAL)


def _option(draw: random.Random, table: Table) -> None:
    """An option that the entry has and the file does not give."""
    kind = draw.choice(["partitions", "algorithms", "data", "engines", "cohorts"])
    key = {"data": "data", "engines": "engine"}.get(kind, kind.removesuffix("s"))
    entry = table.get(key)
    if isinstance(entry, str):
        entry = table[key] = {"name": entry}
    if isinstance(entry, dict) and entry.get("name") in list(CATALOGUE[kind]):
        known = schema(CATALOGUE[kind][entry["name"]], GIVEN.get(kind, ()))
        for name in draw.sample(sorted(known), min(1, len(known))):
            entry[name] = _a_value(draw, known[name].default if not known[name].required else example(known[name]))


def _remove(draw: random.Random, table: Table) -> None:
    inside, key = draw.choice(_places(table))
    if isinstance(inside, dict):
        del inside[key]


def _rename(draw: random.Random, table: Table) -> None:
    inside, key = draw.choice(_places(table))
    if isinstance(inside, dict) and key:
        i = draw.randrange(len(key))
        inside[draw.choice([key[:i] + key[i + 1 :], key + draw.choice(string.printable), key.upper(), *TEXTS])] = (
            inside.pop(key)
        )


def _swap(draw: random.Random, table: Table) -> None:
    (a, i), (b, j) = (draw.choice(_places(table)) for _ in range(2))
    a[i] = copy.deepcopy(b[j])


def _nest(draw: random.Random, table: Table) -> None:
    inside, key = draw.choice(_places(table))
    for _ in range(draw.choice([1, 2, 50])):
        inside[key] = [inside[key]] if draw.random() < 0.5 else {"name": inside[key]}


def _schedule(draw: random.Random, table: Table) -> None:
    inside, key = draw.choice(_places(table))
    inside[key] = _entry(draw, "schedules")


MUTATIONS: list[Callable[[random.Random, Table], None]]
MUTATIONS = [_replace, _number, _number, _number, _option, _option, _remove, _rename, _swap, _nest, _schedule]


def _garbled(draw: random.Random, text: str) -> str:
    """Characters cut out, doubled, or put in."""
    for _ in range(draw.randint(1, 4)):
        i, n = draw.randrange(len(text) + 1), draw.choice([1, 1, 5, 50])
        part = draw.choice(["", text[i : i + n] * 2, draw.choice('"[]{}=.,\n#\\\x00é'), "nan", "2020-01-01", "0x"])
        text = text[:i] + part + text[i + n :]
    return text


def tried(path: Path, scratch: Path) -> str:
    """Do with a file what `atoll check` does: "ready", or "refused" in words of ours; anything else raises.

    "OURS": an error of Python's that a line of atoll raised stands behind the refusal.
    """
    try:
        setup = set_up(load(path), "cpu")
        loop = RunLoop(setup, RunFolder(scratch))
        if (
            setup.population.size <= 20
            and int(setup.population.steps(loop.plan.trial(loop.state.round).ids).max()) <= 20
        ):
            loop.next_round()
    except AtollError as e:
        if isinstance(e.__cause__, Exception) and (accident := Accident.of(e.__cause__)).ours:
            return f"OURS {accident.error} at {accident.place}"
        return "refused" if len(str(e)) > 20 else "REFUSED WITHOUT A REASON"
    return "ready"
