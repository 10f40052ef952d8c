"""Suites as files: read, checked, merged and expanded; which settings are tried."""

import copy
import fnmatch
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll import tree
from atoll.errors import ConfigError
from atoll.experiment import Experiment, override, set_up
from atoll.experiment import read as read_file
from atoll.records import RunFolder
from atoll.runs import RunLoop
from atoll.suites import parse, prepare, read
from atoll.suites.expand import matcher, only, places
from atoll.suites.experiments import unique
from atoll.suites.merge_tables import merged
from atoll.suites.tuning import choose, cut, product, spread

FILE = Path(__file__).parent / "digits.toml"
RAW = read_file(FILE)


def changed(*assignments: str, **keys: Any) -> dict[str, Any]:
    return {**override(copy.deepcopy(RAW), assignments), **keys}


def problems(raw: dict[str, Any], **how: Any) -> str:
    with pytest.raises(ConfigError) as e:
        prepare(parse(raw, "mine"), **how)
    return str(e.value)


# ------------------------------------------------------------------------------------------------------------ reading


def test_a_suite_is_read_whole() -> None:
    suite = read(FILE)
    assert (suite.name, suite.title, suite.seeds, suite.trials, suite.tuning) == (
        "digits", "Two methods on digits", 2, 2, "validation"
    )  # fmt: skip
    assert suite.axes == ("data", "partition", "algorithm")
    assert [b.name for b in suite.blocks] == ["main", "longer"]
    assert suite.blocks[0].values["partition"] == ("iid", "dirichlet(0.5)")  # left out: all of them
    assert suite.values["algorithm"]["fedprox"].grid == {"algorithm.mu": [0.001, 0.01, 0.1]}
    assert [(m.cells, m.why) for m in suite.missing] == [("svhn/*/*", "no package carries it")]


