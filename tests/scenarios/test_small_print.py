"""What commands and pages say in passing is true."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import atoll
from atoll.report import summary
from atoll.suites import prepare
from tests.support.shell import Shell, shell

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def sh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return shell(tmp_path, monkeypatch, capsys)


EXPERIMENT = """
rounds = 2
data = "digits"
partition = { name = "iid", clients = 4 }
algorithm = { name = "fedavg", lr = 0.1 }
engine = "vector"
"""


def test_the_python_block_of_the_page_on_suites_names_cells_that_there_are() -> None:
    block = (DOCS / "suites.md").read_text().split("## From Python")[1].split("```")[1]
    (only,) = re.findall(r'only=\["(.*?)"\]', block)
    (suite,) = re.findall(r'run\(\s*"(.*?)"', block)
    assert prepare(suite, size="smoke", only=[only]).chosen


@pytest.mark.parametrize("made", [False, True])
def test_ctrl_c_promises_no_checkpoint_that_is_not_there(
    sh: Shell, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    Path("e.toml").write_text(EXPERIMENT)
    if made:
        assert sh("run e.toml").code == 0

    def interrupted(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("atoll.runs.run", interrupted)
    done = sh("run e.toml --resume" if made else "run e.toml")
    assert done.code == 130
    said = " ".join(done.err.split())
    assert ("What was checkpointed is safe" in said) is made
    assert ("before the first checkpoint: there is nothing to go on from" in said) is not made


def test_ctrl_c_before_a_run_begins_says_so(sh: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("atoll.cli.run.load", interrupted)
    done = sh("run e.toml")
    assert (done.code, done.err.strip()) == (130, "Stopped while nothing was being run.")


def test_a_table_of_a_regression_fits_eighty_columns(tmp_path: Path) -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    y = 1000 * x.sum(1)
    folders = []
    for name in ("fedavg", "local"):
        for seed in range(2):
            folders.append(tmp_path / f"{name}-{seed}")
            options: dict[str, Any] = {"clients": [range(30), range(30, 60)], "rounds": 2, "engine": "vector"}
            options |= {"algorithm": {"name": name, "lr": 0.01}, "evaluate": {"holdout": 0.2, "after": True}}
            atoll.simulate(lambda: nn.Linear(3, 1), (x, y), (x, y), seed=seed, out=folders[-1], **options)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(summary(folders))
    lines = console.export_text().splitlines()
    heads = next(line.split() for line in lines if "seeds" in line)
    rows = [line for line in lines if line.strip().startswith(("fedavg", "local "))]
    assert heads[-1] in ("s/round", "gain")
    assert all(re.search(r"\d$", line.rstrip()) for line in rows), lines


class Branching(nn.Linear):
    """Looks at its input, so that it cannot be stacked."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if float(x.sum()) != 0.123 else super().forward(2 * x)


def test_simulate_says_why_it_runs_on_the_loop(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    options: dict[str, Any] = {"clients": [range(10), range(10, 20)], "algorithm": {"name": "fedavg", "lr": 0.1}}
    run = atoll.simulate(lambda: Branching(3, 2), (x, torch.arange(20) % 2), rounds=1, **options)
    assert run.info["engine"]["name"] == "loop"
    assert "atoll: loop engine, because" in " ".join(capsys.readouterr().err.split())
