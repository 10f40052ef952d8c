"""Notebooks without Jupyter: their code cells are run in order, and outputs written as Jupyter would.

PYTHONPATH=$PWD python -m tests.support.notebooks examples/*.ipynb   # run them again, and keep what they print
"""

import ast
import base64
import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

Cell = dict[str, Any]


def executed(path: Path) -> dict[str, Any]:
    """The notebook with fresh outputs, run in an empty folder; what a cell raises is raised."""
    notebook: dict[str, Any] = json.loads(path.read_text())
    names: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        sys.path.insert(0, folder)
        try:
            codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
            for number, cell in enumerate(codes, start=1):
                cell["outputs"], cell["execution_count"] = _run("".join(cell["source"]), names, number), number
        finally:
            sys.path.remove(folder)
    return notebook


def _run(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """What a cell prints, and what its last expression is."""
    tree = ast.parse(source)
    last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None  # type: ignore[attr-defined]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), names)
        value = None if last is None else eval(compile(last, f"cell {number}", "eval"), names)
    text = printed.getvalue().replace(str(Path.cwd()), ".")
    outputs: list[dict[str, Any]] = [{"name": "stdout", "output_type": "stream", "text": _lines(text)}] if text else []
    if value is not None:
        outputs.append(
            {"data": _shown(value), "execution_count": number, "metadata": {}, "output_type": "execute_result"}
        )
    return outputs


def _shown(value: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {"text/plain": _lines(repr(value))}
    if "_repr_html_" in vars(type(value)):
        shown["text/html"] = _lines(value._repr_html_())
    if "_repr_png_" in vars(type(value)):
        shown["image/png"] = base64.b64encode(value._repr_png_()).decode()
    return shown


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        notebook = executed(Path(name).resolve())
        Path(name).write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
