"""The `atoll` command, from the words typed to the exit code."""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import atoll
from atoll.cli import check
from atoll.experiment import CATALOGUE
from atoll.runs import Run
from tests.support.shell import Shell, shell

pytestmark = pytest.mark.usefixtures("without_figures")
FILE = """
rounds = 3
engine = "loop"

[data]
name = "digits"

[partition]
name = "iid"
clients = 3

[task]
model = "linear"

[local]
max_steps = 2

[algorithm]
name = "fedavg"
lr = 0.1
"""


@pytest.fixture
def sh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Type a command in a folder of its own, with an experiment in e.toml."""
    (tmp_path / "e.toml").write_text(FILE)
    return shell(tmp_path, monkeypatch, capsys)


def test_run_prints_a_table_and_where_everything_is(sh: Shell, tmp_path: Path) -> None:
    said = sh("run e.toml --out here --set algorithm.lr=0.05 --set rounds=2 --device cpu")
    assert (said.code, said.err) == (0, "")
    assert "Engine: loop (chosen by name)" in said.out
    assert "fedavg" in said.out
    assert "Run:    here" in said.out
    assert "Report: here/report.html" in said.out
    done = Run(tmp_path / "here")
    assert len(done.history) == 2
    assert done.history[0]["settings"]["algorithm.lr"] == 0.05
    assert (tmp_path / "here" / "report.html").exists()


def test_without_a_terminal_a_run_writes_lines_and_a_verbose_one_more(sh: Shell) -> None:
    said = sh("run e.toml --out here --set rounds=20")
    assert said.out.startswith("fedavg: 20 rounds, begins, in here\nfedavg: round 2 of 20, accuracy 0.")
    assert said.out.count("fedavg: round ") == 10
    assert "fedavg: finished after round 20" in said.out
    said = sh("run e.toml --out there --set rounds=20 -v")
    assert said.out.count("fedavg: round ") == 20
    assert "train_loss" in said.out


def test_a_quiet_run_prints_nothing_and_writes_everything(sh: Shell, tmp_path: Path) -> None:
    assert sh("run e.toml --out here --quiet") == (0, "", "")
    assert (tmp_path / "here" / "report.html").exists()
    assert "Run:    there" in sh("run e.toml --out there").out
    said = sh("run e.toml --out here --quiet")
    assert (said.code, said.out) == (1, "")
    assert "holds a run already" in said.err


def test_a_run_that_is_refused_shows_no_bar(sh: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    from atoll.cli import common

    monkeypatch.setattr(common.console, "_force_terminal", True)
    assert "0:00" in sh("run e.toml --out here").out
    said = sh("run e.toml --set data.name=csv --set data.path=nowhere.csv --set data.label=y --out there")
    assert (said.code, said.out) == (2, "")


def test_a_note_is_printed(sh: Shell) -> None:
    assert "Note: 3 of 3 clients have fewer examples" in sh("run e.toml --set local.batch=1000 --out here").out


def test_a_run_whose_rounds_are_void_says_how_many(sh: Shell, tmp_path: Path) -> None:
    bounded = 'transform = ["equal_weights", { name = "clip_l2", max_norm = 1.0 }]'
    secure = '[secure]\nprotocol = "secagg"\ndropout = 0.999\n'
    (tmp_path / "void.toml").write_text(f"{bounded}\n{FILE}\n{secure}")
    said = sh("run void.toml --device cpu")
    assert said.code == 0, said.err
    assert "Note: secure.dropout: about 100% of rounds will be void" in said.out
    assert "Void:   3 of 3 rounds, of which nothing was learned" in said.out


def test_without_out_the_folder_is_named_after_the_experiment(sh: Shell, tmp_path: Path) -> None:
    sh("run e.toml --set rounds=1")
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"fedavg-[0-9a-f]{8}", folder.name)


def test_resume_goes_on_or_returns_what_is_there(sh: Shell, tmp_path: Path) -> None:
    assert sh("run e.toml --out here").code == 0
    before = (tmp_path / "here" / "record.jsonl").read_bytes()
    said = sh("run e.toml --out here")
    assert (said.code, said.out.count("Run:")) == (1, 0)
    assert "here: holds a run already. Go on with it (--resume), or name another folder." in said.err
    assert sh("run e.toml --out here --resume").code == 0
    assert (tmp_path / "here" / "record.jsonl").read_bytes() == before
    said = sh("run e.toml --out here --resume --set seed=1")
    assert said.code == 1
    assert "holds another experiment" in said.err


def test_a_run_that_stops_early_says_so(sh: Shell) -> None:
    said = sh("run e.toml --out here --set rounds=9 --set stop.patience=1 --set stop.threshold=0.99")
    assert said.code == 0
    assert "Stopped early: accuracy has not improved for 1 evaluations." in said.out


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("run nothing.toml", 2, "nothing.toml: there is no such file."),
        ("run e.tom", 2, "Did you mean e.toml?"),
        ("run bad.toml", 2, 'Text needs quotes: name = "fedavg"'),
        ("run e.toml --set rounds=0", 2, "rounds: must be at least 1 (got 0)"),
        ("run e.toml --set rounds", 2, "--set rounds: must be path=value"),
        ("run e.toml --set algorithm.name=fedavgg", 2, "Did you mean 'fedavg'?"),
        ("run e.toml --set cohort.name=fixed --set cohort.size=4", 2, "4 clients cannot be drawn from 3"),
        ("run e.toml --set stop.patience=1 --set stop.metric=mse", 2, "stop.metric: 'mse' is not measured"),
        ("run e.toml --set partition.clients=5000", 2, "partition"),
        ('run e.toml --set \'data={name="csv",path="no.csv",label="y"}\'', 2, "there is no file no.csv"),
        ("run e.toml --out e.toml", 1, "e.toml: is a file. Name a folder with --out."),
        ("run e.toml --out e.toml/run", 1, "e.toml: is a file. Name a folder with --out."),
        ("run e.toml --resume", 1, "there is no run to resume"),
        ("run e.toml --device gpu", 2, "device: must be 'auto', 'cpu', 'cuda' or one GPU"),
        ("run --set rounds=0", 2, "rounds: must be at least 1"),
        ("check e.toml --set algorithm.lr=-1", 2, "algorithm.lr: must be above 0"),
        ("check no.such.module:Mine", 2, "no.such.module:Mine: cannot be imported"),
        ("list fruits", 2, "list: 'fruits' is not known"),
        ("list algoritms", 2, "Did you mean 'algorithms'?"),
        ("report nowhere", 1, "nowhere: is not a run"),
        ("report e.toml", 1, "e.toml: is not a run"),
        ("report nowhere --figures gif", 2, "--figures: 'gif' is not known. Use png or pdf."),
        ("rnu e.toml", 2, "No such command 'rnu'"),
        ("run e.toml --sett a=b", 2, "No such option: --sett"),
        ("report", 2, "Missing argument"),
    ],
)
def test_mistakes_go_to_stderr_with_a_code_and_leave_nothing(
    sh: Shell, tmp_path: Path, command: str, code: int, words: str
) -> None:
    (tmp_path / "bad.toml").write_text("rounds = 3\nname = fedavg\n")
    before = sorted(tmp_path.iterdir())
    said = sh(command)
    assert said.code == code
    assert words in said.err
    assert words not in said.out
    assert sorted(tmp_path.iterdir()) == before


def test_a_list_of_nothing_in_particular_says_what_there_are_lists_of(sh: Shell) -> None:
    said = sh("list")
    assert said.code == 0
    assert all(word in said.out for word in ("algorithms", "fedprox", "partitions", "dirichlet", "sixty-seconds"))


def test_several_mistakes_are_all_shown_and_markup_is_not_read(sh: Shell) -> None:
    said = sh("run e.toml --set rounds=0 --set label=x[bold]x[/] --set seed=-1 --set 'task.model=m[red]'")
    assert said.err.startswith("These must be put right first:")
    assert "rounds:" in said.err
    assert "seed:" in said.err
    assert "[red]" in said.err


def test_a_run_that_diverges_ends_with_1(sh: Shell) -> None:
    said = sh("run e.toml --out here --set algorithm.lr=1e38")
    assert said.code == 1
    assert re.search(r"round \d: the loss or the update of 3 clients \(0, 1, 2\) is not finite", said.err)


def test_a_report_that_cannot_be_written_is_an_error_without_a_traceback(sh: Shell) -> None:
    sh("run e.toml --out here --set rounds=1")
    said = sh("report here -o e.toml/page.html")
    assert said.code == 1
    assert "e.toml" in said.err


@pytest.mark.parametrize("kind", CATALOGUE)
def test_everything_that_a_file_may_name_is_listed(sh: Shell, kind: str) -> None:
    said = sh(f"list {kind}")
    assert (said.code, said.err) == (0, "")
    assert f"{kind.capitalize()} ({len(CATALOGUE[kind])})" in said.out
    for name in CATALOGUE[kind]:
        assert re.search(rf"│ {re.escape(name)} ", said.out), name


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--set engine=vector --set engine.chunk=2",
        "--set engine=threads",
        "--set cohort.name=poisson --set cohort.probability=0.001",
        "--set round=gossip",
        "--set algorithm.name=local",
        "--set algorithm.name=centralised",
    ],
)
def test_check_says_what_would_run_and_writes_nothing(sh: Shell, tmp_path: Path, options: str) -> None:
    said = sh(f"check e.toml {options}")
    assert (said.code, said.err) == (0, "")
    for word in ("digits, 1,438 training examples", "650 parameters", "engine", "MB", "a round", "clients"):
        assert word in said.out
    assert [p.name for p in tmp_path.iterdir()] == ["e.toml"]


def test_check_says_what_noise_of_a_larger_cohort_stands_for(sh: Shell) -> None:
    noise = '{name="gaussian_noise",noise_multiplier=1.0,noise_cohort=500}'
    chain = f'transform=["equal_weights",{{name="clip_l2",max_norm=0.5}},{noise}]'
    said = sh(f"check e.toml --set privacy.simulate.population=10000 --set '{chain}'")
    assert said.code == 0, said.err
    told = " ".join(said.out.split())
    assert "; stands for epsilon" in told
    assert ".;" not in told


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0123, "0.012 s"), (0.4, "0.4 s"), (9.94, "9.9 s"), (9.96, "10 s"), (119.0, "119 s"), (180.0, "3 min")],
)
def test_a_short_run_is_not_said_to_take_no_time(seconds: float, said: str) -> None:
    assert check._minutes(seconds) == said


def test_report_puts_runs_side_by_side(sh: Shell, tmp_path: Path) -> None:
    for seed in (0, 1):
        sh(f"run e.toml --out run-{seed} --set seed={seed} --set rounds=2")
    said = sh("report run-0 run-1 -o pages/both.html --figures png --title 'Two seeds'")
    assert said.code == 0, said.err
    page = (tmp_path / "pages" / "both.html").read_text()
    assert "Two seeds" in page
    assert list(tmp_path.rglob("*.png"))
    assert "Report: pages/both.html" in said.out


def test_the_quickstart_runs_reports_and_is_not_run_twice(sh: Shell, tmp_path: Path) -> None:
    command = "run --set rounds=2 --set engine=loop --set local.max_steps=2"
    said = sh(command)
    assert said.code == 0, said.err
    folders = sorted(p for p in (tmp_path / "runs" / "quickstart").iterdir() if p.is_dir())
    assert [re.sub(r"-[0-9a-f]{8}$", "", p.name) for p in folders] == [
        f"{a}-{s}" for a in ("fedavg", "fedprox", "local") for s in (0, 1, 2)
    ]
    assert all(len(Run(p).history) == 2 for p in folders)
    assert "<html" in (tmp_path / "report.html").read_text()
    for word in ("fedavg", "fedprox", "local", "gain", "report.html"):
        assert word in said.out
    example = tmp_path / "runs" / "quickstart" / "quickstart.toml"
    assert f"change {example.relative_to(tmp_path)} and" in said.out
    assert atoll.experiment.load(example).rounds == 40
    before = [(p / "record.jsonl").stat().st_mtime_ns for p in folders]
    again = sh(command)
    assert again.code == 0
    assert "9 of 9 runs are in runs/quickstart already" in again.out
    assert "of 9 runs are in" not in said.out
    assert [(p / "record.jsonl").stat().st_mtime_ns for p in folders] == before


def test_an_interrupted_quickstart_says_how_to_go_on(
    sh: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atoll.runs import LogLines

    def interrupt(self: LogLines, run: object, entry: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(LogLines, "on_round", interrupt)
    said = sh("run --set rounds=3 --set engine=loop --set local.max_steps=2 --out 'my runs'")
    assert said.code == 130
    words = shlex.split(said.out.split("Go on with:\n")[1].strip())
    assert " ".join(words) == "atoll run --set rounds=3 --set engine=loop --set local.max_steps=2 --out my runs"
    assert words[-1] == "my runs"
    assert len(list((tmp_path / "my runs").iterdir())) == 1
    monkeypatch.undo()


def test_a_second_ctrl_c_stops_at_once(sh: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    from atoll.runs import LogLines

    def interrupt(self: LogLines, run: object, entry: object) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(LogLines, "on_round", interrupt)
    said = sh("run e.toml --out here")
    assert said.code == 130
    assert "Stopped at once, before the first checkpoint" in said.err  # which the first round did not reach


def test_help_has_a_short_name_and_no_line_of_it_is_cut(sh: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in ("", "data", "privacy"):
        said = sh(f"{command} -h")
        assert said.code == 0
        assert "Commands:" in said.out
        assert "..." not in said.out.split("Commands:")[1]
    assert "--install-completion" in sh("-h").out


def test_the_version_is_an_option_too(sh: Shell) -> None:
    assert sh("--version") == (0, f"{atoll.__version__}\n", "")


def test_a_list_is_named_in_the_singular_too(sh: Shell) -> None:
    assert sh("list engine") == sh("list engines")
    assert sh("list data").code == 0
    assert "not known" in sh("list engin").err


@pytest.mark.slow
def test_a_module_in_the_working_folder_is_found_and_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(FILE.replace('"fedavg"', '"mine:Mine"'))
    (tmp_path / "mine.py").write_text("from atoll.algorithms import FedAvg as Mine")
    (tmp_path / "torch.py").write_text("raise RuntimeError")
    code = "import sys; sys.path[:] = [p for p in sys.path if p]; from atoll.cli.main import main; main()"
    words = [sys.executable, "-c", code, "run", "e.toml", "--out", "here", "--quiet"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_data_show_takes_an_experiment(sh: Shell) -> None:
    said = sh("data show e.toml --set partition.clients=7")
    assert said.code == 0
    assert "7 clients" in said.out
    assert "1,438 rows" in said.out
    assert "3 clients" in sh("data show e.toml").out
    assert "data show" not in sh("data show nowhere.toml").out


def test_the_package_is_a_command() -> None:
    out = subprocess.run([sys.executable, "-m", "atoll", "version"], capture_output=True, text=True)
    assert (out.returncode, out.stdout.strip(), out.stderr) == (0, atoll.__version__, "")
    help_ = subprocess.run([sys.executable, "-m", "atoll", "--help"], capture_output=True, text=True)
    assert help_.returncode == 0
    for command in ("run", "check", "list", "report"):
        assert re.search(rf"^\W*{command}\b", help_.stdout, re.MULTILINE)
