"""docs/messages.md: its how-to runs as it stands."""

import re

from tests.support.paths import ROOT


def test_the_how_to_runs_and_is_short() -> None:
    (first, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "messages.md").read_text(), re.S)
    names: dict = {}
    exec(first, names)
    assert names["done"].results["pong"]["left"].item() == 0
    assert len(names["done"].log) == 8
    assert sum(bool(line.strip()) for line in first.splitlines()) <= 20
