"""Callbacks: told of a run in order, may end it, and change nothing else."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.errors import AtollError, ConfigError
from atoll.runs import LiveRun, LogLines
from atoll.runs.callbacks import Callbacks

GIVEN: dict[str, Any] = {
    "rounds": 4,
    "engine": "loop",
    "data": "digits",
    "partition": {"name": "iid", "clients": 3},
    "task": {"model": "linear"},
    "local": {"max_steps": 2},
    "algorithm": {"name": "fedavg", "lr": 0.1},
}


class Heard(atoll.Callback):
    def __init__(self, stop_at: int = 99) -> None:
        self.said: list[Any] = []
        self.stop_at = stop_at

    def on_start(self, run: LiveRun) -> None:
        self.said.append(("start", len(run.history), run.experiment.rounds))

    def on_round(self, run: LiveRun, entry: Mapping[str, Any]) -> str | None:
        self.said.append((entry["round"], entry["accuracy"]))
        self.params = run.params()
        return "heard enough" if entry["round"] == self.stop_at else None

    def on_end(self, run: LiveRun, status: str) -> None:
        self.said.append(("end", status))


def test_a_callback_hears_start_rounds_and_end_and_the_run_is_as_without_it(tmp_path: Path) -> None:
    heard = Heard()
    run = atoll.run(GIVEN, tmp_path / "a", callbacks=[heard])
    plain = atoll.run(GIVEN, tmp_path / "b")
    assert [e["model"] for e in run.history] == [e["model"] for e in plain.history]
    rounds = [(e["round"], e["accuracy"]) for e in run.history]
    assert heard.said == [("start", 0, 4), *rounds, ("end", "finished")]
    assert all((heard.params[k] == v).all() for k, v in run.params.items())


def test_a_text_ends_the_run_and_is_its_status(tmp_path: Path) -> None:
    others = Heard()
    run = atoll.run(GIVEN, tmp_path / "a", callbacks=[Heard(stop_at=2), others])
    assert (run.status, len(run.history)) == ("stopped early: heard enough", 2)
    assert others.said[-1] == ("end", "stopped early: heard enough")
    assert len(atoll.run(GIVEN, tmp_path / "a", resume=True).history) == 2


def test_a_text_after_the_last_round_changes_nothing(tmp_path: Path) -> None:
    assert atoll.run(GIVEN, tmp_path / "a", callbacks=[Heard(stop_at=4)]).status == "finished"


def test_what_a_callback_raises_fails_the_run_and_all_hear_the_end(tmp_path: Path) -> None:
    class Broken(atoll.Callback):
        def on_round(self, run: LiveRun, entry: Mapping[str, Any]) -> str | None:
            raise RuntimeError("no disk")

    heard = Heard()
    with pytest.raises(RuntimeError, match="no disk"):
        atoll.run(GIVEN, tmp_path / "a", callbacks=[Broken(), heard])
    assert heard.said[-1] == ("end", "failed: RuntimeError")


def test_one_that_raises_at_the_end_does_not_keep_others_from_it(tmp_path: Path) -> None:
    class Broken(atoll.Callback):
        def on_end(self, run: LiveRun, status: str) -> None:
            raise RuntimeError("no disk")

    heard, live = Heard(), LiveRun(atoll.Experiment.parse(GIVEN), tmp_path, [], dict)
    both = Callbacks([Broken(), heard])
    both.on_start(live)
    with pytest.raises(RuntimeError):
        both.on_end(live, "finished")
    assert heard.said[-1] == ("end", "finished")


def test_one_that_cannot_start_is_the_reason_and_only_those_that_began_hear_the_end(tmp_path: Path) -> None:
    class Broken(atoll.Callback):
        def on_start(self, run: LiveRun) -> None:
            self.file = (tmp_path / "no folder" / "log").open("w")

        def on_end(self, run: LiveRun, status: str) -> None:
            self.file.close()

    before, after = Heard(), Heard()
    with pytest.raises(FileNotFoundError):
        atoll.run(GIVEN, tmp_path / "a", callbacks=[before, Broken(), after])
    assert before.said[-1] == ("end", "failed: FileNotFoundError")
    assert after.said == []


def test_a_private_run_that_a_callback_ends_is_charged_like_one_that_a_metric_ends(tmp_path: Path) -> None:
    noise = {"name": "gaussian_noise", "noise_multiplier": 3.0}
    private = {
        **GIVEN,
        "privacy": {"delta": 1e-3},
        "transform": ["equal_weights", {"name": "clip_l2", "max_norm": 0.5}, noise],
    }
    run = atoll.run(private, tmp_path / "a", callbacks=[Heard(stop_at=1)])
    whole = atoll.run(private, tmp_path / "b")
    assert run.info["privacy"]["client"]["epsilon"] == whole.info["privacy"]["client"]["epsilon"]


@pytest.mark.parametrize("given", [[Heard], [print], True, "bar"])
def test_what_is_no_callback_is_refused_before_anything_is_set_up(given: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"callbacks: .* is not an atoll.Callback. Derive from atoll.Callback"):
        atoll.run({**GIVEN, "data": "nowhere"}, tmp_path / "a", callbacks=given)


def test_a_watch_that_is_no_function_is_refused() -> None:
    with pytest.raises(AtollError, match=r"watch: must be a function .*progress=True"):
        atoll.run(GIVEN, watch=True)  # type: ignore[arg-type]


def lines(rounds: int, seconds: float, **options: Any) -> list[str]:
    """What a log has of a run whose rounds take so long."""
    clock = [0.0]
    found: list[str] = []
    experiment = atoll.Experiment.parse({**GIVEN, "rounds": rounds})
    history: list[Mapping[str, Any]] = []
    live, log = (
        LiveRun(experiment, Path("runs/x"), history, dict),
        LogLines("x", found.append, now=lambda: clock[0], **options),
    )
    log.on_start(live)
    for number in range(rounds):
        clock[0] += seconds
        history.append({"round": number + 1, "accuracy": number / rounds, "train_loss": 1.0})
        log.on_round(live, history[-1])
    log.on_end(live, "finished")
    return found


def test_a_log_has_a_line_for_every_tenth_of_a_quick_run() -> None:
    found = lines(100, 0.02)
    assert len(found) == 12
    assert found[0] == "x: 100 rounds, begins, in runs/x"
    assert found[5] == "x: round 50 of 100, accuracy 0.49, 0:01, 0:01 left"
    assert found[-1] == "x: finished after round 100, 0:02"


def test_a_log_has_a_line_every_ten_seconds_of_a_slow_run() -> None:
    found = lines(40, 6.0)
    assert found[1] == "x: round 2 of 40, accuracy 0.025, 0:12, 3:48 left"
    assert len(found) == 2 + 20


def test_a_verbose_log_has_all_rounds_and_numbers() -> None:
    found = lines(30, 0.1, every_round=True)
    assert len(found) == 32
    assert "accuracy 0.03333, train_loss 1" in found[2]


def test_a_run_in_python_without_a_terminal_speaks_when_asked_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    atoll.run(GIVEN, tmp_path / "a")
    assert capsys.readouterr().out == ""
    atoll.run({**GIVEN, "local": {"batch": 1000}}, tmp_path / "b", progress=True)
    said = capsys.readouterr().out
    assert said.startswith("Note: 3 of 3 clients have fewer examples")
    assert "fedavg: round 4 of 4, accuracy" in said
