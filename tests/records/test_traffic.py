"""Bytes until a run was there: whoever never was is said to be so, and published figures have a verdict."""

from dataclasses import replace

import pytest

from atoll.records import Cell, Results, Trace, traffic, traffic_versus_published
from atoll.records.traffic import GIBIBYTE

PLAIN = Trace(0, "", (1, 2, 3, 4), (0.5, 0.8, 0.9, 0.9), (20, 40, 60, 80), (0.0,) * 4, up=(10, 20, 30, 40))


def cell(algorithm: str, *runs: Trace, **path: str) -> Cell:
    return Cell("all", {"data": "cifar10-resnet18", "algorithm": algorithm, **path}, runs)


def results(*cells: Cell, **changes: object) -> Results:
    made = Results(
        "s", "", "full", "accuracy", True, ("data", "algorithm"), cells,
        scale=100, reference="oarf_tables", baseline={"algorithm": "fedsgd"}, reach=0.95,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def sent(share: float, values: tuple[float, ...]) -> Trace:
    return replace(PLAIN, values=values, up=tuple(x * share for x in PLAIN.up))


def test_a_cell_beside_itself_has_ratios_of_one() -> None:
    (only,) = traffic(results(cell("fedsgd", PLAIN, PLAIN)), "all")
    assert (only.ratio, only.both_ways, only.end_to_end) == (1.0, 1.0, 1.0)
    assert (only.up, only.down) == (10, 10)


def test_rounds_that_it_takes_longer_count_in_the_ratio_end_to_end() -> None:
    _, topk = traffic(results(cell("fedsgd", PLAIN), cell("topk(1%)", sent(0.1, (0.1, 0.3, 0.5, 0.86)))), "all")
    assert topk.ratio == pytest.approx(10)
    assert topk.end_to_end == pytest.approx(30 / 4)


def test_whoever_was_never_there_has_no_ratio_end_to_end() -> None:
    short = sent(0.1, (0.1, 0.2, 0.3, 0.4))
    _, topk = traffic(results(cell("fedsgd", PLAIN, PLAIN), cell("topk(1%)", short, sent(0.1, PLAIN.values))), "all")
    assert topk.end_to_end is None
    assert (topk.up_spent.missed, topk.up_spent.amounts) == (1, (4.0, 3.0))


def test_the_best_round_of_a_run_that_its_last_round_ended_is_not_known() -> None:
    patient = replace(PLAIN, kept=3, status="stopped early: patience")
    cut = replace(PLAIN, kept=4)
    (found,) = traffic(results(cell("fedsgd", patient, cut), reach=None), "all")
    assert found.rounds.reached == (True, False)
    assert found.rounds.amounts == (3.0, 4.0)
    assert found.there == (0.9, 0.9)


def test_the_baseline_may_stand_in_another_block_and_on_another_axis() -> None:
    first = cell("fedsgd", PLAIN, epochs="1")
    more = replace(cell("fedsgd", sent(1.0, (0.9,) * 4), epochs="2"), block="epochs")
    axes = ("data", "algorithm", "epochs")
    made = results(first, more, axes=axes, baseline={"algorithm": "fedsgd", "epochs": "1"})
    (found,) = traffic(made, "epochs")
    assert found.end_to_end == pytest.approx(3.0)


def test_runs_that_did_not_count_apart_are_left_out() -> None:
    assert traffic(results(cell("fedsgd", replace(PLAIN, up=()))), "all") == []


@pytest.mark.parametrize(("share", "verdict"), [(1 / 33.3, "agrees"), (1 / 80, "differs")])
def test_a_published_ratio_has_a_verdict(share: float, verdict: str) -> None:
    made = results(cell("fedsgd", PLAIN), cell("topk(1%)", sent(share, PLAIN.values)))
    found = dict(traffic_versus_published(made))
    (ratio,) = found["uplink_ratio"]
    assert (ratio.name, ratio.verdict) == ("cifar10-resnet18/topk(1%)", verdict)
    assert ratio.theirs is not None
    assert ratio.theirs.mean == pytest.approx(33.32)


def test_published_gigabytes_are_until_the_best_round_and_both_ways() -> None:
    size = 99.97 / 839 * GIBIBYTE
    run = Trace(
        0, "", (839, 939), (0.97, 0.97), (839 * size, 939 * size), (0.0,) * 2, status="stopped early: patience",
        up=(839 * size / 2, 939 * size / 2), kept=839,
    )  # fmt: skip
    fedavg = Cell("mnist", {"data": "mnist", "partition": "non-iid", "algorithm": "fedavg"}, (run,))
    made = results(fedavg, axes=tuple(fedavg.path), reference="fedeval_tables", reach=None,
                   baseline={"algorithm": "fedavg"})  # fmt: skip
    assert {name: rows[0].verdict for name, rows in traffic_versus_published(made)} == {
        "rounds": "agrees",
        "comm_gb": "agrees",
    }


def test_a_run_that_its_schedule_ended_was_there_in_its_last_round() -> None:
    run = Trace(0, "", (1, 2, 3), (0.5, 0.8, 0.7), (2, 4, 6), (0.0,) * 3, up=(1, 2, 3))
    cells = [replace(run, status=s, kept=None) for s in ("stopped early: the schedule has made its last", "finished")]
    made = Results("s", "", "full", "accuracy", True, ("algorithm",),
                   tuple(Cell("all", {"algorithm": str(i)}, (one,)) for i, one in enumerate(cells)),
                   baseline={"algorithm": "0"})  # fmt: skip
    by_schedule, by_last_round = traffic(made, "all")
    assert by_schedule.rounds.amounts == (3.0,)
    assert not by_schedule.rounds.missed
    assert by_last_round.rounds.missed == 1
