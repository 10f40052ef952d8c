"""A run as a frame, a figure and a piece of a notebook."""

import sys
from pathlib import Path

import pytest

import atoll
from atoll.errors import ConfigError


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> atoll.Run:
    file = {
        "rounds": 3,
        "engine": "loop",
        "label": "a <b>",
        "data": "digits",
        "partition": {"name": "iid", "clients": 3},
        "task": {"model": "linear"},
        "evaluate": {"every": 2},
        "algorithm": {"name": "fedavg", "lr": 0.1},
    }
    return atoll.run(file, tmp_path_factory.mktemp("runs") / "run")


def test_a_frame_has_a_row_for_each_round_and_a_column_for_each_number(run: atoll.Run) -> None:
    frame = run.frame()
    assert frame.index.tolist() == [1, 2, 3]
    assert frame.loc[3, "clients.accuracy.mean"] == run.history[2]["clients"]["accuracy"]["mean"]
    assert frame.loc[1, "settings.algorithm.lr"] == 0.1
    assert "cohort.ids" not in frame
    assert frame["accuracy"].isna().tolist() == [True, False, False]


def test_a_frame_without_pandas_says_so(run: atoll.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"Run.frame: needs pandas.*run.history"):
        run.frame()


def test_a_plot_shows_the_recorded_numbers(run: atoll.Run, tmp_path: Path) -> None:
    left, right = run.plot().axes
    assert (left.get_ylabel(), right.get_ylabel()) == ("accuracy", "train loss")
    assert left.lines[0].get_xydata().tolist() == [[e["round"], e["accuracy"]] for e in run.history if "accuracy" in e]  # type: ignore[union-attr]
    figure = run.plot("clients.accuracy.worst_decile")
    figure.savefig(tmp_path / "a.png")
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    assert figure.axes[0].get_title() == "a <b>"


def test_a_plot_of_what_was_not_recorded_says_what_was(run: atoll.Run) -> None:
    with pytest.raises(
        ConfigError, match=r"plot: 'acuracy' is not recorded. Did you mean '?accuracy'?\? There are: train_loss"
    ):
        run.plot("acuracy")


def test_a_notebook_shows_a_run_as_a_table(run: atoll.Run) -> None:
    shown = run._repr_html_()
    assert "a &lt;b&gt;: finished after round 3" in shown
    assert f"<tr><td>accuracy</td><td>{run.final['accuracy']:.4g}</td></tr>" in shown
