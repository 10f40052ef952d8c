"""A room may import rooms above it in this list, never below, never a sibling; and from outside only its door."""

import ast
import functools
import sys
from pathlib import Path

import pytest

import atoll

ROOT = Path(atoll.__file__).parent

# From the ground floor up. Those in one line are siblings.
FLOORS = (
    ("errors", "tree", "schedules", "phases", "threefry", "cpu_threads", "kernel_launch"),
    ("rng",),
    ("stats",),
    ("clock",),
    ("records",),
    ("schema",),
    ("wire",),
    ("core",),
    ("privacy",),
    ("data",),
    ("attacks",),
    ("attacks.model",),
    ("tasks",),
    ("algorithms",),
    ("transforms",),
    ("protocols",),
    ("reducers",),
    ("engines",),
    ("engines.ranks",),
    ("rounds",),
    ("privacy.run",),
    ("experiment",),
    ("runs",),
    ("messages",),
    ("callbacks",),
    ("report",),
    ("suites.sweeps",),
    ("attacks.membership",),
    ("attacks.leakage",),
    ("suites",),
    ("analysis",),
    ("card",),
    ("testing",),
    ("cli",),
    ("__main__",),
)
HEIGHT = {room: i for i, floor in enumerate(FLOORS) for room in floor}
ONLY = {  # numbers and records: never torch, never what wrote them
    "stats": {"errors"},
    "clock": {"errors", "threefry"},
    "privacy": {"errors"},
    "records": {"errors", "stats"},
    "schema": {"errors", "records"},
    "report": {"errors", "stats", "clock", "records"},
    "wire": {"errors", "tree"},  # shapes and bytes: whoever sends says how
}

# Each with its reason, and only inside a function, so that nothing is imported before it is asked for.
ALLOWED = {
    ("runs/run_result.py", "report"): "Run.report() is a shorthand for `atoll report`",
    ("runs/profiling.py", "report"): "the page of a profile has the style of reports",
}

# Every folder with an __init__.py is a room with a door, also inside another one.
# Modules that others import past the door, each with its reason: (the file, the module).
PAST_THE_DOOR = {
    ("__main__.py", "cli.main"): "the program itself",
    ("analysis/contribution/reconstructed.py", "analysis.diff.recording_engine"): "an engine: the door has no torch",
    ("cli/data.py", "report.pictures"): "figures of partitions: a name for all of them, imported when one is drawn",
    ("data/measures/features.py", "data.partition.partition"): "partitions are designed by a measure: a circle",
    ("transforms/compress/fused_kernels.py", "rng.triton"): "functions of kernels, inlined; the door has no Triton",
    ("transforms/compress/selection_kernels.py", "rng.triton"): "the same",
    ("data/measures/labels.py", "data.partition.partition"): "partitions are designed by a measure: a circle",
}


def room_of(path: Path) -> str:
    return _room(".".join(path.relative_to(ROOT).with_suffix("").parts))


def _room(module: str) -> str:
    """The room of a module: the longest name in FLOORS that it begins with, or its first word."""
    module = module.removesuffix(".__init__")
    parts = module.split(".")
    names = (".".join(parts[:i]) for i in range(len(parts), 0, -1))
    return next((name for name in names if name in HEIGHT), parts[0])


def imports(path: Path) -> list[tuple[int, str, bool]]:
    """Every import of a room: its line, the room, and whether it stands at the top of the file."""
    module = ast.parse(path.read_text())
    top = set(map(id, module.body))
    found = []
    for node in ast.walk(module):
        at_top = id(node) in top
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{a.name}" for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level > 0:
            raise AssertionError(f"{path}:{node.lineno}: is a relative import. Write it out.")
        else:
            continue
        inside = [n.partition(".")[2] for n in names if n.split(".")[0] == "atoll"]
        found += [(node.lineno, _room(n) if n else "", at_top) for n in inside]
    return found


def offences(path: Path) -> list[str]:
    room, name = room_of(path), path.relative_to(ROOT).as_posix()
    if room == "__init__":
        return []  # the front door: names of other rooms, imported when they are first used
    if room not in HEIGHT:
        return [f"{name}: is in a room that FLOORS does not know. Put it on its floor."]
    found = []
    for line, other, at_top in imports(path):
        if other == room or other == "__version__":
            continue
        if other == "":
            found.append(f"{name}:{line}: imports the front door, which imports everything")
        elif other not in HEIGHT:
            found.append(f"{name}:{line}: imports {other!r}, which FLOORS does not know")
        elif (name, other) in ALLOWED and not at_top:
            continue
        elif HEIGHT[other] >= HEIGHT[room] or other not in ONLY.get(room, {other}):
            source = path.read_text().splitlines()[line - 1].strip()
            found.append(f"{name}:{line}: {room} may not import {other}: {source}")
    return found


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _door(module: str) -> str:
    """The innermost package that a module is in; a package is its own door."""
    parts = module.split(".")
    names = (".".join(parts[:i]) for i in range(len(parts), 0, -1))
    return next((n for n in names if (ROOT / n.replace(".", "/") / "__init__.py").exists()), "")


