"""What a processor is said to have, and what a run is told of it."""

from pathlib import Path

import pytest

from atoll.algorithms.fedavg import FedAvg
from atoll.engines import choice, make, processor_has_bfloat16
from atoll.engines.choice import ENGINES
from atoll.testing.harness import federation
from atoll.testing.problems import network

SAYS = {
    "x86 with": ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 sha_ni\n", True),
    "x86 with tiles": ("flags\t\t: fpu amx_bf16\n", True),
    "ARM with": ("Features\t: fp asimd bf16\n", True),
    "x86 without": ("model name\t: bf16 flags\nflags\t\t: fpu avx2\n", False),
    "nothing": ("processor\t: 0\n", None),
}


@pytest.mark.parametrize("case", SAYS)
def test_the_processor_has_what_the_system_lists(case: str, tmp_path: Path) -> None:
    text, has = SAYS[case]
    (tmp_path / "cpuinfo").write_text(text)
    assert processor_has_bfloat16(tmp_path / "cpuinfo") is has


def test_a_system_that_does_not_say_is_no_no(tmp_path: Path) -> None:
    assert processor_has_bfloat16(tmp_path / "none") is None


@pytest.mark.parametrize("engine", ["loop", "vector", "threads", "auto"])
@pytest.mark.parametrize(
    ("precision", "has", "told"),
    [("bfloat16", False, True), ("bfloat16", True, False), ("bfloat16", None, False), ("float32", False, False)],
)
def test_a_run_is_told_where_bfloat16_is_slow(
    engine: str, precision: str, has: bool | None, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "processor_has_bfloat16", lambda: has)
    problem = network()
    made = federation(problem, FedAvg(problem.task, 0.05))
    asked = ENGINES[engine](precision=precision)
    ready = make(asked, made.engine.data, made.engine.store, 8, made.request([0, 1]), problem.task.model)  # type: ignore[attr-defined]
    assert any("bfloat16" in note for note in ready.notes) is told
