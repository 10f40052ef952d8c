"""Commands typed in a folder, in this process."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from atoll.cli import main


class Said(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


Shell = Callable[[str], Said]


def shell(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int = 100
) -> Shell:
    """Types `atoll` and the rest of a command line; nothing may end in a traceback."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", str(columns))

    def typed(command: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["atoll", *shlex.split(command)])
        with pytest.raises(SystemExit) as e:
            main.main()
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Said(e.value.code if isinstance(e.value.code, int) else 0, out, err)

    return typed
