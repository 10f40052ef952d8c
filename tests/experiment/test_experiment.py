"""The config room: a file in, a checked experiment or every mistake in it out."""

import copy
import doctest
import io
import json
import random
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from atoll.algorithms.fedavg import FedAvg
from atoll.algorithms.fedprox import FedProx
from atoll.algorithms.optimizers import SGD, Momentum
from atoll.cli.listing import table
from atoll.errors import ConfigError
from atoll.experiment import (
    CATALOGUE,
    GIVEN,
    Experiment,
    build,
    check,
    defaults,
    describe,
    experiment,
    listing,
    load,
    override,
    read,
    registry,
    schema,
    signatures,
    usual_model,
    usual_partition,
)
from atoll.schedules import Cosine
from atoll.schema import argument_json, files, toml
from atoll.schema import messages as advice
from atoll.schema import type_names as words
from atoll.tasks.models.mlp import MLP
from atoll.transforms.noise import GaussianNoise

SAMPLE = """
rounds = 50
seed = 0
[data]
name = "digits"
[partition]
name = "dirichlet"
clients = 20
alpha = 0.3
[cohort]
name = "fixed"
size = 10
[task]
model = { name = "mlp", widths = [64] }
[local]
epochs = 1
batch = 32
[algorithm]
name = "fedprox"
lr = 0.1
mu = 0.01
[[transform]]
name = "clip_l2"
max_norm = 1.0
[engine]
name = "auto"
"""
RAW = tomllib.loads(SAMPLE)
BUILDERS = [(kind, name) for kind, names in CATALOGUE.items() for name in names]


def parse(*changes: str) -> Experiment:
    """The sample with these changes."""
    return Experiment.parse(override(RAW, changes))


