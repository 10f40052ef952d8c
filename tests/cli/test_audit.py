"""`atoll audit`, from the words typed to what is printed and written."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.cli import common
from atoll.cli import main as cli

EXPERIMENT: dict[str, Any] = {
    "rounds": 3,
    "data": "digits",
    "partition": {"name": "iid", "clients": 12},
    "cohort": {"name": "fixed", "size": 4},
    "task": {"model": "linear"},
    "local": {"max_steps": 2},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "engine": "vector",
}
PRIVACY = {"holds": True, "epsilon": 1.8712, "delta": 1e-3, "unit": "client", "adjacency": "zero-out"}
Shell = Callable[[str], tuple[int, str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return atoll.run(EXPERIMENT, tmp_path_factory.mktemp("made") / "run", device="cpu").folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy, for each test its own."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("run.json", "record.jsonl", "model.pt", "clients.json"):
        (folder / name).write_bytes((made / name).read_bytes())
    return folder


@pytest.fixture
def sh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)

    def typed(command: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["atoll", *shlex.split(command)])
        for console in (common.console, common.errors):
            monkeypatch.setattr(console, "width", 160)
        code = 0
        try:
            cli.main()
        except SystemExit as e:
            code = int(e.code or 0)
        said = capsys.readouterr()
        return code, said.out + said.err

    return typed


def changed(run: Path, **changes: Any) -> None:
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**info, **changes}))


def test_an_audit_is_printed_and_written(sh: Shell, run: Path) -> None:
    code, said = sh("audit run --shadows 4")
    assert code == 0, said
    for words in ("loss threshold, example", "likelihood ratio, client", "epsilon at least", "confidence of 95%"):
        assert words in said
    written = json.loads((run / "audit.json").read_text())
    assert [(a["name"], a["level"]) for a in written["attacks"]] == [
        ("loss threshold", "example"),
        ("likelihood ratio", "example"),
        ("loss threshold", "client"),
        ("likelihood ratio", "client"),
    ]
    for a in written["attacks"]:
        assert a["auc_interval"][0] <= a["auc"] <= a["auc_interval"][1]
        assert set(a["tpr_at_fpr"]) == {"0.01", "0.001"}
        assert a["epsilon_lower"] >= 0
        assert a["confidence"] == 0.95
        assert a["delta"] == pytest.approx(0.1 / (12 if a["level"] == "client" else 1438))
        assert a["members"] > 1
        assert a["others"] > 1
        assert a["note"]
        assert a["accounted"] is None


def test_a_second_audit_keeps_what_it_does_not_do_again(sh: Shell, run: Path) -> None:
    assert sh("audit run --attack loss")[0] == 0
    assert sh("audit run --attack loss --level client --delta 0.01 --confidence 0.9")[0] == 0
    found = {a["level"]: a for a in json.loads((run / "audit.json").read_text())["attacks"]}
    assert (found["client"]["delta"], found["client"]["confidence"]) == (0.01, 0.9)
    assert found["example"]["confidence"] == 0.95
    (run / "audit.json").write_text(json.dumps({"run": {"digest": "of another run"}, "attacks": list(found.values())}))
    assert sh("audit run --attack loss --level client")[0] == 0
    assert len(json.loads((run / "audit.json").read_text())["attacks"]) == 1


@pytest.mark.parametrize(("level", "least"), [("client", 1 / 12), ("example", 1 / 1438)])
def test_a_delta_that_is_too_large_is_noted(sh: Shell, run: Path, level: str, least: float) -> None:
    words = f"delta is above 1 / {level}s"
    assert words in sh(f"audit run --attack loss --level {level} --delta {least * 1.01}")[1]
    assert words not in sh(f"audit run --attack loss --level {level} --delta {least * 0.99}")[1]


def test_the_accounted_epsilon_stands_beside_it(sh: Shell, run: Path) -> None:
    changed(run, privacy={"client": PRIVACY})
    code, said = sh("audit run --attack loss")
    assert code == 0, said
    assert "1.872 (delta 0.001)" in said  # rounded up
    assert "Accounted, client-level: epsilon 1.872 (delta 0.001): zero-out." in said
    assert "Warning" not in said
    found = {a["level"]: a for a in json.loads((run / "audit.json").read_text())["attacks"]}
    assert found["client"]["accounted"]["epsilon"] == 1.8712
    assert (found["client"]["delta"], found["client"]["exceeds"]) == (1e-3, False)
    assert found["example"]["accounted"] is None  # a client's epsilon is not an example's


def test_a_guarantee_that_does_not_hold_is_not_shown_as_one(sh: Shell, run: Path) -> None:
    changed(run, privacy={"client": {**PRIVACY, "holds": False, "why": "noise_cohort"}})
    assert "Accounted" not in sh("audit run --attack loss --level client")[1]
    assert json.loads((run / "audit.json").read_text())["attacks"][0]["accounted"] is None


def test_a_bound_above_the_accounted_epsilon_is_a_warning(sh: Shell, tmp_path: Path) -> None:
    heart = {
        **EXPERIMENT,
        "rounds": 20,
        "data": {"name": "tests.support.random_labels:random_labels"},
        "cohort": "everyone",
        "local": {"epochs": 3, "batch": 10},
        "algorithm": {"name": "fedavg", "lr": 0.5},
        "evaluate": {"every": 20, "clients": 0},
        "task": {"model": {"name": "mlp", "widths": [64]}},
    }
    folder = atoll.run(heart, tmp_path / "heart", device="cpu").folder
    changed(folder, privacy={"example": {**PRIVACY, "unit": "example", "epsilon": 0.1}})
    code, said = sh("audit heart --attack loss --level example")
    assert code == 0
    assert "Warning: loss threshold, example: epsilon is at least" in said
    assert json.loads((folder / "audit.json").read_text())["attacks"][0]["exceeds"] is True
    # at a smaller delta the two say nothing of each other
    assert "Warning" not in sh("audit heart --attack loss --level example --delta 1e-6")[1]


def test_what_cannot_be_done_is_said_and_the_rest_is_done(sh: Shell, tmp_path: Path) -> None:
    atoll.run({**EXPERIMENT, "cohort": "everyone"}, tmp_path / "all", device="cpu")
    code, said = sh("audit all --attack loss")
    assert code == 0
    assert "Not done: loss threshold, client: --level: 12 of 12 clients took part" in said
    code, said = sh("audit all --attack loss --level client")
    assert code == 2
    assert "Use --attack lira" in said


def test_shadows_go_where_out_says(sh: Shell, run: Path, tmp_path: Path) -> None:
    code, said = sh("audit run --attack lira --level client --shadows 4 --targets 2 --out else")
    assert code == 0, said
    assert (tmp_path / "else" / "audit.json").exists()
    assert len(list((tmp_path / "else" / "audit" / "client").iterdir())) == 6
    assert not (run / "audit.json").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("audit nowhere", 1, "is not a run (it has no run.json)"),
        ("audit run/run.json", 1, "run.json: is not a run (it is a file). Name the folder of a run."),
        ("audit run --attack lira --shadows 3", 2, "--shadows: must be 4 or more, and even (got 3)"),
        ("audit run --attack lira --targets 0", 2, "--targets: must be 1 or more"),
        ("audit run --attack loss --delta 1.5", 2, "delta: must be at least 0 and below 1"),
        ("audit run --attack loss --confidence 1", 2, "confidence: must be between 0 and 1"),
        ("audit run --attack guess", 2, "loss"),
    ],
)
def test_mistakes_are_said_plainly(sh: Shell, run: Path, words: str, code: int, said: str) -> None:
    found = sh(words)
    assert found[0] == code
    assert said in found[1]
    assert "Traceback" not in found[1]
    assert not (run / "audit.json").exists()


def test_a_run_that_has_not_finished_is_refused(sh: Shell, run: Path) -> None:
    changed(run, status="interrupted")
    code, said = sh("audit run")
    assert code == 1
    assert "has not finished (interrupted). Go on with it (--resume) first." in said


def test_ctrl_c_says_how_to_go_on(sh: Shell, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import atoll.attacks.membership

    def stopped(*args: Any, **options: Any) -> None:
        options["told"]("example", 0.5, 5)
        raise KeyboardInterrupt

    monkeypatch.setattr(atoll.attacks.membership, "audit", stopped)
    code, said = sh("audit run")
    assert code == 130
    assert "the same command goes on from there" in said
