"""First impressions: what a command imports before it does anything."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import atoll
from atoll.cli import common, listing
from atoll.cli.main import app

HEAVY = {
    "dp_accounting",
    "duckdb",
    "jinja2",
    "matplotlib",
    "numpy",
    "pandas",
    "prv_accountant",
    "scipy",
    "sklearn",
    "sympy",
    "torch",
}
PRIVACY = "--delta 1e-6 --rounds 10 --population 1000 --cohort 10 --sampling poisson"
NUMBERS = [
    ["report", "nowhere"],
    ["leaderboard", "nowhere"],
    ["replay", "nowhere"],
    ["privacy", "epsilon", "--noise-multiplier", "2", *PRIVACY.split(), "--accountant", "rdp"],
    ["privacy", "calibrate", "--epsilon", "2", *PRIVACY.split(), "--accountant", "rdp"],
    ["privacy", "curve", "--noise-multiplier", "2", "--delta", "1e-4", "--rounds", "3", "--population", "100"],
]
HELP = [["--help"], *([*words, "--help"] for words in (["data"], ["privacy"]))]
HELP += [[name, "--help"] for name in get_command(app).commands if name not in ("data", "privacy")]  # type: ignore[attr-defined]


def imported(code: str, cache: Path | None = None) -> set[str]:
    """What is imported in a fresh process once the code has run."""
    tail = "\nimport json, sys\nprint('\\n' + json.dumps([*sys.modules]))"
    env = {**os.environ, **({"XDG_CACHE_HOME": str(cache)} if cache else {})}
    done = subprocess.run([sys.executable, "-c", code + tail], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def after(commands: list[list[str]], then: str, cache: Path | None = None) -> None:
    """Type commands in one fresh process; after each, `then` looks at `heavy`: what it should not have imported."""
    code = f"""
import sys
from atoll.cli.main import main
for words in {commands!r}:
    sys.argv = ["atoll", *words]
    try:
        main()
    except SystemExit as e:
        code = e.code or 0
    heavy = {HEAVY!r} & set(sys.modules)
    {then}, (words, code, heavy)"""
    imported(code, cache)


def test_the_package_itself_imports_nothing_heavy() -> None:
    found = imported("import atoll")
    assert not found & {*HEAVY, "pydantic", "rich", "typer"}


def test_no_help_and_no_version_imports_anything_heavy() -> None:
    after([*HELP, ["version"]], "assert not heavy and code == 0")


def test_a_command_about_numbers_and_records_needs_no_torch() -> None:
    after(NUMBERS, "assert 'torch' not in heavy and code in (0, 1)")


def test_a_list_is_read_once_and_then_printed_without_torch(tmp_path: Path) -> None:
    after([["list", "optimizers"]], "assert 'torch' in heavy and code == 0", tmp_path)
    after([["list", "optimizers"]], "assert not heavy and code == 0", tmp_path)


def test_a_list_is_read_again_when_the_package_or_the_file_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    reads = []
    monkeypatch.setattr(listing, "_read", lambda kind: reads.append(kind) or [("a", "an a", ["b = 1"])])
    assert listing._remembered("models") == [("a", "an a", ["b = 1"])]
    assert listing._remembered("models") == [["a", "an a", ["b = 1"]]]
    assert reads == ["models"]
    monkeypatch.setattr(listing, "_package_state", lambda: "another")
    listing._remembered("models")
    listing._remembered("models")
    assert reads == ["models"] * 2
    (tmp_path / "atoll" / "list.json").write_text("[]")
    listing._remembered("models")
    assert reads == ["models"] * 3


def test_tests_keep_no_list_in_the_cache_of_the_user() -> None:
    assert not listing._cache().is_relative_to(Path.home() / ".cache")


def test_a_list_is_printed_where_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "atoll").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(listing, "_read", lambda kind: [("a", "an a", [])])
    assert listing._remembered("models") == [("a", "an a", [])]


def test_running_the_quickstart_imports_neither_plots_nor_statistics_before_the_first_round(tmp_path: Path) -> None:
    code = f"""
import os, sys
os.chdir({str(tmp_path)!r})
from atoll.cli.main import main
from atoll.runs import LogLines
def look(log, run, entry):
    late = {HEAVY - {"numpy", "torch"}!r} & set(sys.modules)
    assert not late, late
    sys.exit(7)
LogLines.on_round = look
sys.argv = ["atoll", "run", "--set", "engine=loop", "--set", "local.max_steps=1"]
try:
    main()
except SystemExit as e:
    assert e.code == 7"""
    imported(code)


def test_the_collector_rests_only_while_torch_is_imported_for_the_first_time() -> None:
    code = """
import gc, sys
from atoll.cli.common import imports
with imports():
    assert not gc.isenabled()
assert gc.isenabled() and gc.get_freeze_count() > 0
gc.unfreeze()
sys.modules["torch"] = gc
with imports():
    assert gc.isenabled()
assert gc.get_freeze_count() == 0"""
    imported(code)


def test_tables_in_a_file_are_wider_than_a_terminal_of_80(tmp_path: Path) -> None:
    code = "import sys; from atoll.cli import common, main; sys.argv = ['atoll', 'version']\ntry: main.main()\n"
    code += "except SystemExit: print(common.console.width)"
    env = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    said = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**env, **more}).stdout
        for more in ({}, {"COLUMNS": "70"})
    ]
    assert said == [f"{atoll.__version__}\n{width}\n" for width in (120, 70)]


def test_options_are_typed_again_only_where_they_were_typed() -> None:
    assert common.retyped("--out", Path("my runs")) == ["--out", "my runs"]
    assert common.retyped("--device", "auto", "auto") == []
    assert common.retyped_overrides(["a=1", "b=2"]) == ["--set", "a=1", "--set", "b=2"]


def test_two_runs_are_compared_without_torch(tmp_path: Path) -> None:
    base = {
        "rounds": 2,
        "data": "digits",
        "partition": {"name": "iid", "clients": 4},
        "task": {"model": "linear"},
        "local": {"max_steps": 1},
    }
    folders = [str(tmp_path / str(rate)) for rate in (0.1, 0.2)]
    for folder, rate in zip(folders, (0.1, 0.2), strict=True):
        atoll.run({**base, "algorithm": {"name": "fedavg", "lr": rate}}, folder)
    code = f"import sys; from atoll.cli.main import main; sys.argv = ['atoll', 'compare', *{folders!r}]\n"
    modules = imported(code + "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code")
    assert "torch" not in modules
    assert "atoll.analysis.diff.find_difference" in modules