def problems(raw: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Experiment.parse(raw)
    return caught.value.problems


def mistakes(*changes: str) -> list[str]:
    return problems(override(RAW, changes))


def without(*path: str) -> dict[str, Any]:
    raw = copy.deepcopy(RAW)
    inside = raw
    for key in path[:-1]:
        inside = inside[key]
    del inside[path[-1]]
    return raw


# what a good file becomes


def test_the_sample_file_parses() -> None:
    e = Experiment.parse(RAW)
    assert (e.rounds, e.seed, e.label) == (50, 0, None)
    rest = {"minimum": 2, "short": "redraw", "profile": "paper"}
    assert e.partition == {"name": "dirichlet", "clients": 20, "alpha": 0.3, **rest}
    assert e.cohort == {"name": "fixed", "size": 10}
    assert e.task.model == {"name": "mlp", "widths": [64], "dropout": 0.0, "init": "default"}
    assert e.algorithm["optimizer"] == {"name": "sgd", "momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
    assert e.transform == [{"name": "clip_l2", "max_norm": 1.0}]
    assert (e.local.epochs, e.local.batch, e.local.shuffle, e.local.max_steps) == (1, 32, True, None)
    assert (e.evaluate.every, e.evaluate.clients, e.evaluate.holdout, e.evaluate.batch) == (1, 200, 0.0, 512)
    assert (e.stop, e.checkpoint.every, e.on_divergence) == (None, 10, "stop")


def test_what_may_be_left_out_has_a_default() -> None:
    e = Experiment(rounds=1, data="digits", algorithm={"name": "fedavg", "lr": 1})
    assert e.partition is None
    assert e.task.model is None
    assert e.cohort == {"name": "everyone"}
    assert e.reducer == {"name": "mean"}
    assert e.transform == []
    assert (e.engine["name"], e.round["name"]) == ("auto", "central")


def test_a_bare_name_is_an_entry() -> None:
    assert parse("cohort=everyone").cohort == parse("cohort={name='everyone'}").cohort
    nested = parse("algorithm.optimizer=adam").algorithm["optimizer"]
    assert (nested["name"], nested["b2"]) == ("adam", 0.999)
    assert parse("transform=['equal_weights']").transform == [{"name": "equal_weights"}]


def test_a_whole_number_is_a_number_and_a_small_number_stays_one() -> None:
    lr = parse("algorithm.lr=1").algorithm["lr"]
    assert (lr, type(lr)) == (1.0, float)
    assert parse("algorithm.lr=1e-6").algorithm["lr"] == 1e-6


def test_an_experiment_cannot_be_changed() -> None:
    e = Experiment.parse(RAW)
    with pytest.raises(ValueError, match="frozen"):
        e.rounds = 3  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        e.local.batch = 3  # type: ignore[misc]


def test_keywords_are_checked_like_a_file() -> None:
    raw: dict[str, Any] = {**RAW, "local": experiment.LocalTable(batch=7)}
    assert Experiment(**raw).local.batch == 7
    with pytest.raises(ConfigError, match="rounds: must be at least 1"):
        Experiment(**{**RAW, "rounds": 0})


def test_nothing_is_not_a_value_unless_it_is_the_default() -> None:
    assert Experiment.parse({**RAW, "partition": None, "label": None}).partition is None
    assert problems({**RAW, "seed": None}) == ["seed: must not be empty. Leave it out for the default."]


# what a bad file is told

MISTAKES = [
    ("rounds=0", "rounds: must be at least 1 (got 0)."),
    ("rounds=2.5", "rounds: must be a whole number (got 2.5)."),
    ("rounds=5.0", "rounds: must be a whole number (got 5.0). Write 5 without a point."),
    ("rounds=true", "rounds: must be a whole number (got true)."),
    ("seed=-1", "seed: must be at least 0 (got -1)."),
    ("label=7", 'label: must be text (got 7). Write "7" in quotes.'),
    ("label=2024-01-01", 'label: must be text (got 2024-01-01). Write "2024-01-01" in quotes.'),
    ("on_divergence=dropp", "on_divergence: must be 'stop' or 'drop' (got \"dropp\"). Did you mean 'drop'?"),
    ("algorithm.lr=-1", "algorithm.lr: must be above 0 (got -1)."),
    ("algorithm.lr=0", "algorithm.lr: must be above 0 (got 0)."),
    ("algorithm.lr=nan", "algorithm.lr: must be a finite number (got nan)."),
    ("algorithm.lr=inf", "algorithm.lr: must be a finite number (got inf)."),
    ("algorithm.lr=true", "algorithm.lr: must be a number (got true)."),
    ("algorithm.lr='0.1'", 'algorithm.lr: must be a number (got "0.1"). Write 0.1 without quotes.'),
    ("algorithm.lr=[0.1]", "algorithm.lr: must be a number (got [0.1])."),
    (
        "algorithm.lrr=0.1",
        "algorithm.lrr: is not an option of fedprox. Did you mean lr? Options: lr, mu, optimizer, server_lr.",
    ),
    (
        "algorithm.learning_rate=0.1",
        "algorithm.learning_rate: is not an option of fedprox. Did you mean lr? Options: lr, mu, optimizer, server_lr.",
    ),
    ("algorithm.task=1", "algorithm.task: is not an option of fedprox. Options: lr, mu, optimizer, server_lr."),
    ("algorithm.optimizer={name='sgd', momentum=1}", "algorithm.optimizer.momentum: must be below 1 (got 1)."),
    (
        "algorithm.optimizer=sgdd",
        "algorithm.optimizer.name: 'sgdd' is not known. Did you mean 'sgd'? Known: sgd, adam, adamw.",
    ),
    (
        "algorithm.optimizer=3",
        'algorithm.optimizer: must be a name or a table with a name (got 3). Example: name = "sgd"',
    ),
    ("algorithm=3", 'algorithm: must be a name or a table with a name (got 3). Example: name = "fedavg"'),
    ("data.nam=1", "data.nam: is not an option of digits, which has none."),
    (
        "partition.alpha=-1",
        "partition.alpha: must be above 0 (got -1). For an even split use partition.name = 'iid'.",
    ),
    ("partition.short=borow", "partition.short: must be 'redraw' or 'borrow' (got \"borow\"). Did you mean 'borrow'?"),
    ("cohort.size=0", "cohort.size: must be at least 1 (got 0). For all clients use cohort.name = 'everyone'."),
    ("local.batch='32'", 'local.batch: must be a whole number (got "32"). Write 32 without quotes.'),
    ("local.batch='many'", 'local.batch: must be a whole number (got "many").'),
    ("local.batch=-1", "local.batch: must be at least 0 (got -1). 0 means all examples of the client at once."),
    ("local.shuffle='true'", 'local.shuffle: must be true or false (got "true"). Write true without quotes.'),
    ("local.shuffle=1", "local.shuffle: must be true or false (got 1)."),
    (
        "local.epoch=1",
        "local.epoch: is not an option of local. Did you mean epochs? "
        "Options: epochs, batch, shuffle, max_steps, privacy.",
    ),
    ("local=3", "local: must be a table (got 3). Write [local] and its options below that."),
    ("task.model.widths=64", "task.model.widths: must be a list (got 64). Write [64]."),
    ("task.model.widths=[64, 0]", "task.model.widths.1: must be at least 1 (got 0)."),
    ("task.model={name='vgg9', widths=[1]}", "task.model.widths: must have at least 2 items (got 1)."),
    (
        "task.model.outputs=3",
        "task.model.outputs: is not an option of mlp. Options: widths, dropout, init.",
    ),
    (
        "task.batch_norm=group_norm",
        "task.batch_norm: must be 'average', 'local', 'recompute', 'freeze' or 'group' (got \"group_norm\"). "
        "Did you mean 'group'?",
    ),
    (
        "transform=clip_l2",
        'transform: must be a list (got "clip_l2"). '
        'Write transform = ["equal_weights", { name = "clip_l2", max_norm = 1.0 }].',
    ),
    ("transform.0.max_norm=0", "transform.0.max_norm: must be above 0 (got 0)."),
    ("evaluate.clients=-1", "evaluate.clients: must be a whole number >= 0 or 'all' (got -1)."),
    (
        "evaluate.holdout=1",
        "evaluate.holdout: must be below 1 (got 1). It is a share: 0.2 keeps a fifth of each client's examples.",
    ),
    (
        "stop.threshold=0.1",
        "stop: does not say when to end. Give patience = 10 (evaluations without an improvement), or a target.",
    ),
    (
        "data.seed=1",
        "data.seed: is not an option of digits, which has none. "
        "For the experiment's seed write it above the first [table].",
    ),
    (
        "algoritm=fedavg",
        "algoritm: is not an option of an experiment. Did you mean algorithm? Options: rounds, seed, on_divergence, "
        "label, metric, data, partition, cohort, task, local, algorithm, transform, broadcast, reducer, engine, round, "
        "server, clock, secure, attack, evaluate, stop, privacy, checkpoint.",
    ),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_says_where_what_and_what_instead(change: str, message: str) -> None:
    assert mistakes(change) == [message]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("rounds", "rounds: is missing; an experiment needs it. Example: rounds = 50"),
        ("data", 'data: is missing; an experiment needs it. Example: data = { name = "digits" }'),
        (
            "algorithm",
            'algorithm: is missing; an experiment needs it. Example: algorithm = { name = "fedavg", lr = 0.1 }',
        ),
        ("algorithm.mu", "algorithm.mu: is missing; fedprox needs it. Example: mu = 0.01"),
        ("cohort.size", "cohort.size: is missing; fixed needs it. Example: size = 10"),
        (
            "cohort.name",
            'cohort.name: is missing. Example: name = "everyone". '
            "Known: everyone, fixed, fixed_with_replacement, fraction, poisson, cyclic, cyclic_poisson, available.",
        ),
    ],
)
def test_what_is_missing_is_asked_for_with_an_example(path: str, message: str) -> None:
    assert problems(without(*path.split("."))) == [message]


def test_an_unknown_name_lists_the_known_ones() -> None:
    [message] = mistakes("algorithm.name=fedprx")
    assert message.startswith("algorithm.name: 'fedprx' is not known. Did you mean 'fedprox'? Known: fedsgd, fedavg, ")
    assert all(name in message for name in CATALOGUE["algorithms"])
    [message] = mistakes("algorithm.name=3")
    assert message.startswith("algorithm.name: must be text (got 3). Known: fedsgd, ")


def test_all_mistakes_are_reported_at_once() -> None:
    found = mistakes(
        "rounds=0", "seeed=1", "algorithm.lr=-1", "local.batch='a'", "transform.0.max_norm=0", "data=digitz"
    )
    places = [message.partition(":")[0] for message in found]
    assert places == ["seeed", "rounds", "data.name", "local.batch", "algorithm.lr", "transform.0.max_norm"]
    assert str(ConfigError(found)) == "\n".join(found)


def test_a_misspelt_option_is_not_reported_as_missing_too() -> None:
    raw = without("algorithm", "mu")
    raw["algorithm"]["muu"] = 0.1
    assert [m.partition(":")[0] for m in problems(raw)] == ["algorithm.muu"]


def test_what_is_no_table_is_no_experiment() -> None:
    assert problems({**RAW, "self": 1})[0].startswith("self: is not an option of an experiment.")
    assert problems([1]) == ["experiment: must be a table (got [1]). Start with rounds = 50."]


# schedules


def test_a_number_may_follow_a_schedule() -> None:
    e = parse("algorithm.lr={name='cosine', start=0.1, over=50}")
    assert e.algorithm["lr"] == {"name": "cosine", "start": 0.1, "over": 50, "end": 0.0}
    nested = parse("algorithm.optimizer={name='sgd', momentum={name='constant', start=0}}")
    assert nested.algorithm["optimizer"]["momentum"] == {"name": "constant", "start": 0.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("algorithm.lr={name='cosine', start=0, over=5}", "algorithm.lr.start: must be above 0 (got 0.0)."),
        (
            "algorithm.optimizer={name='sgd', momentum={name='constant', start=2}}",
            "algorithm.optimizer.momentum.start: must be below 1 (got 2.0).",
        ),
        (
            "algorithm.lr={name='cosine', start=0.1}",
            "algorithm.lr.over: is missing; cosine needs it. Example: over = 50",
        ),
        (
            "algorithm.lr={name='cosin', start=0.1}",
            "algorithm.lr.name: 'cosin' is not known. Did you mean 'cosine'? "
            "Known: constant, step, cosine, warmup, plateau, follow.",
        ),
        (
            "algorithm.lr=constant",
            "algorithm.lr.start: is missing; constant needs it. Example: start = 0.1",
        ),
        ("local.batch={name='step'}", 'local.batch: must be a whole number (got { name = "step" }).'),
    ],
)
def test_a_schedule_that_cannot_hold_is_refused(change: str, message: str) -> None:
    assert mistakes(change) == [message]


