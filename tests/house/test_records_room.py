"""Folders of runs, sweeps and suites have one reader and one writer, `atoll/records/`, and it opens without torch."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from atoll.records import layout
from tests.house.test_rooms import ROOT

NAMES = {
    *(layout.RUN, layout.RECORD, layout.CLIENTS, layout.CHECKPOINT, layout.MODEL, layout.AUDIT),
    *(layout.PHASES, layout.PROFILE_PAGE, layout.TRACE, layout.SWEEP, layout.SWEEP_LOCK, layout.RESULTS),
}
PATTERNS = [re.escape(name) for name in sorted(NAMES)] + [layout.CLIENT_STATE.format(rounds=".*")]
NAMED = re.compile(rf"(\S*/)?({'|'.join(PATTERNS)})")  # a name or a path, not a sentence that has one in it


def named(source: str) -> list[tuple[int, str]]:
    """The files of our folders that a program names, with its lines."""
    texts = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return [(n.lineno, n.value) for n in texts if NAMED.fullmatch(n.value)]


def outside() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*.py") if ROOT / "records" not in p.parents)


def test_only_the_records_room_knows_the_names_of_files() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name!r}" for path in outside() for line, name in named(path.read_text())
    ]
    assert not found, "ask RunFolder, SweepFolder or SuiteFolder:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("x = folder / 'run.json'", ["run.json"]),
        ("x = f'{folder}/record.jsonl'", ["/record.jsonl"]),
        ("x = folder.glob('*/run.json')", ["*/run.json"]),
        ("x = f'memory-{rounds}.rows'", []),  # in pieces: what it is written to is named whole
        ("x = 'memory-*.rows'", ["memory-*.rows"]),
        ("x = 'name a folder, or its results.json'", []),
    ],
)
def test_the_test_itself_sees_names_of_files(source: str, found: list[str]) -> None:
    assert [name for _, name in named(source)] == found


def test_the_records_room_imports_torch_only_to_load_and_save_tensors() -> None:
    for path in sorted((ROOT / "records").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert "torch" not in {name.split(".")[0] for name in names}, f"{path}:{node.lineno}"


def test_no_front_door_that_must_be_fast_imports_torch() -> None:
    rooms = ", atoll.".join(("cli.main", "privacy", "records", "report", "report.suite", "schema", "stats"))
    code = f"import sys, atoll.{rooms}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