@pytest.mark.slow
def test_every_suite_of_the_package_can_be_prepared_at_every_size() -> None:
    from atoll.suites import shipped

    for name in shipped():
        suite = read(name)
        for size in dict.fromkeys([*suite.sizes, "full"]):
            assert prepare(suite, size=size).chosen, f"{name} {size}"


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        (["titel=x"], "titel: is not an option of a suite. Did you mean title?"),
        (["metric=acuracy"], "metric: 'acuracy' is not known. Did you mean 'accuracy'?"),
        (["seeds=0"], "seeds: must be at least 1 (got 0)"),
        (["tuning=validate"], "tuning: must be 'validation', 'paper' or 'none'"),
        (['axes=["data", "algorithm"]'], "value.partition: 'partition' is none of the axes."),
        (['axes=["data", "partition", "algorithm", "x"]'], "axes: 'x' has no values. Add a table [value.x.NAME]"),
        (["base.locl.epochs=3"], "base.locl: is not an option of an experiment. Did you mean local?"),
        (["base.local.epoch=3"], "base.local.epoch: is not an option of local. Did you mean epochs?"),
        (["value.algorithm.fedavg.quirck=x"], "value.algorithm.fedavg.quirck: is not an option"),
        (["value.algorithm.fedavg.seed=3"], "value.algorithm.fedavg.seed: seeds are the same for all cells"),
        (["value.partition.iid.grid={algorithm.lr=[1]}"], "value.partition.iid.grid: belongs to what is compared."),
        (["value.algorithm.fedprox.grid={algoritm.mu=[1]}"], "grid.algoritm.mu: is not an option of an experiment."),
        (["value.algorithm.fedprox.grid={algorithm.mu=1}"], "grid.algorithm.mu: must be a list of values (got 1)."),
        (["value.algorithm.fedprox.grid={algorithm.mu=[1, 1]}"], "grid.algorithm.mu: holds a value twice"),
        (["value.algorithm.fedprox.trials=1"], 'value.algorithm.fedprox.trials: takes fewer trials than the others'),
        (["value.data={'a/b'={data='digits'}}"], "'a/b' cannot hold / * ? or a line break"),
        (["block.0.algoritm=['fedavg']"], "block.main.algoritm: is not an option of a block. Did you mean algorithm?"),
        (["block.0.algorithm=['fedavgg']"], "'fedavgg' is no value of this axis. Did you mean 'fedavg'?"),
        (["block.0.algorithm=[]"], "block.main.algorithm: must be a list of values (got []). To take all of them"),
        (["block.1.name=main"], "block: 'main' is the name of two blocks."),
        (["size.smoke.blocks=['mian']"], "size.smoke.blocks: 'mian' is no block. Did you mean 'main'?"),
        (["size.smoke.base.local.epoch=3"], "size.smoke.base.local.epoch: is not an option of local."),
        (["baseline={algoritm='fedavg'}"], "baseline.algoritm: 'algoritm' is none of the axes. Did you mean"),
        (["baseline={algorithm='fedavgg'}"], "baseline.algorithm: 'fedavgg' is no value of it. Did you mean 'fedavg'?"),
        (["reach=1.5"], "reach: must be at most 1 (got 1.5)"),
        (["missing.0.wy=x"], "missing.0.wy: is not an option of a missing cell. Did you mean why?"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_is_named(assignments: list[str], words: str) -> None:
    assert words in problems(changed(*assignments))


def test_all_mistakes_are_listed_at_once() -> None:
    found = problems(changed("base.locl=3", "block.0.data=['x']", "metric=acuracy", "size.smoke.base.x=1")).split("\n")
    assert [line.split(":")[0] for line in found] == ["metric", "base.locl", "block.main.data", "size.smoke.base.x"]


def test_mistakes_that_only_experiments_show_are_listed_with_their_cells() -> None:
    found = problems(changed("base.local.epochs=0", "value.algorithm.fedprox.algorithm={name='fedprx'}"))
    epochs, name = found.split("\n")
    assert epochs.startswith("local.epochs: must be at least 1 (got 0).")  # all cells have it
    assert name.startswith("cells digits/iid/fedprox, digits/dirichlet(0.5)/fedprox: algorithm.name: 'fedprx' is not")


def test_files_that_are_something_else_say_what_to_use() -> None:
    assert "use atoll sweep" in problems({"rounds": 3, "sweep": {"seeds": 3}})
    assert "use atoll run" in problems({"rounds": 3, "algorithm": "fedavg"})


def test_unknown_names_are_refused_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"suite: 'nosuch' is not known.*Or name a file: nosuch.toml"):
        read("nosuch")
    with pytest.raises(ConfigError, match=r"there is no such file. Did you mean .*digits.toml"):
        read(FILE.with_name("digit.toml"))
    with pytest.raises(
        ConfigError, match=r"--size: digits has no size 'smok'. Did you mean 'smoke'\? Sizes: smoke, full"
    ):
        prepare(FILE, size="smok")


# ---------------------------------------------------------------------------------------------------------- expanding


def test_places_are_the_products_of_their_blocks_in_order() -> None:
    found = places(read(FILE))
    assert [f"{p.block}:{p.name}" for p in found] == [
        "main:digits/iid/fedavg",
        "main:digits/iid/fedprox",
        "main:digits/dirichlet(0.5)/fedavg",
        "main:digits/dirichlet(0.5)/fedprox",
        "longer:digits/iid/fedavg",
        "longer:digits/iid/fedprox",
        "longer:digits/iid/fedprox (as published)",
    ]
    assert [p.seeds for p in found] == [(0, 1)] * 4 + [(0,)] * 3
    assert [p.base["rounds"] for p in found] == [3] * 4 + [4] * 3
    assert (found[-1].quirk, found[-1].stands_for) == ("its mu is far too large", "digits/iid/fedprox")
    assert found[1].stands_for is None


def test_a_size_changes_everything_and_comes_last() -> None:
    raw = changed("value.algorithm.fedavg.rounds=9", "block.0.seeds=5", "size.smoke.trials=1")
    full, smoke = (places(parse(raw, "x").at(size)) for size in ("full", "smoke"))
    assert [p.name for p in smoke] == ["digits/iid/fedavg", "digits/iid/fedprox"]
    assert (full[0].base["rounds"], smoke[0].base["rounds"]) == (9, 2)
    assert (full[0].seeds, smoke[0].seeds) == ((0, 1, 2, 3, 4), (0,))
    assert (full[1].trials, smoke[1].trials) == (2, 1)