# from entries to objects


def test_build_calls_the_builder_with_what_is_given() -> None:
    e = parse("algorithm.optimizer={name='sgd', momentum=0.9}")
    algorithm = build(CATALOGUE["algorithms"], e.algorithm, where="algorithm", task="the task", population=20)
    assert algorithm == FedProx("the task", lr=0.1, mu=0.01, optimizer=Momentum(0.9))  # type: ignore[arg-type]
    model = build(CATALOGUE["models"], e.task.model, where="task.model", inputs=(1, 8, 8), outputs=10)
    assert isinstance(model, MLP)
    assert model.head.in_features == 64


def test_build_makes_schedules() -> None:
    entry = {"name": "fedavg", "lr": {"name": "cosine", "start": 0.1, "over": 50}}
    algorithm = build(CATALOGUE["algorithms"], entry, where="algorithm", task=None)
    assert algorithm == FedAvg(None, lr=Cosine(0.1, 50), optimizer=SGD())  # type: ignore[arg-type]


def test_an_import_path_to_what_is_no_schedule_is_refused() -> None:
    entry = {"name": "fedavg", "lr": {"name": "atoll.transforms.clip:ClipL2", "max_norm": 0.1}}
    with pytest.raises(ConfigError, match=r"algorithm.lr.name: .* gives a ClipL2, which is no schedule"):
        build(CATALOGUE["algorithms"], entry, where="algorithm", task=None)


