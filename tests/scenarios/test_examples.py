"""What the README and the examples say is what happens."""

import re
from pathlib import Path

import pytest

import atoll
from atoll.experiment import load
from tests.support.marks import slow
from tests.support.paths import ROOT

FILES = sorted((ROOT / "examples").glob("*.toml"))
SWEEPS = [path for path in FILES if "\n[sweep]" in path.read_text()]
EXAMPLES = [path for path in FILES if path not in SWEEPS]
SMALLER = {"shuffle": ["partition.clients=50"]}  # one by one a thousand clients take long


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
@pytest.mark.parametrize("shorter", [["engine=loop", "local.max_steps=2"], slow([])])
def test_every_example_file_runs(
    path: Path, shorter: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    smaller = SMALLER.get(path.stem, []) if shorter else []
    run = atoll.run(load(path, ["rounds=2", *shorter, *smaller]), tmp_path / "run")
    assert run.status == "finished"
    assert len(run.history) == 2


@pytest.mark.slow
@pytest.mark.parametrize("path", SWEEPS, ids=lambda p: p.stem)
def test_every_sweep_among_the_examples_runs(path: Path, tmp_path: Path) -> None:
    short = atoll.sweep.plan(path, ["rounds=1", "sweep.seeds=2", "engine=vector"])
    done = atoll.sweep.run(short, tmp_path / "sweep")
    assert done.status == "finished"
    assert len(done.runs) == len(atoll.sweep.plan(path).cells) * 2 / 3


def test_the_sweep_in_the_docs_is_what_it_says(tmp_path: Path) -> None:
    text = re.search(r"```toml\n(.*?)```", (ROOT / "docs" / "sweeps.md").read_text(), re.DOTALL)
    assert text
    (tmp_path / "grid.toml").write_text(text[1])
    assert len(atoll.sweep.plan(tmp_path / "grid.toml").cells) == 12


def test_the_file_in_the_readme_runs(tmp_path: Path) -> None:
    text = re.search(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert text
    (tmp_path / "my.toml").write_text(text[1])
    run = atoll.run(load(tmp_path / "my.toml", ["rounds=2"]), tmp_path / "run")
    assert {"loss", "accuracy"} <= run.final.keys()


@pytest.mark.usefixtures("without_figures")
def test_the_python_in_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code
    short = code[1].replace("rounds=30", "rounds=8")
    assert short != code[1]
    exec(short, {"__name__": "__main__"})
    assert float(capsys.readouterr().out) > 0.3
    assert (tmp_path / "python.html").exists()


def test_no_two_steps_of_the_readme_write_one_page() -> None:
    text = (ROOT / "README.md").read_text()
    pages = re.findall(r"-o (\S+\.html)|report\(\"(\S+\.html)\"\)", text)
    written = ["report.html", *("".join(page) for page in pages)]  # the first by `make run`
    assert len(written) > 2
    assert len(set(written)) == len(written)