def test_seeds_count_from_the_first_one_and_can_be_asked_for() -> None:
    found = places(parse(changed("base.seed=7"), "x"), seeds=3)
    assert {p.seeds for p in found} == {(7, 8, 9)}
    assert all("seed" not in p.base for p in found)


def test_changes_of_a_command_win_over_values_and_sizes() -> None:
    found = places(read(FILE).at("smoke"), ["rounds=5", "base.algorithm.lr=0.7"])
    assert [(p.base["rounds"], p.base["algorithm"]["lr"]) for p in found] == [(5, 0.7), (5, 0.7)]


def test_tables_merge_by_key_unless_they_have_another_name() -> None:
    below = {"rounds": 3, "algorithm": {"name": "fedavg", "lr": 0.1}, "local": {"epochs": 2, "batch": 8}}
    assert merged(below, {}) == below
    assert merged(below, {"local": {"epochs": 5}})["local"] == {"epochs": 5, "batch": 8}
    assert merged(below, {"algorithm": "fedavg"})["algorithm"] == {"name": "fedavg", "lr": 0.1}
    assert merged(below, {"algorithm": {"name": "fedavg", "server_lr": 1}})["algorithm"]["lr"] == 0.1
    assert merged(below, {"algorithm": {"name": "scaffold", "x": 1}})["algorithm"] == {"name": "scaffold", "x": 1}
    assert merged({"data": "digits"}, {"data": {"path": "x"}})["data"] == {"name": "digits", "path": "x"}
    assert merged({"transform": ["a"]}, {"transform": ["b"]})["transform"] == ["b"]


def test_merging_changes_neither_part() -> None:
    below, above = {"local": {"epochs": 2}}, {"local": {"batch": 4}}
    found = merged(below, above)
    found["local"]["epochs"] = 9
    assert (below, above) == ({"local": {"epochs": 2}}, {"local": {"batch": 4}})


@pytest.mark.parametrize(
    ("patterns", "count"),
    [
        ([], 7),
        (["digits/iid/fedavg"], 2),
        (["main:digits/iid/fedavg"], 1),
        (["*/dirichlet(0.5)/*"], 2),
        (["longer:*"], 3),
        (["*/fedavg", "longer:*/fedavg"], 3),
        (["*(as published)"], 1),
        (["digits/i?d/*"], 5),
    ],
)
def test_patterns_choose_places(patterns: list[str], count: int) -> None:
    suite = read(FILE)
    assert len(only(places(suite), patterns, suite.axes)) == count


def test_brackets_in_names_mean_themselves() -> None:
    raw = changed("value.partition={'classes[2]'={partition={name='iid', clients=4}}}", block=[], size={})
    suite = parse(raw, "x")
    assert len(only(places(suite), ["digits/classes[2]/*"], suite.axes)) == 3


@given(st.text("ab/*?(.", max_size=8), st.text("ab/(.", max_size=8))
def test_a_pattern_matches_as_the_shell_does(pattern: str, name: str) -> None:
    assert bool(matcher(pattern).fullmatch(name)) == fnmatch.fnmatchcase(name, pattern)


def test_patterns_that_match_nothing_are_refused_with_what_was_meant() -> None:
    with pytest.raises(ConfigError) as e:
        prepare(FILE, only=["digits/idi/*", "digits/iid/fedavg", "man:*", "svhn/iid/fedavg/x"])
    first, second, third = str(e.value).split("\n")
    assert first.startswith("--only 'digits/idi/*': matches none of the 7 cells. Did you mean 'digits/iid/*'?")
    assert "partition: iid, dirichlet(0.5)" in first
    assert "Did you mean 'main:*'?" in second
    assert third.startswith("--only 'svhn/iid/fedavg/x'")


def test_one_pattern_may_stand_without_a_list() -> None:
    assert len(prepare(FILE, only="longer:*").chosen) == 3


# ---------------------------------------------------------------------------------------------------------- the tuning