def test_build_refuses_what_check_refuses() -> None:
    with pytest.raises(ConfigError, match=re.escape("x.max_norm: must be above 0 (got 0).")):
        build(CATALOGUE["transforms"], {"name": "clip_l2", "max_norm": 0}, where="x")


def test_what_bind_finds_cannot_be_typed_in() -> None:
    assert list(schema(GaussianNoise)) == ["noise_multiplier", "noise_cohort", "epsilon", "delta"]
    assert mistakes("transform=[{name='gaussian_noise', noise_multiplier=1, sensitivity=2}]") == [
        "transform.0.sensitivity: is not an option of gaussian_noise. "
        "Options: noise_multiplier, noise_cohort, epsilon, delta."
    ]


# builders of one's own

STRANGER = """
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from pydantic import Field
from torch import Tensor
from atoll.algorithms.optimizers import Momentum, Optimizer

number = 3

@dataclass(frozen=True)
class Mine:
    '''Mine.'''
    task: object
    strength: Annotated[float, Field(gt=0)]
    sizes: tuple[int, ...] = (1, 2)
    folder: Path = Path("here")
    optimizer: Optimizer = Momentum(0.5)
    table: Tensor | None = None
    odd: Annotated[float, Field(gt=0)] = 0.0  # a default that no file could give
    _seen: int = 0
    anything = None

def plain(x, y=2):
    '''Plain.'''
    return x, y

def needs_a_tensor(weights: Tensor):
    '''Needs.'''
"""


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"lab_{random.randrange(10**12)}"
    (tmp_path / f"{name}.py").write_text(STRANGER)
    (tmp_path / f"{name}_broken.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_class_by_import_path_follows_the_same_rules(stranger: str) -> None:
    known = CATALOGUE["algorithms"]
    entry, wrong = check(known, {"name": f"{stranger}:Mine", "strength": 1}, "algorithm", {"task"})
    assert (entry, wrong) == ({"name": f"{stranger}:Mine", "strength": 1.0, "sizes": [1, 2], "folder": "here"}, [])
    mine = build(known, {**entry, "sizes": [3], "folder": "there"}, where="algorithm", task="t", population=3)
    assert (mine.task, mine.sizes, mine.folder, mine.optimizer) == ("t", (3,), Path("there"), Momentum(0.5))
    _, wrong = check(known, {"name": f"{stranger}:Mine", "strength": -1, "size": 3}, "algorithm", {"task"})
    assert wrong == [
        f"algorithm.size: is not an option of {stranger}:Mine. Did you mean sizes? "
        "Options: strength, sizes, folder, optimizer, odd.",
        "algorithm.strength: must be above 0 (got -1).",
    ]
    assert build(known, {"name": f"{stranger}:plain", "x": [1]}, where="algorithm") == ([1], 2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_lab:Mine", "cannot import 'no_such_lab' (No module named 'no_such_lab'). Install it, work in "),
        ("LAB:Mien", "'LAB' has no 'Mien'. Did you mean 'LAB:Mine'?"),
        ("LAB:number", "'LAB:number' is a int. Name a class or a function."),
        ("LAB_broken:Mine", "importing 'LAB_broken' failed (ZeroDivisionError: division by zero). Mend that module."),
        ("LAB:needs_a_tensor", "needs_a_tensor asks for 'weights' (Tensor), which a file cannot give. Use a number, "),
        ("my_lab.algorithms.Mine", "For code of your own write 'my_lab.algorithms:Mine'. Known: "),
    ],
)
def test_an_import_path_that_fails_says_why(stranger: str, name: str, message: str) -> None:
    [found] = mistakes(f"algorithm={{name='{name.replace('LAB', stranger)}'}}")
    assert found.startswith("algorithm.name: ")
    assert message.replace("LAB", stranger) in found