@functools.cache
def _exported(door: Path) -> set[str]:
    """The names that a door has."""
    body = ast.parse(door.read_text()).body
    imported = {a.asname or a.name for n in body if isinstance(n, ast.ImportFrom) for a in n.names}
    made = {t.id for n in body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    return (
        imported | made | {n.target.id for n in body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    )


def _is_module(name: str) -> bool:
    """Is it a module that its room's door does not have under the same name?"""
    room, _, last = name.rpartition(".")
    door = ROOT / room.replace(".", "/") / "__init__.py"
    there = (ROOT / name.replace(".", "/")).with_suffix(".py").exists()
    return there and not (room and last in _exported(door))


def modules(path: Path) -> list[tuple[int, str]]:
    """Every module or room of ours that a file imports something from, with its line."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, a.name) for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{a.name}" for a in node.names]
            found += [(node.lineno, n if _is_module(n.removeprefix("atoll.")) else node.module) for n in inner]
    ours = [(line, name.partition(".")[2]) for line, name in found if name.split(".")[0] == "atoll"]
    return sorted({(line, name) for line, name in ours if name})


def reached_in(path: Path) -> list[str]:
    """Imports that go past the door of another room. A room inside another may use what surrounds it."""
    me, name = _name(path), path.relative_to(ROOT).as_posix()
    found = []
    for line, other in modules(path):
        mine, theirs = _door(me), _door(other)
        around = f"{mine}.".startswith(f"{theirs}.") and _room(me) == _room(other)
        if theirs in ("", other) or mine == theirs or around or (name, other) in PAST_THE_DOOR:
            continue
        found.append(f"{name}:{line}: reaches into {other}. Import from atoll.{theirs}, and let its door have it.")
    return found


def test_rooms_are_entered_by_their_doors() -> None:
    found = [o for p in sorted(ROOT.rglob("*.py")) for o in reached_in(p)]
    assert not found, "\n".join(found)


def test_every_way_past_a_door_is_still_used() -> None:
    for name, module in PAST_THE_DOOR:
        assert module in [m for _, m in modules(ROOT / name)], f"{name} does not import {module} any more"


@pytest.mark.parametrize("room", sorted({room_of(p) for p in ROOT.rglob("*.py")}))
def test_a_room_imports_only_rooms_above_it(room: str) -> None:
    found = [o for p in sorted(ROOT.rglob("*.py")) if room_of(p) == room for o in offences(p)]
    assert not found, "\n".join(found)


def test_every_exception_is_still_needed() -> None:
    for name, other in ALLOWED:
        assert other in [o for _, o, _ in imports(ROOT / name)], f"{name} does not import {other} any more"


def test_reports_never_import_torch() -> None:
    for path in sorted((ROOT / "report").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [n for n in names if n.split(".")[0] == "torch"], f"{path}:{node.lineno}"  # type: ignore[attr-defined]


def test_the_privacy_room_is_numbers_only() -> None:
    for path in sorted((ROOT / "privacy").glob("*.py")):
        assert "import torch" not in path.read_text(), path


@pytest.mark.parametrize(
    ("path", "source", "words"),
    [
        ("core/new.py", "from atoll.engines import Loop", "core/new.py:1: core may not import engines"),
        ("algorithms/new.py", "import atoll.transforms.clip", "algorithms may not import transforms"),
        ("tree.py", "from atoll import rng", "tree may not import rng"),
        ("report/new.py", "def f():\n    from atoll import tree", "report/new.py:2: report may not import tree"),
        ("bedroom/new.py", "", "FLOORS does not know"),
        ("core/new.py", "import atoll", "imports the front door"),
    ],
)
def test_the_test_itself_sees_what_is_wrong(
    path: str, source: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(source)
    assert words in "\n".join(offences(tmp_path / path))


@pytest.mark.parametrize(
    ("path", "source", "words"),
    [
        ("stats/new.py", "from atoll.privacy.events import Event", "stats/new.py:1: reaches into privacy.events"),
        ("stats/new.py", "from atoll.privacy import events", "reaches into privacy.events. Import from atoll.privacy"),
        ("stats/new.py", "import atoll.privacy.events", "reaches into privacy.events"),
        ("stats/new.py", "def f():\n    from atoll.privacy.events import Event", "stats/new.py:2: reaches into"),
        ("stats/new.py", "from atoll.privacy import Event", ""),
        ("privacy/new.py", "from atoll.privacy.events import Event", ""),
        ("privacy/inner/new.py", "from atoll.privacy.events import Event", ""),  # its surroundings
        ("privacy/new.py", "from atoll.privacy.inner.deep import f", "reaches into privacy.inner.deep"),
    ],
)
def test_the_test_itself_sees_who_goes_past_a_door(
    path: str, source: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    for room in ("stats", "privacy", "privacy/inner"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text("from atoll.privacy.events import Event\n")
    for module in ("privacy/events.py", "privacy/inner/deep.py"):
        (tmp_path / module).write_text("")
    (tmp_path / path).write_text(source)
    said = "\n".join(reached_in(tmp_path / path))
    assert words in said
    assert bool(words) == bool(said)