def test_every_method_gets_the_same_number_of_trials_and_final_runs_hold_nothing_out() -> None:
    for job in prepare(FILE).jobs:
        if job.place.why is not None:
            assert [o.trials for o in job.options] == [()]
            continue
        assert len(job.options) == 2
        assert [len(o.trials) for o in job.options] == [1, 1]
        for option in job.options:
            assert option.trials[0].experiment.evaluate.holdout == 0.1
            assert option.trials[0].experiment.seed == 0
            assert [c.experiment.seed for c in option.finals] == list(job.place.seeds)
            assert {c.experiment.evaluate.holdout for c in option.finals} == {0.0}
            mu = option.settings["algorithm.mu"]
            assert {c.experiment.algorithm["mu"] for c in (*option.trials, *option.finals)} == {mu}


def test_a_final_run_is_the_experiment_that_one_would_write_by_hand() -> None:
    job = prepare(FILE, only=["main:digits/iid/fedprox"]).chosen[0]
    by_hand = Experiment.parse({
        "rounds": 3, "seed": 1, "data": "digits", "task": {"model": "linear"}, "engine": "vector",
        "local": {"epochs": 1, "batch": 32, "max_steps": 3}, "checkpoint": {"every": 2},
        "partition": {"name": "iid", "clients": 4},
        "algorithm": {"name": "fedprox", "lr": 0.1, "mu": job.options[0].settings["algorithm.mu"]},
    })  # fmt: skip
    assert job.options[0].finals[1].digest == by_hand.digest()
    assert job.options[0].finals[1].experiment == by_hand


def test_what_the_suite_holds_out_itself_stays() -> None:
    job = prepare(parse(changed("base.evaluate.holdout=0.3"), "x"), only=["main:*/iid/fedprox"]).chosen[0]
    assert {c.experiment.evaluate.holdout for o in job.options for c in (*o.trials, *o.finals)} == {0.3}


def test_a_smaller_grid_is_refused_unless_it_says_why() -> None:
    small = "value.algorithm.fedprox.grid={algorithm.mu=[0.1]}"
    said = "fedprox: every method is tuned with 2 trials, and its grid has 1 setting. Give it a grid of 2 or more, or"
    assert said in problems(changed(small))
    assert "fedprox: every method is tuned with 2 trials, and it has no grid." in problems(
        changed("value.algorithm.fedprox.grid={}")
    )
    prepare(parse(changed(small), "x"), tuning="none")
    prepare(parse(changed(small, "value.algorithm.fedprox.trials=1", "value.algorithm.fedprox.why=x"), "x"))


def test_the_papers_tuning_tries_the_published_grid_at_all_seeds_on_the_runs_themselves() -> None:
    prox = prepare(FILE, tuning="paper", only=["main:*/iid/fedprox"]).chosen[0]
    assert [o.settings for o in prox.options] == [{"algorithm.mu": 0.01}, {"algorithm.mu": 1.0}]
    assert all(o.trials == o.finals and len(o.finals) == 2 for o in prox.options)
    plain = prepare(FILE, tuning="paper", only=["main:*/iid/fedavg"]).chosen[0]
    assert [(o.settings, o.trials) for o in plain.options] == [({}, ())]


def test_no_tuning_takes_the_settings_as_they_are_written() -> None:
    job = prepare(FILE, tuning="none", only=["main:*/iid/fedprox"]).chosen[0]
    assert [o.settings for o in job.options] == [{}]
    assert job.options[0].finals[0].experiment.algorithm["mu"] == 0.01


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 12), st.text(max_size=5))
def test_a_cut_grid_has_as_many_points_as_asked_in_order_spread_over_every_key(
    sizes: list[int], number: int, name: str
) -> None:
    grid = {f"k{i}": list(range(n)) for i, n in enumerate(sizes)}
    points, chosen = product(grid), cut(grid, number, name)
    assert len({json.dumps(p) for p in chosen}) == len(chosen) == min(number, len(points))
    assert [p for p in points if p in chosen] == chosen
    assert cut(grid, number, name) == chosen
    for key, values in grid.items():
        assert {p[key] for p in chosen} == (set(spread(values, number)) if len(points) > number else set(values))