# digest and TOML


def shuffled(raw: Any, luck: random.Random) -> Any:
    """The same file with its keys in another order."""
    if isinstance(raw, dict):
        keys = list(raw)
        luck.shuffle(keys)
        return {k: shuffled(raw[k], luck) for k in keys}
    return [shuffled(x, luck) for x in raw] if isinstance(raw, list) else raw


def test_a_digest_does_not_depend_on_how_the_file_was_written() -> None:
    digest = Experiment.parse(RAW).digest()
    assert re.fullmatch("[0-9a-f]{32}", digest)
    assert Experiment.parse(Experiment.parse(RAW).complete()).digest() == digest
    assert parse("algorithm.server_lr=1", "algorithm.optimizer=sgd", "local.shuffle=true").digest() == digest
    assert all(Experiment.parse(shuffled(RAW, random.Random(i))).digest() == digest for i in range(3))


def test_a_digest_does_not_depend_on_the_order_in_a_free_table(stranger: str) -> None:
    one, other = ({"name": f"{stranger}:plain", "x": x} for x in ({"a": 1, "b": 2}, {"b": 2, "a": 1}))
    assert Experiment(**{**RAW, "algorithm": one}).digest() == Experiment(**{**RAW, "algorithm": other}).digest()


def test_toml_is_written_as_people_write_it() -> None:
    text = Experiment.parse(RAW).to_toml()
    assert text.startswith('rounds = 50\nseed = 0\non_divergence = "stop"\n\n[data]\nname = "digits"\n\n[partition]\n')
    assert '\n\n[[transform]]\nname = "clip_l2"\nmax_norm = 1.0\n\n[' in text
    assert 'model = { name = "mlp", widths = [64], dropout = 0.0, init = "default" }' in text


@pytest.mark.parametrize("change", ["seed=1", "algorithm.mu=0.02", "transform=[]", "label=x", "evaluate.clients=all"])
def test_another_experiment_has_another_digest(change: str) -> None:
    assert parse(change).digest() != Experiment.parse(RAW).digest()


