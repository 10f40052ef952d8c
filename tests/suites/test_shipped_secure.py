"""The suites on secure aggregation: what is published is run, what cannot hold is refused, and a sum is one sum."""

import json
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll import tree
from atoll.errors import SpecError
from atoll.experiment import Experiment, set_up
from atoll.records import published_figure
from atoll.suites import expand, read
from atoll.suites.collect import trace

pytest.importorskip("cryptography")

OARF, HYBRID, FEDEVAL = (
    {(p.block, p.name): p for p in expand.places(read(name))}
    for name in ("oarf-secure", "oarf-hybrid", "fedeval-secure")
)


def quick(base: Any, **changed: Any) -> dict[str, Any]:
    return {**base, "rounds": 2, "local": {**base["local"], "max_steps": 2}, **changed}


@pytest.mark.parametrize("splits", [2, 4])
def test_table_seven_is_run_among_five_parties(splits: int) -> None:
    place = OARF["classification", f"cifar10-resnet18/secret_sharing({splits})"]
    e = Experiment.parse(place.base)
    assert e.secure is not None
    assert (e.secure.protocol["name"], e.secure.protocol["splits"], e.secure.mode) == ("additive", splits, "real")
    assert e.partition is not None
    assert e.partition["clients"] == 5
    for metric in ("rounds", "framework_overhead_pct", "throughput"):
        assert published_figure("oarf_tables", place.path, metric) is not None


def test_seconds_of_a_step_are_what_the_paper_s_throughput_says() -> None:
    throughput, parties, overhead, batch = 3913.31, 5, 0.2583, 64
    clock = OARF["classification", "cifar10-resnet18/fedsgd"].base["clock"]
    assert clock["seconds_per_step"] == pytest.approx(batch * parties * (1 - overhead) / throughput, rel=1e-2)


def test_methods_differ_in_the_protocol_alone() -> None:
    for found, plain in ((OARF, "fedsgd"), (FEDEVAL, "fedavg")):
        for (block, name), place in found.items():
            row, _, _ = name.rpartition("/")
            baseline = found[block, f"{row}/{plain}"].base
            assert {k: v for k, v in place.base.items() if k != "secure"} == baseline, name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["secret_sharing(4)", "secret_sharing(4), compact"])
def test_more_parts_give_the_same_model_bit_for_bit(name: str, tmp_path: Path) -> None:
    first, other = (
        atoll.run(quick(OARF["smaller", f"digits-mlp/{n}"].base, clock=None), tmp_path / n)
        for n in ("secret_sharing(2)", name)
    )
    assert tree.digest(first.params) == tree.digest(other.params)
    up = [run.history[-1]["bytes"]["up"] for run in (first, other)]
    assert up[1] > 1.9 * up[0] if name == "secret_sharing(4)" else up[1] < 0.51 * up[0]


def test_results_keep_levels_seconds_and_what_a_protocol_took(tmp_path: Path) -> None:
    place = OARF["smaller", "digits-mlp/secret_sharing(2)"]
    small = {"model": {"name": "mlp", "widths": [4]}}
    run = atoll.run(quick(place.base, task=small), tmp_path / "run")
    lines = (tmp_path / "run" / "clock.jsonl").read_text().splitlines()
    kept = trace(run.info, run.history, "accuracy", [json.loads(line) for line in lines])
    assert kept.security["level"] == 2
    assert kept.security["up"] == pytest.approx(run.history[0]["secure"]["up"])
    assert kept.times["train"] == pytest.approx(2 * 0.002)
    assert kept.times["encrypt"] > 0


def test_a_plain_run_keeps_its_level_and_no_protocol(tmp_path: Path) -> None:
    run = atoll.run(quick(OARF["smaller", "digits-mlp/fedsgd"].base), tmp_path / "run")
    assert trace(run.info, run.history, "accuracy").security == {"level": 1}


@pytest.mark.parametrize("transform", [{"name": "top_k", "share": 0.01}, {"name": "rand_k", "share": 0.01}])
def test_what_oarf_does_with_sparse_updates_is_refused(transform: dict[str, Any]) -> None:
    base = HYBRID["smaller", "digits-mlp/secret sharing(2)"].base
    with pytest.raises(SpecError, match="places"):
        set_up(Experiment.parse({**base, "transform": [*base["transform"], transform]}), "cpu")


def test_every_hybrid_has_links_of_a_hundred_megabit() -> None:
    timed = [p for (block, _), p in HYBRID.items() if block != "clients"]
    assert all(p.base["clock"]["devices"] == "oarf" for p in timed)


@pytest.mark.slow
def test_a_shared_private_update_keeps_its_epsilon(tmp_path: Path) -> None:
    name = "digits-mlp/epsilon 1, clip 1, secret sharing(2), compact, 24 bits"
    run = atoll.run({**HYBRID["smaller", name].base, "rounds": 2, "clock": None}, tmp_path / "run")
    claim = run.info["privacy"]["example"]
    assert claim["holds"]
    assert 0.9 < claim["epsilon"] <= 1.0
    assert run.info["security"]["level"] == 2


def test_the_published_way_of_paillier_packs_nothing_and_the_other_does() -> None:
    protocols = {p.path["algorithm"]: p.base.get("secure", {}).get("protocol") for p in FEDEVAL.values()}
    assert protocols["paillier, as published"] == {"name": "paillier", "packed": False, "short_exponents": False}
    assert protocols["paillier"] == "paillier"


def test_large_networks_are_modelled_and_the_twin_sends_every_message() -> None:
    for (block, name), place in FEDEVAL.items():
        if "secure" in place.base:
            mode = Experiment.parse(place.base).secure.mode  # type: ignore[union-attr]
            assert mode == ("cost" if block in ("lenet", "mlp") else "real"), name
