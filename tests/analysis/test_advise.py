"""`atoll advise`: what did best on the nearest measured settings, or that nobody knows."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll import records
from atoll.analysis.advise import OTHER_DATA, Setting, Target, advise, distance, settings, target
from atoll.analysis.advise.advice import certainty, words
from atoll.analysis.advise.evidence import read_evidence
from atoll.errors import ConfigError
from atoll.experiment import Experiment, load_dataset, make_partition, override
from atoll.records import Cell, Results, Trace
from atoll.suites.skew import skew_of
from atoll.suites.sweeps import expand
from tests.support.shell import Shell, shell

IID = {
    "emd": 0.05,
    "jensen_shannon": 0.01,
    "effective_classes": 9.8,
    "classes": 10.0,
    "size_gini": 0.0,
    "clients": 10.0,
}
SKEWED = {**IID, "emd": 0.9, "jensen_shannon": 0.3, "effective_classes": 4.0, "size_gini": 0.3}
Values = Mapping[str, Sequence[float]]


def trace(seed: int, value: float) -> Trace:
    return Trace(seed, f"digest-{seed}", (1,), (value,), (1.0,), (1.0,), partition=f"p{seed}")


def rows(name: str, table: Mapping[tuple[str, str], tuple[Mapping[str, float], Values]], **more: Any) -> Results:
    """A suite: (data, partition) -> its skew, and the values of every method by seed."""
    cells = [
        Cell("main", {"data": data, "partition": split, "algorithm": method},
             tuple(trace(s, v) for s, v in enumerate(values)), skew=skew)
        for (data, split), (skew, methods) in table.items()
        for method, values in methods.items()
    ]  # fmt: skip
    made = Results(name, name, "full", "accuracy", True, ("data", "partition", "algorithm"), tuple(cells), scale=100)
    return replace(made, **more)


PROX = {"fedavg": [0.60, 0.61, 0.60], "fedprox": [0.70, 0.72, 0.71], "scaffold": [0.50, 0.50, 0.51]}
SUITE = rows("mine", {
    ("digits", "iid"): (IID, {"fedavg": [0.90, 0.91, 0.90], "fedprox": [0.90, 0.90, 0.91]}),
    ("digits", "skew"): (SKEWED, PROX),
    ("adult", "skew"): (SKEWED, {"fedavg": [0.80, 0.81], "scaffold": [0.90, 0.91]}),
})  # fmt: skip


def ask(skew: Mapping[str, float], *suites: Results, data: str = "digits", **more: Any) -> Any:
    return advise(Target("asked", data, skew), settings(suites or [SUITE]), **more)


# --------------------------------------------------------------------------------------------------------- distance

Number = st.floats(0, 1, allow_nan=False)
Skews = st.fixed_dictionaries(
    {"emd": Number.map(lambda x: 2 * x), "size_gini": Number},
    optional={
        "jensen_shannon": Number,
        "effective_classes": st.floats(1, 10),
        "classes": st.just(10.0),
        "clients": st.integers(1, 10**6).map(float),
        "noise": Number,
    },
)


@given(Skews)
def test_an_exact_match_has_distance_0(skew: dict[str, float]) -> None:
    found = distance(skew, skew, same_data=True)
    assert found is not None
    assert found.total == 0.0
    other = distance(skew, skew, same_data=False)
    assert other is not None
    assert other.total == OTHER_DATA


@given(Skews, Skews)
def test_a_distance_is_the_same_both_ways_and_never_below_0(a: dict[str, float], b: dict[str, float]) -> None:
    there, back = distance(a, b, same_data=True), distance(b, a, same_data=True)
    assert there is not None
    assert there == back
    assert 0 <= there.total <= 2  # four kinds of at most 1


def test_the_distance_is_what_the_docs_say() -> None:
    a = {
        "emd": 0.4,
        "jensen_shannon": 0.1,
        "effective_classes": 5.0,
        "classes": 10.0,
        "size_gini": 0.2,
        "clients": 10.0,
    }
    b = {"emd": 1.0, "jensen_shannon": 0.3, "effective_classes": 0.9, "size_gini": 0.1, "clients": 100.0, "noise": 0.09}
    found = distance(a, b, same_data=False)
    assert found is not None
    label = math.sqrt((0.3**2 + 0.2**2 + 0.4**2) / 3)  # b has a share of the classes already
    assert found.kinds == pytest.approx({"label": label, "size": 0.1, "feature": 0.3, "number": 0.5})
    assert found.total == pytest.approx(math.sqrt(label**2 + 0.1**2 + 0.3**2 + 0.5**2) + 0.1)


def test_a_number_that_one_side_lacks_is_left_out_for_both() -> None:
    found = distance({"emd": 2.0, "size_gini": 0.5, "clients": math.nan}, {"size_gini": 0.5, "clients": 3.0}, True)
    assert found is not None
    assert (found.total, set(found.kinds)) == (0.0, {"size", "feature"})
    assert distance({}, {"emd": 1.0}, same_data=True) is None
    assert distance({"clients": 10.0, "emd": 1.0}, {"clients": 10.0}, same_data=True) is None  # as many is not alike


# ----------------------------------------------------------------------------------------------------------- advice


def test_the_nearest_setting_decides_with_its_margin_and_where_it_comes_from() -> None:
    found = ask(SKEWED)
    assert (found.method, found.certainty) == ("fedprox", "clear")
    near = found.near[0]
    assert near.distance.total == 0.0
    s = near.setting
    assert (s.suite, s.row, s.seeds, s.scores[0].digests) == (
        "mine", "digits/skew", (0, 1, 2), ("digest-0", "digest-1", "digest-2"),
    )  # fmt: skip
    assert [score.method for score in s.scores] == ["fedprox", "fedavg", "scaffold"]
    assert (found.near[1].setting.row, found.near[1].setting.best) == ("adult/skew", "scaffold")
    assert found.near[1].distance.total == pytest.approx(OTHER_DATA)


def test_the_margin_is_the_paired_t_interval_and_p_that_of_the_bayesian_test() -> None:
    from scipy import stats

    s = ask(SKEWED).near[0].setting
    d = np.array(PROX["fedprox"]) - np.array(PROX["fedavg"])
    test = stats.ttest_rel(PROX["fedprox"], PROX["fedavg"]).confidence_interval()
    assert (s.margin.low, s.margin.high) == (pytest.approx(test.low), pytest.approx(test.high))
    assert s.p_better == pytest.approx(stats.t(2, d.mean(), d.std(ddof=1) / math.sqrt(3)).sf(0.01))
    assert s.p_better + s.p_equal + s.p_worse == pytest.approx(1)


def test_a_method_with_one_seed_does_not_count() -> None:
    values = {"once": [0.99], "fedavg": [0.8, 0.8, 0.8], "fedprox": [0.9, 0.9, 0.9]}
    assert ask(SKEWED, rows("s", {("digits", "skew"): (SKEWED, values)})).method == "fedprox"


def test_the_same_data_counts_as_nearer() -> None:
    assert ask(SKEWED, data="adult").method == "scaffold"
    assert ask(SKEWED, data="digits").method == "fedprox"
    other = ask(SKEWED, data="mnist")
    assert "take it as a hint" in "\n".join(words(other))


def test_where_less_is_better_the_least_is_best() -> None:
    loss = replace(SUITE, higher=False, metric="loss")
    assert ask(SKEWED, loss).method == "scaffold"


def test_a_quirk_is_never_advised() -> None:
    cells = tuple(replace(c, quirk="no gradient is zeroed") if c.method == "fedprox" else c for c in SUITE.cells)
    found = ask(SKEWED, replace(SUITE, cells=cells))
    assert found.method == "fedavg"
    assert [score.method for score in found.near[0].setting.scores] == ["fedavg", "scaffold"]


def test_a_method_that_diverged_in_some_seed_is_not_advised_and_named() -> None:
    found = ask(SKEWED, rows("s", {("digits", "skew"): (SKEWED, {**PROX, "fedyogi": [0.9, math.nan, 0.9]})}))
    assert found.method == "fedprox"
    assert "not considered: fedyogi" in "\n".join(words(found))


@pytest.mark.parametrize(
    ("second", "expected", "text"),
    [
        ([0.60, 0.61, 0.59], "clear", "That is clear."),
        ([0.699, 0.700, 0.701], "equal", "Practically b is equal; it sends no less: take either."),
        ([0.695, 0.675, 0.671], "probable", "would settle it"),
        ([0.80, 0.50, 0.75], "undecided", "may be chance"),
    ],
)
def test_how_sure_it_is_is_said(second: list[float], expected: str, text: str) -> None:
    found = ask(SKEWED, rows("s", {("digits", "skew"): (SKEWED, {"a": [0.70, 0.701, 0.702], "b": second})}))
    assert certainty(found.near[0].setting) == found.certainty == expected
    assert text in "\n".join(words(found))


def sending(bytes_by_method: Mapping[str, float], values: Values) -> Results:
    """A suite of one row whose methods send so much."""
    made = rows("s", {("digits", "skew"): (SKEWED, values)})
    sent = {m: (b,) if b else () for m, b in bytes_by_method.items()}
    cells = [replace(c, runs=tuple(replace(r, bytes=sent[c.method]) for r in c.runs)) for c in made.cells]
    return replace(made, cells=tuple(cells))


EQUAL = {"scaffold": [0.702, 0.703, 0.704], "fedavg": [0.699, 0.700, 0.701], "fedprox": [0.700, 0.701, 0.702]}


def test_of_methods_that_are_practically_equal_the_cheaper_is_advised() -> None:
    found = ask(SKEWED, sending({"scaffold": 2e6, "fedavg": 1e6, "fedprox": 1e6}, EQUAL))
    assert (found.method, found.certainty) == ("fedprox", "equal")  # the better of the two cheap ones
    assert words(found)[0] == (
        "Use fedprox: scaffold did best on the nearest measured setting, s (full): digits/skew, 0.00 away, but "
        "practically they are equal (p(equal within 1) 1.00), and fedprox sends 50% of the bytes."
    )
    assert words(found)[1].startswith("scaffold is 0.2 ± ")
    assert ask(SKEWED, sending({"scaffold": 2e6, "fedavg": 1e6, "fedprox": 2e6}, EQUAL)).method == "fedavg"
    far = {**EQUAL, "fedavg": [0.600, 0.601, 0.602]}
    assert ask(SKEWED, sending({"scaffold": 2e6, "fedavg": 1e6, "fedprox": 2e6}, far)).method == "scaffold"
    assert ask(SKEWED, sending({"scaffold": 2e6, "fedavg": 1.95e6, "fedprox": 2e6}, EQUAL)).method == "scaffold"


def test_where_nobody_counted_bytes_equal_methods_are_left_to_the_reader() -> None:
    found = ask(SKEWED, sending(dict.fromkeys(EQUAL, 0.0), EQUAL))
    assert found.method == "scaffold"
    assert "Practically fedprox is equal; choose by cost." in words(found)


def test_without_evidence_nothing_is_advised() -> None:
    def method(values: Values, skew: Mapping[str, float] = SKEWED, **more: Any) -> tuple[str | None, str]:
        found = ask(SKEWED, rows("s", {("digits", "skew"): (skew, values)}, **more))
        return found.method, words(found)[0]

    assert advise(Target("x", "digits", SKEWED), []).method is None
    assert method({"a": [0.9], "b": [0.8]})[1].startswith(
        "No evidence: no measured setting has two methods on two seeds"
    )
    assert method({"a": [0.9, 0.9]})[0] is None  # nothing to choose from
    assert method({"a": [0.9, 0.9], "b": [0.8, 0.8]}, {})[0] is None  # nobody measured the clients
    assert method({"a": [0.9, 0.9], "b": [0.8, 0.8]}, axes=("data", "partition", "model"))[0] is None  # no algorithms
    assert method({"a": [0.9, 0.9], "b": [0.8, 0.8]})[0] == "a"
    far = ask({**SKEWED, "emd": 2.0, "jensen_shannon": 0.9, "effective_classes": 1.0})
    assert far.method is None
    assert words(far)[0].startswith("No evidence: the nearest of 3 measured settings is 0.50 away")
    assert ask({**SKEWED, "emd": 2.0}, within=2.0).method == "fedprox"


def test_noise_that_is_not_mentioned_is_none() -> None:
    noisy = rows("n", {("digits", "noise"): ({**IID, "noise": 0.1}, {"fedavg": [0.5, 0.5], "fednova": [0.9, 0.9]})})
    assert ask({**IID, "noise": 0.1}, SUITE, noisy).method == "fednova"
    assert ask(IID, SUITE, noisy).near[0].setting.row == "digits/iid"


def test_seeds_with_other_clients_are_no_pairs() -> None:
    cells = list(SUITE.cells)
    at = next(i for i, c in enumerate(cells) if c.name == "digits/skew/fedavg")
    cells[at] = replace(cells[at], runs=(replace(cells[at].runs[0], partition="other"), *cells[at].runs[1:]))
    assert ask(SKEWED, replace(SUITE, cells=tuple(cells))).near[0].setting.seeds == (1, 2)


PARTS = [
    rows("a", {("digits", "skew"): (SKEWED, PROX)}),
    rows("b", {("digits", "skew"): (SKEWED, {"fedavg": [0.9, 0.9], "fednova": [0.8, 0.8]})}),
    rows("a", {("digits", "skew"): (SKEWED, {"fedavg": [0.9, 0.9], "fednova": [0.8, 0.8]})}, size="smoke"),
    SUITE,
]


def test_the_order_of_the_files_does_not_matter(tmp_path: Path) -> None:
    files = [records.write_results(part, tmp_path / str(i) / "results.json") for i, part in enumerate(PARTS)]
    asked = Target("x", "digits", SKEWED)
    found = [advise(asked, settings(read_evidence(order)[0]), most=9) for order in permutations(files)]
    assert all(one == found[0] for one in found)
    assert len(found[0].near) == 5
    assert [n.setting.size for n in found[0].near if n.distance.total == 0][-1] == "smoke"  # short runs are weaker
    assert read_evidence([tmp_path])[0] == read_evidence(files)[0]
    twice, _ = read_evidence([tmp_path, *files])
    assert len(twice) == len(files)  # a file that is named twice counts once


def test_a_file_that_cannot_be_read_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "results.json").write_text("{")
    records.write_results(SUITE, tmp_path / "good" / "results.json")
    found, notes = read_evidence([tmp_path])
    assert (len(found), len(notes)) == (1, 1)
    assert "cannot be read" in notes[0]


# -------------------------------------------------------------------------------------------------- a real tiny one

FILE = """
rounds = 2
data = "digits"
engine = "loop"
partition = { name = "dirichlet", clients = 5, alpha = 0.5 }
task = { model = "linear" }
local = { max_steps = 2 }
algorithm = { name = "fedavg", lr = 0.1 }
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two algorithms on digits, two seeds, run for real and collected by hand."""
    place = tmp_path_factory.mktemp("measured")
    (place / "e.toml").write_text(FILE)
    axes = {"algorithm": [{"name": "fedavg", "lr": 0.1}, {"name": "fedavgm", "lr": 0.1}], "seeds": 2}
    raw = {**atoll.experiment.read(place / "e.toml"), "sweep": axes}
    runs = atoll.sweep.run(raw, place / "grid").runs
    experiment = Experiment.parse(runs[0].info["experiment"])
    data = load_dataset(experiment)
    skew = skew_of(data, make_partition(experiment, data), experiment.partition)
    cells = [
        Cell("main", {"data": "digits", "partition": "dirichlet(0.5)", "algorithm": name},
             tuple(_trace(run) for run in runs if run.info["label"] == name), skew=skew)
        for name in ("fedavg", "fedavgm")
    ]  # fmt: skip
    axes_ = ("data", "partition", "algorithm")
    made = Results("tiny", "Tiny", "full", "accuracy", True, axes_, tuple(cells), scale=100)
    records.write_results(made, place / "results" / "tiny" / "results.json")
    return place


def _trace(run: Any) -> Trace:
    values = tuple(line["accuracy"] for line in run.history)
    rest = run.info["digest"], (1, 2), values, (1.0, 2.0), (1.0, 2.0)
    return Trace(run.info["seed"], *rest, partition=run.info["partition"]["digest"])


@pytest.fixture
def sh(measured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return shell(measured, monkeypatch, capsys, 160)


def test_a_file_a_run_and_a_name_with_a_partition_are_the_same_question(measured: Path, sh: Shell) -> None:
    run = next(measured.glob("grid/cells/*seed=0*"))
    answers = [
        sh("advise e.toml --json a.json --evidence results"),
        sh(f"advise {run} --json b.json --evidence results"),
        sh("advise digits --partition dirichlet --clients 5 --alpha 0.5 --json c.json --evidence results"),
    ]
    assert [answer.code for answer in answers] == [0, 0, 0]
    found = [json.loads((measured / name).read_text()) for name in ("a.json", "b.json", "c.json")]
    for one in found:
        assert one["near"][0]["distance"]["total"] == 0
        assert one["method"] == "fedavgm"
        assert one["target"]["skew"] == found[0]["target"]["skew"]
        assert one["near"][0]["setting"]["seeds"] == [0, 1]
    assert (
        "Use fedavgm: it did best on the nearest measured setting, tiny (full): digits/dirichlet(0.5), 0.00 away."
        in (answers[0].out)
    )


def test_results_here_are_the_usual_evidence(sh: Shell) -> None:
    assert "Use fedavgm" in sh("advise e.toml").out


def test_changes_of_the_file_change_the_question(sh: Shell) -> None:
    done = sh("advise e.toml --set 'partition={name=\"classes\", clients=5, per_client=1}' --evidence results")
    assert done.code == 0
    assert "No evidence: the nearest of 1 measured settings is" in done.out


FAR = 'partition={name="classes", clients=5, per_client=1}'


@pytest.mark.parametrize(
    "asked", [f"e.toml --set '{FAR}'", "run", "digits --partition classes --clients 5 --with per_client=1"]
)
def test_without_evidence_the_command_that_brings_it_is_named_and_works(asked: str, measured: Path, sh: Shell) -> None:
    if asked == "run":
        assert sh(f"run e.toml --set '{FAR}' --out run --quiet").code == 0
    done = sh(f"advise {asked} --evidence results")
    said = done.out.partition("To measure it on these clients, at three seeds each:\n")[2].strip()
    if said.startswith("cat > compare.toml <<'END'\n"):
        text, said = said.removeprefix("cat > compare.toml <<'END'\n").split("\nEND\n")
        (measured / "compare.toml").write_text(text)
    assert "12 cells in" in sh(f"{said.removeprefix('atoll ')} --dry-run").out
    _, _, file, *changes = shlex.split(said)
    made = [cell.experiment for cell in expand(override(atoll.experiment.read(measured / file), changes[1::2]))]
    assert {e.algorithm["name"] for e in made} == {"fedavg", "fedprox", "scaffold", "fednova"}
    assert all(e.partition == {"name": "classes", "clients": 5, "per_client": 1} for e in made)
    assert {(e.rounds, e.local.max_steps) for e in made} == {(50, None) if asked.startswith("digits") else (2, 2)}


def test_of_arrays_from_python_the_call_is_named_that_brings_evidence(tmp_path: Path) -> None:
    x, y = torch.eye(40), torch.arange(40) % 2
    halves = [torch.arange(20), torch.arange(20, 40)]
    table = {"clients": halves, "algorithm": {"name": "fedavg", "lr": 0.1}, "rounds": 1, "engine": "loop"}
    run = atoll.simulate(torch.nn.Linear(40, 2), (x, y), **table, out=tmp_path / "run")
    assert target(str(run.folder)).next_step.startswith("Call atoll.simulate on these arrays with algorithm = ")


def test_mistakes_are_said_plainly(sh: Shell) -> None:
    done = sh("advise digits --alpha 0.5")
    assert (done.code, "--partition: is missing" in done.err) == (2, True)
    assert "go with data by name" in sh("advise e.toml --partition iid --clients 3").err
    assert "Did you mean 'digits'?" in sh("advise digit").err
    assert "partition.alpha" in sh("advise digits --partition dirichlet --clients 5 --alpha -1").err
    nothing = sh("advise e.toml --evidence nowhere")
    assert nothing.code == 0
    assert "No evidence" in nothing.out
    assert "nowhere: is not there" in nothing.out


def test_a_run_that_python_made_is_asked_about_by_its_label_counts(tmp_path: Path) -> None:
    x, y = np.zeros((8, 2), "float32"), np.array([0, 0, 0, 0, 1, 1, 1, 1])
    clients = [[0, 1, 2, 3], [4, 5, 6, 7]]
    fed = {"name": "fedavg", "lr": 0.1}
    run = atoll.simulate(
        lambda: torch.nn.Linear(2, 2), (x, y), clients=clients, algorithm=fed, rounds=1, out=tmp_path / "r"
    )
    found = target(str(run.folder))
    assert (found.skew["emd"], found.skew["effective_classes"], found.skew["clients"]) == (1.0, 1.0, 2.0)


def test_noise_is_measured_as_its_level_whichever_profile() -> None:
    for profile in ("paper", "niid-bench"):
        entry = {"name": "noise", "clients": 4, "level": 0.1, "profile": profile}
        assert target("digits", partition=entry).skew["noise"] == 0.1
    assert "noise" not in target("digits", partition={"name": "iid", "clients": 4}).skew


def test_a_regression_has_no_labels_to_be_skewed() -> None:
    assert set(target("diabetes", partition={"name": "iid", "clients": 4}).skew) == {"size_gini", "clients"}
    with pytest.raises(ConfigError):
        target("no-such-file.toml")


def test_every_setting_has_what_json_needs() -> None:
    found = ask(SKEWED)
    assert all(isinstance(near.setting, Setting) for near in found.near)
    assert json.loads(json.dumps(found.plain()))["method"] == "fedprox"
