"""The notebooks under examples/ run as they stand, and are kept with what they printed."""

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.notebooks import executed

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def kinds(notebook: dict[str, Any]) -> list[list[list[str]]]:
    """What kinds of output every code cell has: numbers may differ between machines."""
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [[sorted(o.get("data", {"text": ""})) for o in cell["outputs"]] for cell in codes]


def test_there_is_one_for_a_model_for_files_and_for_an_algorithm() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["own_algorithm", "own_csv", "own_model"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_was_committed_with_outputs_and_without_paths_of_a_machine(path: Path) -> None:
    text = path.read_text()
    assert any(kinds(json.loads(text)))
    assert not [place for place in (tempfile.gettempdir(), str(Path.home())) if f"{place}/" in text]
    assert "False" not in [
        x
        for c in json.loads(text)["cells"]
        for o in c.get("outputs", [])
        for x in o.get("data", {}).get("text/plain", [])
    ]


@pytest.mark.slow
def test_the_page_on_python_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    readme, page = ((ROOT / name).read_text() for name in ("README.md", "docs/python.md"))
    Path("my.toml").write_text(blocks(readme, "toml")[0])
    names: dict[str, Any] = {}
    for block in blocks(page, "python"):
        exec(block, names)
    assert len(Path("log.csv").read_text().splitlines()) > 1


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_was_kept_with(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "careful", raising=False)
    before = json.loads(path.read_text())
    assert kinds(executed(path)) == kinds(before)