def test_a_complete_experiment_is_plain_data() -> None:
    whole = parse("stop.patience=3").complete()
    assert json.loads(json.dumps(whole)) == whole
    assert whole["stop"] == {"patience": 3, "threshold": 0.0}
    assert "label" not in whole  # what is None has no place in TOML


NUMBERS = st.floats(min_value=1.2e-38, max_value=3.4e38)


@given(
    lr=NUMBERS | st.builds(lambda start: {"name": "cosine", "start": start, "over": 3}, NUMBERS),
    seed=st.integers(0, 2**63 - 1),
    label=st.none() | st.text(),
    widths=st.lists(st.integers(1, 10**6)),
    bounds=st.lists(NUMBERS, max_size=3),
    clients=st.integers(0, 10**9) | st.just("all"),
)
def test_an_experiment_survives_its_own_toml(
    lr: Any, seed: int, label: str | None, widths: list[int], bounds: list[float], clients: Any
) -> None:
    raw = copy.deepcopy(RAW) | {"seed": seed, "label": label, "evaluate": {"clients": clients}}
    raw["algorithm"]["lr"] = lr
    raw["task"]["model"]["widths"] = widths
    raw["transform"] = [{"name": "clip_l2", "max_norm": bound} for bound in bounds]
    e = Experiment.parse(raw)
    again = Experiment.parse(tomllib.loads(e.to_toml()))
    assert again == e
    assert again.digest() == e.digest()


PLAIN = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(), x, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), PLAIN, max_size=4))
def test_whatever_is_written_as_toml_reads_back(data: dict[str, Any]) -> None:
    assert tomllib.loads(toml.dumps(data)) == data


# files


def write(folder: Path, text: str, name: str = "first.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_is_loaded_with_its_changes(tmp_path: Path) -> None:
    path = write(tmp_path, SAMPLE)
    assert load(path) == Experiment.parse(RAW)
    assert load(str(path), ["rounds=3", "algorithm.mu=0"]).algorithm["mu"] == 0.0
    assert read(write(tmp_path, "\ufeffrounds = 1")) == {"rounds": 1}


@pytest.mark.parametrize(
    ("text", "place", "hint"),
    [
        ("rounds = 5\nlr = .1\n", "line 2, column 6", "Write a zero before the point: 0.1, not .1."),
        ("lr = 0,1", "line 1, column 7", "Write decimals with a point: 0.1, not 0,1."),
        ("lr = 1.\n", "line 1, column 7", "Write a digit after the point: 1.0, not 1."),
        ("name = fedavg", "line 1, column 8", 'Text needs quotes: name = "fedavg".'),
        ("after = True", "line 1, column 9", "Write true and false in lower case."),
        ("label = None", "line 1, column 9", "TOML has no empty value: leave the line out."),
        ("rounds = ", "line 1, column 10", "A value is missing after the =."),
        ("rounds: 5", "line 1, column 7", "TOML writes key = value, with = and not with a colon."),
        ("[data", "line 1, column 6", "A [ is not closed."),
        ("a = 1\na = 2", "line 2, column 6", "This key is there twice: keep one."),
        ("[a]\n[a]", "line 2, column 3", "This table is there twice: put its lines together."),
        ('name = "fedavg\nlr = 1', "line 1, column 15", "A quote is not closed."),
        ("a = [1, 2", "line 1, column 10", "A bracket is not closed."),
        ("rounds 5", "line 1, column 8", "A line is key = value, or [table]; text stands in quotes."),
    ],
)
def test_a_file_that_cannot_be_read_shows_the_line(tmp_path: Path, text: str, place: str, hint: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    head, line, caret, advised = str(caught.value).split("\n")
    row, column = map(int, re.findall(r"\d+", place))
    assert head.startswith(f"{path}, {place}: ")
    assert line == f"    {text.splitlines()[row - 1]}"
    assert caret == " " * (3 + column) + "^"
    assert advised == hint


def test_a_file_that_is_not_there_suggests_one_that_is(tmp_path: Path) -> None:
    path = write(tmp_path, SAMPLE)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "frist.toml")
    assert str(caught.value) == f"{tmp_path}/frist.toml: there is no such file. Did you mean {path}?"
    with pytest.raises(ConfigError, match=re.escape(f"There is no folder {tmp_path}/no either.")):
        load(tmp_path / "no" / "first.toml")


def test_what_is_no_text_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, SAMPLE)
    with pytest.raises(ConfigError, match=re.escape("is a folder. Give a file. It has first.toml.")):
        load(tmp_path)
    path.write_bytes(b"rounds = \xff")
    with pytest.raises(ConfigError, match=re.escape("is not UTF-8 text (byte 9). Save it as UTF-8.")):
        load(path)

    def locked(*_: Any, **__: Any) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", locked)
    with pytest.raises(ConfigError, match=re.escape("cannot be read (Permission denied).")):
        load(path)


