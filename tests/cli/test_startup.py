"""First impressions: what a command imports before it does anything."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import atoll
from atoll.cli import common, listing, remembered
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
SMALL = {"data": "digits", "partition": {"name": "iid", "clients": 2}, "algorithm": {"name": "fedavg", "lr": 0.1}}
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


@pytest.mark.slow
def test_a_command_about_numbers_and_records_needs_no_torch() -> None:
    after(NUMBERS, "assert 'torch' not in heavy and code in (0, 1)")


@pytest.mark.slow
def test_a_list_is_read_once_and_then_printed_without_torch(tmp_path: Path) -> None:
    after([["list", "optimizers"]], "assert 'torch' in heavy and code == 0", tmp_path)
    after([["list", "models"]], "assert not heavy and code == 0", tmp_path)
    after([["list", "modles"]], "assert heavy <= {'numpy'} and code == 2", tmp_path)


@pytest.fixture
def typo(tmp_path: Path) -> str:
    """A file with three mistakes."""
    file = tmp_path / "typo.toml"
    file.write_text(
        'rounds = 1\ndata = "digits"\npartition = { name = "dirichlet", clients = 4, alpah = 0.3 }\n'
        'algorithm = { name = "fedprx" }\n[local]\nepochs = 0\n'
    )
    return str(file)


@pytest.mark.slow
def test_mistakes_in_a_file_are_said_without_torch_and_word_by_word_as_with_it(tmp_path: Path, typo: str) -> None:
    code = "import sys; from atoll.cli.main import main; sys.argv = ['atoll', {!r}, {!r}]; main()"
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    said = []
    for command in ("run", "run", "check"):
        words = [sys.executable, "-c", code.format(command, typo)]
        done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
        assert done.returncode == 2
        said.append(done.stderr)
    assert said[0] == said[1] == said[2]
    assert all(word in said[0] for word in ("Did you mean alpha?", "Did you mean 'fedprox'?", "must be at least 1"))
    after([["run", typo], ["check", typo], ["data", "show", typo]], "assert heavy <= {'numpy'} and code == 2", tmp_path)


def test_a_file_that_cannot_be_read_needs_no_torch_even_the_first_time(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("rounds = .5")
    files = [str(tmp_path / name) for name in ("broken.toml", "not_there.toml")]
    after([["run", file] for file in files], "assert heavy <= {'numpy'} and code == 2", tmp_path)


def test_what_was_read_is_read_again_when_the_package_or_the_file_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    reads = []
    monkeypatch.setattr(remembered, "_read_suites", lambda: reads.append(0) or [["a", "an a", ["b = 1"]]])
    for _ in range(2):
        assert remembered.remembered("suites") == [["a", "an a", ["b = 1"]]]
    assert len(reads) == 1
    monkeypatch.setattr(remembered, "_package_state", lambda: "another")
    for _ in range(2):
        remembered.remembered("suites")
    assert len(reads) == 2
    remembered._path().write_text("[]")
    remembered.remembered("suites")
    assert len(reads) == 3


def test_the_state_of_the_package_is_another_when_a_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "_PACKAGE", tmp_path)
    states = [remembered._package_state()]
    for name in ("a.py", "b.toml"):
        (tmp_path / name).write_text("")
        states.append(remembered._package_state())
    os.utime(tmp_path / "a.py", (0, 0))
    states.append(remembered._package_state())
    assert len(set(states)) == 4
    assert remembered._package_state() == states[-1]


def test_suites_and_signatures_are_kept_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(remembered, "_read_suites", lambda: ["s"])
    monkeypatch.setattr(remembered, "_read_catalogue", lambda: {"lists": {}})
    remembered.remembered("suites")
    remembered.remembered("catalogue")
    assert (remembered.kept("suites"), remembered.kept("catalogue")) == (["s"], {"lists": {}})


def test_tests_keep_nothing_in_the_cache_of_the_user() -> None:
    assert not remembered._path().is_relative_to(Path.home() / ".cache")


def test_a_list_is_printed_where_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "atoll").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(remembered, "_read_suites", lambda: [["a", "an a", []]])
    assert listing._rows("suites") == [["a", "an a", []]]


@pytest.mark.slow
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
    imported(code, tmp_path)
    after([["list", "models"]], "assert not heavy and code == 0", tmp_path)  # it has read signatures on the way


@pytest.mark.slow
def test_a_page_of_a_few_seeds_needs_neither_torch_nor_scipy_and_leaves_matplotlibs_help_alone(tmp_path: Path) -> None:
    for seed in (0, 1):
        atoll.run(
            {"rounds": 1, "seed": seed, "engine": "loop", "local": {"max_steps": 1}} | SMALL, tmp_path / str(seed)
        )
    words = ["report", *(str(tmp_path / str(seed)) for seed in (0, 1)), "-o", str(tmp_path / "page.html")]
    code = f"""
import sys
from atoll.cli.main import main
sys.argv = ["atoll", *{words!r}]
try:
    main()
except SystemExit as e:
    assert not e.code
from matplotlib import artist, lines
assert "linewidth" in artist.kwdoc(lines.Line2D)"""
    found = imported(code, tmp_path)
    assert "matplotlib.figure" in found
    assert not found & {"torch", "scipy", "matplotlib.pyplot"}
    assert "±" in (tmp_path / "page.html").read_text()  # there is an interval


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


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of two runs that differ in their rates."""
    base = {
        "rounds": 2,
        "data": "digits",
        "partition": {"name": "iid", "clients": 4},
        "task": {"model": "linear"},
        "local": {"max_steps": 1},
    }
    made = [str(tmp_path_factory.mktemp("runs") / "run") for _ in range(2)]
    for folder, rate in zip(made, (0.1, 0.2), strict=True):
        atoll.run({**base, "algorithm": {"name": "fedavg", "lr": rate}}, folder)
    return made


def modules_of(*words: str) -> set[str]:
    """What a command that succeeds has imported."""
    code = f"import sys; from atoll.cli.main import main; sys.argv = ['atoll', *{words!r}]\n"
    return imported(code + "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code")


def test_two_runs_are_compared_without_torch(folders: list[str]) -> None:
    modules = modules_of("compare", *folders)
    assert "torch" not in modules
    assert "atoll.analysis.diff.find_difference" in modules


@pytest.mark.slow
def test_a_run_is_reported_without_torch_and_without_statistics(folders: list[str], tmp_path: Path) -> None:
    modules = modules_of("report", folders[0], "-o", str(tmp_path / "page.html"))
    assert modules & HEAVY == {"jinja2", "matplotlib", "numpy"}
