"""[attack] in a file: who attacks, what is left as it was, and what is refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import atoll
from atoll.errors import AtollError
from atoll.experiment import Experiment, set_up
from atoll.records import Record, RunFolder, read_runs
from atoll.runs import run_together, why_not_stackable
from tests.support.shell import Shell, shell


def experiment(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "rounds": 3,
        "data": "digits",
        "partition": {"name": "iid", "clients": 8},
        "task": {"model": {"name": "mlp", "widths": [8]}},
        "local": {"max_steps": 2},
        "algorithm": {"name": "fedavg", "lr": 0.2},
        "evaluate": {"clients": 4},
    }
    return {**base, **changes}


def models(run: Any) -> list[str]:
    return [line["model"] for line in RunFolder(run.folder).record()]


def record(run: Any) -> Record:
    return read_runs([run.folder])[0]


@pytest.mark.parametrize("name", ["alie", "backdoor", "label_flip"])
def test_a_share_of_nothing_is_no_attack_bit_by_bit(name: str, tmp_path: Path) -> None:
    plain = atoll.run(experiment(), tmp_path / "plain")
    idle = atoll.run(experiment(attack={"name": name, "share": 0.0}), tmp_path / "idle")
    assert models(plain) == models(idle)
    assert record(idle).attack is None


def test_until_it_starts_an_attack_on_data_changes_nothing(tmp_path: Path) -> None:
    plain = atoll.run(experiment(), tmp_path / "plain")
    late = atoll.run(experiment(attack={"name": "label_flip", "share": 0.5, "start": 3}), tmp_path / "late")
    assert [a == b for a, b in zip(models(plain), models(late), strict=True)] == [True, True, False]


def test_honest_clients_read_the_rows_they_had() -> None:
    setup = set_up(Experiment.parse(experiment(attack={"name": "backdoor", "clients": [1, 5]})), "cpu")
    assert setup.attack is not None
    assert setup.attack.table is not None
    honest = ~setup.attack.mask[setup.training.owners()]
    assert torch.equal(setup.attack.table[honest], setup.training.indices[honest])
    replaced = setup.attack.table[~honest] >= setup.dataset.examples
    assert 0.3 < float(replaced.float().mean()) < 0.7
    key = torch.zeros(2, dtype=torch.int64)
    own, poisoned = (setup.population.cohort(torch.arange(8), key, table) for table in (0, 1))
    same = (own.plan == poisoned.plan).flatten(1).all(1)
    assert same.tolist() == [i not in (1, 5) for i in range(8)]
    assert torch.equal(own.count, poisoned.count)


def test_a_larger_share_holds_a_smaller_one() -> None:
    def ids(share: float) -> set[int]:
        setup = set_up(Experiment.parse(experiment(attack={"name": "zero", "share": share})), "cpu")
        assert setup.attack is not None
        return set(setup.attack.ids.tolist())

    assert len(ids(0.25)) == 2
    assert ids(0.25) < ids(0.5) < ids(1.0)


@pytest.mark.parametrize("attack", [{"name": "min_max"}, {"name": "neurotoxin", "boost": "replacement"}])
def test_engines_agree_on_what_attackers_do(attack: dict[str, Any], tmp_path: Path) -> None:
    made = {
        str(engine): atoll.run(
            experiment(attack={**attack, "share": 0.4}, reducer="median", engine=engine), tmp_path / str(i)
        )
        for i, engine in enumerate(["vector", "loop", {"name": "vector", "chunk": 3}])
    }
    losses = [[line["loss"] for line in RunFolder(run.folder).record()] for run in made.values()]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0] == pytest.approx(losses[2], rel=1e-4)


@pytest.mark.parametrize("name", ["free_rider", "mimic", "neurotoxin"])
def test_an_attack_that_remembers_goes_on_where_it_was(name: str, tmp_path: Path) -> None:
    options = {"noise": 1.0, "replay": True} if name == "free_rider" else {}
    asked = experiment(attack={"name": name, "share": 0.3, **options}, checkpoint={"every": 1})
    whole = atoll.run({**asked, "rounds": 4}, tmp_path / "whole")
    half = atoll.run({**asked, "rounds": 2}, tmp_path / "half")
    atoll.run({**asked, "rounds": 4}, half.folder, resume=True)
    assert models(whole) == models(half)


def test_attackers_that_are_late_attack_nobody(tmp_path: Path) -> None:
    """The attackers of a round are among those whose reports count."""
    clock = {"seconds_per_step": 0.01, "dropout": 0.5}
    run = atoll.run(experiment(attack={"name": "sign_flip", "share": 0.5}, clock=clock, rounds=4), tmp_path / "r")
    attackers = set(json.loads((run.folder / "run.json").read_text())["attack"]["clients"])
    acted = [set(line["diagnostics"]["attack"]["attackers"]) for line in RunFolder(run.folder).record()]
    for line, ids in zip(RunFolder(run.folder).record(), acted, strict=True):
        assert ids == attackers & set(line["cohort"]["ids"])
    assert any(ids < attackers for ids in acted)


def test_gossip_can_be_poisoned_and_secure_sums_too(tmp_path: Path) -> None:
    flip = {"name": "label_flip", "share": 0.5}
    bounded = [{"name": "equal_weights"}, {"name": "clip_l2", "max_norm": 5.0}]
    secure = {"secure": {"protocol": "secagg", "insecure_seed": True}, "transform": bounded}
    for name, more in (("gossip", {"round": "gossip"}), ("secure", secure)):
        plain = atoll.run(experiment(rounds=2, **more), tmp_path / name)
        attacked = atoll.run(experiment(rounds=2, attack=flip, **more), tmp_path / f"{name}-attacked")
        assert models(plain)[-1] != models(attacked)[-1]
        assert record(attacked).attack is not None


def test_a_backdoor_succeeds_with_a_mean_and_not_with_a_median(tmp_path: Path) -> None:
    asked = experiment(rounds=12, local={"epochs": 2}, attack={"name": "backdoor", "share": 0.25})
    success = {}
    for reducer in ("mean", "median"):
        found = record(atoll.run({**asked, "reducer": reducer, "evaluate": {"every": 12}}, tmp_path / reducer)).attack
        assert found is not None
        success[reducer] = found.success
    assert success["mean"] > 0.5
    assert success["median"] < 0.3


def test_how_long_a_backdoor_lasts_is_in_the_record(tmp_path: Path) -> None:
    attack = {"name": "backdoor", "share": 0.25, "stop": 4}
    run = atoll.run(experiment(rounds=12, local={"epochs": 2}, attack=attack), tmp_path / "r")
    found = record(run).attack
    assert found is not None
    series = record(run).series("attack.success")
    after = series.rounds[(series.rounds > 4) & (series.values < found.at_stop / 2)]
    assert found.survived == (int(after[0]) - 4 if len(after) else None)
    assert found.survival


def test_an_epsilon_under_attack_is_that_of_honest_clients(tmp_path: Path) -> None:
    private = {
        "transform": [
            {"name": "equal_weights"},
            {"name": "clip_l2", "max_norm": 0.5},
            {"name": "gaussian_noise", "noise_multiplier": 1.0},
        ],
        "privacy": {"delta": 1e-5},
    }
    plain = atoll.run(experiment(**private), tmp_path / "plain")
    loud = atoll.run(experiment(attack={"name": "scaled", "share": 0.5, "factor": 1e6}, **private), tmp_path / "loud")
    epsilon = [RunFolder(run.folder).record()[-1]["privacy"]["epsilon"] for run in (plain, loud)]
    assert epsilon[0] == epsilon[1]
    assert any("that of honest clients" in note for note in RunFolder(loud.folder).info["notes"])
    accuracy = RunFolder(loud.folder).record()[-1]["loss"]
    assert accuracy < 10  # a factor of a million is cut to the bound of the clip
    with pytest.raises(AtollError, match="there is no epsilon"):
        set_up(Experiment.parse(experiment(attack={"name": "ipm", "share": 0.5}, **private)), "cpu")


CLIPPED = ["equal_weights", {"name": "clip_l2", "max_norm": 4.0}]


def secured(mode: str, name: str, **options: Any) -> dict[str, Any]:
    secure = {"protocol": "secagg", "mode": mode, "dropout": 0.1}
    attack = {"name": name, "share": 0.25, **options}
    return experiment(transform=CLIPPED, secure=secure, attack=attack, engine="loop")


@pytest.mark.parametrize("name", ["sign_flip", "alie", "free_rider"])
def test_who_makes_up_updates_in_a_secure_sum_moves_it_alike_with_and_without_messages(
    name: str, tmp_path: Path
) -> None:
    real, cost = (atoll.run(secured(mode, name), tmp_path / mode) for mode in ("real", "cost"))
    assert models(real) == models(cost)
    honest = atoll.run(experiment(transform=CLIPPED, secure={"protocol": "secagg", "mode": "cost", "dropout": 0.1},
                                  engine="loop"), tmp_path / "honest")  # fmt: skip
    assert models(honest)[-1] != models(cost)[-1]


def test_an_attacked_secure_sum_still_knows_who_will_be_lost(tmp_path: Path) -> None:
    attacked = secured("real", "sign_flip")
    attacked["secure"] = {**attacked["secure"], "dropout": 0.3, "threshold": 3}
    honest = {name: value for name, value in attacked.items() if name != "attack"}
    runs = [RunFolder(atoll.run(one, tmp_path / str(i)).folder).record() for i, one in enumerate((attacked, honest))]
    bytes_up = [[line["bytes"]["up"] for line in lines] for lines in runs]
    assert any(line["secure"]["lost"] for line in runs[0])
    assert bytes_up[0] == bytes_up[1]  # who is lost has sent keys before


def test_an_update_that_is_made_up_as_it_was_leaves_a_secure_sum_bit_by_bit(tmp_path: Path) -> None:
    plain = secured("cost", "scaled", factor=1.0)
    honest = {name: value for name, value in plain.items() if name != "attack"}
    assert models(atoll.run(plain, tmp_path / "made")) == models(atoll.run(honest, tmp_path / "honest"))


def test_a_clip_does_not_hold_attackers_of_a_secure_sum(tmp_path: Path) -> None:
    open_ = {k: v for k, v in secured("cost", "sign_flip", factor=1e6).items() if k != "secure"}
    hidden = atoll.run(secured("cost", "sign_flip", factor=1e6), tmp_path / "hidden")
    seen = atoll.run(open_, tmp_path / "seen")
    loss = [RunFolder(run.folder).record()[-1]["loss"] for run in (hidden, seen)]
    assert math.isfinite(loss[0])
    assert loss[0] > 2 * loss[1]
    assert any("A clip binds honest clients alone" in note for note in RunFolder(hidden.folder).info["notes"])


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "nobody is named": ({"attack": "alie"}, "attack: give share"),
    "both are named": ({"attack": {"name": "alie", "share": 0.1, "clients": [1]}}, "and not both"),
    "a typo": ({"attack": {"name": "aile", "share": 0.2}}, "Did you mean 'alie'"),
    "an unknown option": ({"attack": {"name": "alie", "share": 0.2, "zmax": 1}}, "attack.zmax"),
    "a share above one": ({"attack": {"name": "alie", "share": 20}}, "attack.share"),
    "a share of nobody": ({"attack": {"name": "alie", "share": 0.01}}, "0.01 of 8 clients is nobody"),
    "a client that is not there": ({"attack": {"name": "alie", "clients": [8]}}, "there is no client 8. Use 0 to 7"),
    "after the end": ({"attack": {"name": "alie", "share": 0.2, "start": 9}}, "9 is after the last round, 3"),
    "stops too early": ({"attack": {"name": "alie", "share": 0.2, "start": 2, "stop": 1}}, "is before attack.start"),
    "pooled": (
        {"attack": {"name": "zero", "share": 0.5}, "algorithm": {"name": "centralised", "lr": 0.1}},
        "no clients to attack it",
    ),
    "nothing is sent": (
        {"attack": {"name": "zero", "share": 0.5}, "algorithm": {"name": "local", "lr": 0.1}},
        "clients of local send nothing",
    ),
    "gossip": ({"attack": {"name": "alie", "share": 0.5}, "round": "gossip"}, "neighbours mix models"),
    "secure": (
        {"attack": {"name": "min_max", "share": 0.5}, "secure": {"protocol": "secagg"}, "transform": CLIPPED},
        "nobody sees another's update",
    ),
    "no classes": ({"attack": {"name": "label_flip", "share": 0.5}, "data": "diabetes"}, "diabetes has none"),
    "no such class": ({"attack": {"name": "backdoor", "share": 0.5, "target": 10}}, "there is no class 10"),
    "a bound that moves": (
        {
            "attack": {"name": "zero", "share": 0.5},
            "transform": [{"name": "clip_l2", "max_norm": {"name": "cosine", "start": 1.0, "over": 3, "end": 0.5}}],
        },
        "follows a schedule",
    ),
}


@pytest.mark.parametrize(
    ("reducer", "attackers", "words"),
    [
        ({"name": "krum", "byzantine": 1}, 2, "2 of 8 clients attack, and krum holds up to 1"),
        ({"name": "median"}, 4, "4 of 8 clients attack, and median holds up to 3"),
        ({"name": "median"}, 3, None),
        ({"name": "norm_clipping", "max_norm": 1.0}, 4, None),
        ("mean", 4, None),
    ],
)
def test_more_attackers_than_a_defence_holds_are_noted(reducer: Any, attackers: int, words: str | None) -> None:
    who = {"name": "zero", "clients": list(range(attackers))}
    notes = [
        n for n in set_up(Experiment.parse(experiment(attack=who, reducer=reducer)), "cpu").notes if "holds up" in n
    ]
    assert len(notes) == (words is not None)
    assert words is None or words in notes[0]


@pytest.mark.parametrize(
    ("reducer", "plain"),
    [
        ({"name": "trimmed_mean", "share": 0.05}, True),
        ({"name": "trimmed_mean", "share": 0.2}, False),
        ({"name": "bucketing", "size": 20, "inner": "median"}, True),
        ({"name": "bucketing", "size": 2, "inner": "median"}, False),
        ({"name": "bucketing", "size": 2, "inner": {"name": "trimmed_mean", "share": 0.2}}, True),
        ({"name": "multi_krum", "byzantine": 0}, True),
        ({"name": "nnm", "byzantine": 0, "inner": "median"}, True),
        ({"name": "arc", "byzantine": 2, "inner": {"name": "meamed", "byzantine": 0}}, False),
        ("mean", False),
    ],
)
def test_a_defence_that_is_a_plain_mean_of_this_cohort_is_noted(reducer: Any, plain: bool) -> None:
    notes = set_up(Experiment.parse(experiment(reducer=reducer)), "cpu").notes
    assert any("is a plain mean" in note for note in notes) == plain


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_is_refused_with_advice(what: str) -> None:
    changes, words = WRONG[what]
    if "data" in changes:
        changes = {**changes, "task": {}}
    with pytest.raises(AtollError, match=words):
        set_up(Experiment.parse(experiment(**changes)), "cpu")


@pytest.fixture
def sh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return shell(tmp_path, monkeypatch, capsys, 300)


FILE = """
rounds = 2
data = "digits"
partition = { name = "iid", clients = 8 }
task.model = { name = "mlp", widths = [8] }
local.max_steps = 2
algorithm = { name = "fedavg", lr = 0.2 }
attack = { name = "alie", clients = [2, 6] }
"""


def test_the_command_line_says_who_attacks_and_what_they_know(sh: Shell, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(FILE)
    said = "alie by 2 of 8 clients, from round 1 to the end; it knows the updates of all attackers"
    checked = " ".join(sh("check a.toml").out.split())
    assert f"{said} (clients 2, 6)" in checked
    assert said in " ".join(sh("run a.toml --out one").out.split())
    assert sh("run a.toml --out two --set attack.name=zero").code == 0
    assert f"attack {said}" in " ".join(sh("report one").out.split())
    assert "they know" in (tmp_path / "one" / "report.html").read_text("utf-8")
    compared = " ".join(sh("compare one two").out.split())
    assert f"Attack: A {said}; B zero by 2 of 8 clients" in compared
    listed = " ".join(sh("list attacks").out.replace("│", " ").split())
    assert "Knows everybody's updates and the defence." in listed


def test_a_sweep_over_attacks_and_shares_has_what_a_heat_map_needs(sh: Shell, tmp_path: Path) -> None:
    axes = '[sweep]\n"attack.name" = ["zero", "label_flip"]\n"attack.share" = [0.0, 0.5]\nseeds = 2\n'
    (tmp_path / "a.toml").write_text(FILE.replace("clients = [2, 6]", "share = 0.0") + axes)
    swept = sh("sweep a.toml --out s")
    assert swept.code == 0, swept.err
    records = read_runs([path.parent for path in sorted((tmp_path / "s").rglob("record.jsonl"))])
    assert len(records) == 8
    attacked = [(r.attack.name, r.attack.count, math.isnan(r.attack.success)) for r in records if r.attack is not None]
    assert sorted(attacked) == [("label_flip", 4, False)] * 2 + [("zero", 4, True)] * 2
    who = {tuple(r.run["attack"]["clients"]) for r in records if r.attack is not None}
    assert len(who) == 2  # every seed has attackers of its own, the same for all attacks


def test_runs_in_one_stack_have_attackers_of_their_own(tmp_path: Path) -> None:
    asked = [Experiment.parse(experiment(seed=seed, attack={"name": "sign_flip", "share": 0.25})) for seed in (0, 1)]
    assert why_not_stackable(asked) is None
    together = run_together(asked, [tmp_path / "a", tmp_path / "b"])
    for i, run in enumerate(together):
        alone = atoll.run(asked[i], tmp_path / f"alone-{i}")
        lines, others = RunFolder(run.folder).record(), RunFolder(alone.folder).record()
        assert [x["diagnostics"] for x in lines] == [x["diagnostics"] for x in others]
        assert [x["loss"] for x in lines] == pytest.approx([x["loss"] for x in others], rel=1e-5)
    poisoned = [Experiment.parse(experiment(seed=s, attack={"name": "label_flip", "share": 0.25})) for s in (0, 1)]
    assert "poisoned examples" in str(why_not_stackable(poisoned))


DEFENDED: list[dict[str, Any]] = [
    {"name": "fltrust"},
    {"name": "krum", "byzantine": 2},
    {"name": "nnm", "byzantine": 2, "inner": {"name": "trimmed_mean", "share": 0.25}},
    {"name": "foolsgold"},
    {"name": "centred_clipping", "radius": 0.5},
]


@pytest.mark.parametrize("reducer", DEFENDED, ids=lambda r: str(r["name"]))
@pytest.mark.parametrize("attack", ["alie_search", "backdoor"])
def test_attacked_defences_run_and_resume_to_the_same_bits(
    reducer: dict[str, Any], attack: str, tmp_path: Path
) -> None:
    root = {"server": {"root": 0.05}} if reducer["name"] == "fltrust" else {}
    raw = experiment(reducer=reducer, attack={"name": attack, "share": 0.25}, checkpoint={"every": 1}, **root)
    whole = atoll.run(raw, tmp_path / "whole")
    atoll.run({**raw, "rounds": 2}, tmp_path / "half")
    longer = atoll.run({**raw, "rounds": 3}, tmp_path / "half", resume=True)
    assert models(longer) == models(whole)
    told = json.loads((whole.folder / "run.json").read_text())["attack"]
    assert told["population"] == 8  # the server's own data is nobody's


def test_a_server_with_data_of_its_own_withstands_what_a_mean_does_not(tmp_path: Path) -> None:
    attack = {"name": "sign_flip", "share": 0.25, "factor": 20.0}
    raw = experiment(rounds=8, attack=attack, local={"epochs": 1})
    trusted = {"reducer": "fltrust", "server": {"root": 0.05}}
    helpless, safe = atoll.run(raw, tmp_path / "mean"), atoll.run({**raw, **trusted}, tmp_path / "trust")
    assert safe.final["accuracy"] > helpless.final["accuracy"] + 0.3


def test_the_servers_data_cannot_be_made_to_attack() -> None:
    raw = experiment(reducer="fltrust", server={"root": 0.05}, attack={"name": "sign_flip", "clients": [8]})
    with pytest.raises(AtollError, match=r"attack\.clients: there is no client 8\. Use 0 to 7"):
        set_up(Experiment.parse(raw), "cpu")


def test_a_server_with_data_is_not_measured_as_a_client_also_under_attack(tmp_path: Path) -> None:
    trusted = experiment(reducer="fltrust", server={"root": 0.05}, attack={"name": "sign_flip", "share": 0.25})
    run = atoll.run({**trusted, "evaluate": {"clients": "all"}}, tmp_path / "root")
    measured = record(run).clients
    assert measured is not None
    assert list(measured.ids) == list(range(8))