@pytest.mark.parametrize(
    ("raw", "changes", "expected"),
    [
        ({}, ["a=1", "b=1.5", "c=true", "d=[1, 2]"], {"a": 1, "b": 1.5, "c": True, "d": [1, 2]}),
        ({}, ["a=1e-6"], {"a": 1e-6}),
        ({}, ["a.b.c=x"], {"a": {"b": {"c": "x"}}}),
        ({}, ["a='5'", "b=", "c=x=y", "d= two words "], {"a": "5", "b": "", "c": "x=y", "d": "two words"}),
        ({}, ["a=1\nb=2"], {"a": "1\nb=2"}),
        ({"t": [{"b": 1}]}, ["t.0.b=0.5", "t.1.name=x"], {"t": [{"b": 0.5}, {"name": "x"}]}),
        ({}, ["t.0.name=x"], {"t": [{"name": "x"}]}),
        ({"w": [1, 2]}, ["w.1=5", "w.2=6"], {"w": [1, 5, 6]}),
        ({"a": "sgd"}, ["a.momentum=0.9"], {"a": {"name": "sgd", "momentum": 0.9}}),
        ({"a": {"b": 1}}, ["a=x"], {"a": "x"}),
        ({"a": {}}, ["a.b=1"], {"a": {"b": 1}}),
    ],
)
def test_set_changes_a_copy(raw: dict[str, Any], changes: Sequence[str], expected: dict[str, Any]) -> None:
    before = copy.deepcopy(raw)
    assert override(raw, changes) == expected
    assert raw == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("rounds", "--set rounds: must be path=value. Example: --set algorithm.lr=0.05"),
        ("=5", "--set =5: must be path=value. Example: --set algorithm.lr=0.05"),
        ("local..batch=5", "--set local..batch=5: must be path=value. Example: --set algorithm.lr=0.05"),
        ("rounds.x=5", "--set rounds.x=5: rounds is 50, not a table. Set rounds itself."),
        (
            "transform.max_norm=1",
            "--set transform.max_norm=1: transform.max_norm is in a list. Count from 0: transform.0.",
        ),
        (
            "transform.3.max_norm=1",
            "--set transform.3.max_norm=1: there is no transform.3, the list has 1 items. Use transform.1 to add one.",
        ),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(change: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override(RAW, [change])
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("value", "what", "at"),
    [
        ('[equal_weights,{name="clip_l2",max_norm=0.5}]', "Invalid value", "equal"),
        ('["equal_weights",{name="clip_l2",max_norm=0.5,}]', "Invalid initial character for a key part", "}]"),
        ("{name=clip_l2}", "Invalid value", "clip"),
        ('["equal_weights"', "Unclosed array", ""),
    ],
)
def test_a_list_or_table_that_is_not_toml_is_shown_with_what_is_wrong(value: str, what: str, at: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override(RAW, [f"transform={value}"])
    first, shown, mark, hint = str(caught.value).splitlines()
    assert first == f"--set transform: {what}."
    assert shown == f"    {value}"
    assert shown[mark.index("^") :].startswith(at)
    assert hint.startswith("Names need quotes")
    assert """--set 'transform=["equal_weights", { name = "clip_l2", max_norm = 1.0 }]'""" in hint


# what follows from the data


@pytest.mark.parametrize(
    ("kind", "inputs", "name"),
    [
        ("classification", (1, 8, 8), "mlp"),
        ("classification", (30,), "mlp"),
        ("classification", (1, 28, 28), "lenet"),
        ("classification", (3, 32, 32), "cnn"),
        ("regression", (10,), "linear"),
        ("next_token", (40,), "char_lstm"),
    ],
)
def test_the_model_follows_from_the_data(kind: str, inputs: tuple[int, ...], name: str) -> None:
    entry = usual_model(kind, inputs)
    assert entry == {"name": name}
    build(CATALOGUE["models"], entry, where="task.model", inputs=inputs, outputs=10)


def test_the_clients_follow_from_a_single_natural_key() -> None:
    assert usual_partition("synthetic", ["user"]) == {"name": "natural", "by": "user"}
    with pytest.raises(ConfigError, match=re.escape("digits has no natural clients. Example: partition = ")):
        usual_partition("digits", [])
    with pytest.raises(
        ConfigError, match=re.escape('(site, user). Example: partition = { name = "natural", by = "site"')
    ):
        usual_partition("mine", ["user", "site"])


# everything that is registered


def example_entry(kind: str, name: str) -> dict[str, Any]:
    """An entry with an example for everything that is required."""
    arguments = schema(CATALOGUE[kind][name], GIVEN.get(kind, ()))
    first = {n: next(iter(CATALOGUE[a.kind])) for n, a in arguments.items() if a.kind}
    return {"name": name, **{n: first.get(n) or advice.example(a) for n, a in arguments.items() if a.required}}


@pytest.mark.parametrize(("kind", "name"), BUILDERS)
def test_every_builder_has_a_usable_schema(kind: str, name: str) -> None:
    arguments = schema(CATALOGUE[kind][name], GIVEN.get(kind, ()))
    assert not {"name", "task", "key"} & set(arguments)
    entry, wrong = check(CATALOGUE[kind], example_entry(kind, name), kind, GIVEN.get(kind, ()))
    assert wrong == []
    assert check(CATALOGUE[kind], entry, kind, GIVEN.get(kind, ())) == (entry, [])
    left_out = {n for n, a in arguments.items() if not a.required and a.default is None}
    assert set(entry) == {"name", *arguments} - left_out
    assert tomllib.loads(toml.dumps(entry)) == entry


@pytest.mark.parametrize(("kind", "name"), BUILDERS)
def test_every_builder_is_described_in_words(kind: str, name: str) -> None:
    [item] = [item for item in describe(kind) if item.name == name]
    assert item.meaning.endswith(".")
    assert 10 <= len(item.meaning) <= 120
    kinds = "number|whole number|text|path|list of|table|optimizer|reducer|data set|graph|transform"
    said = rf"(an? )?({kinds}|true or false|'|anything).*"
    assert all(re.fullmatch(said, option.type) for option in item.options), item.options


@pytest.mark.parametrize(
    "kind", ["optimizers", "schedules", "transforms", "reducers", "partitions", "engines", "rounds"]
)
def test_every_entry_becomes_an_object(kind: str) -> None:
    clients = {"population": 4, "client_names": ()}
    from_program = {"reducers": {**clients, "population": 1}, "rounds": clients}.get(kind, {})
    for name in CATALOGUE[kind]:
        build(CATALOGUE[kind], example_entry(kind, name), where=kind, **from_program)


def test_options_are_told_in_words() -> None:
    said = {o.name: str(o) for item in describe("algorithms") if item.name == "scaffold" for o in item.options}
    assert said == {
        "lr": "lr (required): number > 0, or a schedule",
        "option": "option = \"II\": 'I' or 'II'",
        "profile": "profile = \"paper\": 'paper', 'niid-bench' or 'pfl-research'",
        "optimizer": 'optimizer = "sgd": an optimizer',
        "server_lr": "server_lr = 1.0: number > 0, or a schedule",
    }
    said = {o.name: str(o) for item in describe("models") if item.name in ("mlp", "vgg9") for o in item.options}
    assert said["widths"] == "widths = [512, 512]: list of 2 whole numbers >= 1"
    [by, *_] = [item.options[0] for item in describe("partitions") if item.name == "natural"]
    assert (str(by), by.required, by.default) == ("by (optional): text", False, None)


@pytest.mark.parametrize("kind", CATALOGUE)
def test_a_listing_fits_eighty_columns(kind: str) -> None:
    console = Console(width=80, file=io.StringIO(), color_system=None)
    console.print(table(kind))
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, printed.splitlines())) <= 80
    assert all(name in printed for name in CATALOGUE[kind])  # no name is cut


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        table("algorithm")
    expected = f"list: 'algorithm' is not known. Did you mean 'algorithms'? Known: {', '.join([*CATALOGUE, 'suites'])}."
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    "module", [advice, argument_json, defaults, experiment, files, listing, registry, signatures, toml, words]
)
def test_the_examples_in_the_docs_run(module: Any) -> None:
    assert doctest.testmod(module).failed == 0
