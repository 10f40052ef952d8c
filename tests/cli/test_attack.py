"""`atoll attack`, from the words typed to what is printed and written."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import atoll
from atoll.cli import main as cli

FILE = """
rounds = 2
data = "digits"
partition = { name = "iid", clients = 40 }
task = { model = { name = "mlp", widths = [16] } }
local = { batch = 0 }
algorithm = { name = "fedsgd", lr = 0.1 }
"""
Shell = Callable[[str], tuple[int, str]]


@pytest.fixture
def sh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text(FILE)

    def typed(command: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["atoll", *shlex.split(command)])
        code = 0
        try:
            cli.main()
        except SystemExit as e:
            code = int(e.code or 0)
        said = capsys.readouterr()
        return code, " ".join((said.out + said.err).split())

    return typed


@pytest.mark.usefixtures("without_figures")
def test_a_file_is_attacked_and_a_page_is_written(sh: Shell, tmp_path: Path) -> None:
    code, said = sh("attack my.toml --images 1 --victims 10 --among 50 --device cpu")
    assert code == 0
    assert "100.0% of the originals are the nearest of 50 candidates" in said
    assert "The attacker knows: the model that was broadcast" in said
    kept = json.loads((tmp_path / "attacks/my-fc/attack.json").read_text())
    assert (kept["victims"], kept["round"], kept["identification"]["rate"]) == (10, 1, 1.0)


@pytest.mark.usefixtures("without_figures")
def test_a_run_is_attacked_at_a_round_by_several_doors(sh: Shell, tmp_path: Path) -> None:
    atoll.run(tmp_path / "my.toml", tmp_path / "run", device="cpu", progress=False)
    code, said = sh("attack run --method inverting --victims 2 --steps 3 --round 2 --device cpu")
    assert code == 0
    assert (tmp_path / "run/attack-inverting/attack.html").is_file()
    code, said = sh("attack run --method loss --device cpu")
    assert code == 0
    assert "AUC" in said
    assert "Audit: " in said


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("attack my.toml --victims 0", "--victims: must be 1 or more"),
        ("attack my.toml --method lira", "attacks the model of a finished run. Name its folder"),
        ("attack my.toml --set task.model=cnn", "first dense layer of cnn does not. Use --method inverting"),
        ("attack my.toml --set algorithm.name=fedsgdd", "Did you mean 'fedsgd'?"),
        ("attack my.toml --method labels --defences", "compares reconstructions"),
        ("attack nowhere.toml", "nowhere.toml"),
    ],
)
def test_mistakes_of_newcomers_are_answered_with_advice(sh: Shell, command: str, words: str) -> None:
    code, said = sh(f"{command} --device cpu")
    assert code == 2
    assert words in said
