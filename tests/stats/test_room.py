"""The room as a whole: what it imports, what it says of itself."""

import doctest
import subprocess
import sys
from pathlib import Path

from atoll import stats

ROOT = Path(stats.__file__).parents[2]


def test_the_examples_of_the_page_run() -> None:
    found = doctest.testfile(str(ROOT / "docs" / "statistics.md"), module_relative=False)
    assert found.attempted > 15
    assert found.failed == 0


def test_importing_the_room_waits_for_neither_scipy_nor_torch() -> None:
    code = "import sys, atoll.stats; print([m for m in ('scipy', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_every_name_of_the_room_is_on_its_page_or_a_value() -> None:
    page = (ROOT / "docs" / "statistics.md").read_text("utf-8")
    functions = [name for name in stats.__all__ if name[0].islower()]
    hidden = {"half_width", "power", "row_ranks"}  # parts of others
    assert [name for name in functions if name not in page and name not in hidden] == []
