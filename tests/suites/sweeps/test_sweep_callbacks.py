"""Callbacks of sweeps and suites: every run has its own, in a stack as in worker processes."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.errors import ConfigError
from tests.support.marks import slow
from tests.support.told_runs import Told

pytestmark = pytest.mark.usefixtures("without_figures")
BASE: dict[str, Any] = {
    "rounds": 3,
    "engine": "vector",
    "data": "digits",
    "partition": {"name": "iid", "clients": 3},
    "task": {"model": "linear"},
    "local": {"max_steps": 2},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "sweep": {"algorithm.lr": [0.1, 0.2]},
}
SUITE = Path(__file__).parents[1] / "digits.toml"


@pytest.mark.parametrize("how", [{}, {"stack": False}, slow({"jobs": 2})])
def test_every_run_of_a_sweep_has_callbacks_of_its_own_and_one_may_end(how: dict[str, Any], tmp_path: Path) -> None:
    own = Told(stop=0.2)
    done = atoll.sweep.run(BASE, tmp_path / "sweep", callbacks=[own], **how)
    assert [run.status for run in done.runs] == ["finished", "stopped early: told to"]
    assert [(run.folder / "told").read_text() for run in done.runs] == ["3 finished", "2 stopped early: told to"]
    assert own.rounds == 0  # a copy has counted


def test_every_run_of_a_suite_hears_its_callbacks(tmp_path: Path) -> None:
    done = atoll.bench.run(SUITE, tmp_path / "bench", only=["main:*"], seeds=1, callbacks=[Told()])
    folders = [path.parent for path in done.folder.glob("cells/*/run.json")]
    assert folders
    assert all((folder / "told").exists() for folder in folders)


class Hidden(Told):
    """Its module does not have it under this name."""

    __qualname__ = "elsewhere"


def holding(thing: Any) -> atoll.Callback:
    told = Told()
    told.thing = thing  # type: ignore[attr-defined]
    return told


@pytest.mark.parametrize("make", [Hidden, lambda: holding(lambda: 0), lambda: holding(sys.stdout)])
def test_a_callback_that_cannot_be_copied_is_refused_with_the_reason(
    make: Callable[[], atoll.Callback], tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match=r"callbacks: \w+ cannot be pickled \(.+\), and every run .* open files in on_"
    ):
        atoll.sweep.run(BASE, tmp_path / "sweep", callbacks=[make()])
    assert not (tmp_path / "sweep").exists()


def test_what_a_notebook_defines_runs_in_its_process_and_is_refused_for_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, kind = sys.modules["__main__"], type("InNotebook", (Told,), {"__module__": "__main__"})
    monkeypatch.setattr(main, "InNotebook", kind, raising=False)
    monkeypatch.delattr(main, "__file__", raising=False)
    with pytest.raises(ConfigError, match="InNotebook is defined here, where worker processes cannot import it"):
        atoll.sweep.run(BASE, tmp_path / "sweep", callbacks=[kind()], jobs=2)
    with pytest.raises(ConfigError, match=r"callbacks: the class Told is not an atoll\.Callback"):
        atoll.sweep.run(BASE, tmp_path / "sweep", callbacks=[Told])  # type: ignore[list-item]
    done = atoll.sweep.run(BASE, tmp_path / "sweep", callbacks=[kind()])
    assert [(run.folder / "told").read_text() for run in done.runs] == ["3 finished"] * 2