def test_a_cut_list_is_spread_over_its_range() -> None:
    one = prepare(FILE, only=["main:*/iid/fedprox"]).chosen[0]
    grid = suite_example_grid()
    assert [o.settings["algorithm.mu"] for o in one.options] == spread(grid, 2)
    assert spread(list(range(10)), 3) == [1, 5, 8]


def suite_example_grid() -> list[float]:
    return list(parse(changed(), "x").values["algorithm"]["fedprox"].grid["algorithm.mu"])


def test_methods_whose_trials_are_cut_try_the_same_rates() -> None:
    """The page's own suite: FedAvg had the two smallest rates, FedProx the largest."""
    page = (Path(__file__).parents[2] / "docs" / "suites.md").read_text()
    raw = tomllib.loads(page.split("## A suite of your own")[1].split("```toml")[1].split("```")[0])
    jobs = prepare(parse(raw, "mine"), size="smoke").chosen
    rates = {job.place.path["algorithm"]: [o.settings["algorithm.lr"] for o in job.options] for job in jobs}
    assert rates == {"fedavg": [0.1, 0.3], "fedprox": [0.1, 0.3]}
    whole = prepare(parse(raw, "mine")).chosen
    assert [len(job.options) for job in whole] == [4, 4]
    assert {o.settings["algorithm.lr"] for o in whole[0].options} == {0.01, 0.03, 0.1, 0.3}


def test_other_suites_pair_other_values() -> None:
    grid = {"a": list(range(8)), "b": list(range(8))}
    assert cut(grid, 5, "one") != cut(grid, 5, "two")


@given(st.lists(st.sampled_from([0.1, 0.2, 0.3, float("nan"), float("inf")]), max_size=6), st.booleans())
def test_the_best_finite_score_is_chosen(scores: list[float], higher: bool) -> None:
    finite = [s for s in scores if s < 1]
    best = choose(scores, higher)
    if not finite:
        assert best is None
    else:
        assert best is not None
        assert scores[best] == (max if higher else min)(finite)
        assert scores.index(scores[best]) == best


# -------------------------------------------------------------------------------------------------------- paired seeds


def test_one_seed_gives_all_methods_of_a_row_the_same_clients_model_and_cohorts(tmp_path: Path) -> None:
    work = prepare(FILE, only=["longer:*"], overrides=["cohort={name='fixed', size=2}"], tuning="none", seeds=2)
    seen: dict[int, set[str]] = {0: set(), 1: set()}
    for job in work.chosen:
        for cell in job.options[0].finals:
            loop = RunLoop(set_up(cell.experiment, "cpu"), RunFolder(tmp_path / cell.name))
            cohorts = [loop.plan.sample(number)[0].tolist() for number in range(4)]
            told = [loop.setup.partition.digest(), tree.digest(loop.setup.model), cohorts]
            seen[cell.experiment.seed].add(json.dumps(told))
    assert [len(found) for found in seen.values()] == [1, 1]
    assert seen[0] != seen[1]


# --------------------------------------------------------------------------------------------------------------- names


def test_names_are_folders_and_the_same_experiment_is_run_once() -> None:
    work = prepare(FILE, overrides=["rounds=3"])  # the blocks do not differ any more
    cells = work.first()
    names = [cell.name for cell in cells]
    assert names[0] == "main-digits-iid-fedavg-seed=0"
    assert "digits-dirichlet(0.5)-fedavg-seed=1" in names
    assert len(set(names)) == len(names) == len({cell.digest for cell in cells})
    assert all("/" not in name and len(name) <= 120 for name in names)
    assert len(cells) == len([c for c in prepare(FILE).first() if "longer" not in c.name])


def test_two_experiments_never_share_a_name() -> None:
    cells = prepare(FILE).first()[:2]
    same = [type(cells[0])(cells[0].name, c.coordinates, c.experiment, c.digest) for c in cells]
    assert [c.name for c in unique(same)] == [cells[0].name, f"{cells[0].name}~2"]


def test_a_suite_s_metric_is_measured() -> None:
    job = prepare(parse(changed("metric=clients.f1.mean"), "x"), only=["main:*/iid/fedprox"]).chosen[0]
    assert {tuple(c.experiment.evaluate.metrics or ()) for o in job.options for c in o.finals} == {("f1",)}
