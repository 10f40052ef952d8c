"""What a record says of a model: central and per client, before and after local training, against plain PyTorch."""

import json
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import atoll
from atoll import rng
from atoll.data import Partition
from atoll.experiment import EvaluateTable
from atoll.runs.evaluate import _own_rows
from atoll.tasks import spread

Params = dict[str, Tensor]
SIZES = [5, 23, 1, 12, 9]  # ragged, one client with a single example
LR = 0.2


def blobs(n: int, seed: int = 0, classes: int = 3) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    return torch.randn(n, 4, generator=g) + y[:, None].float(), y


X, Y = blobs(sum(SIZES))
XT, YT = blobs(40, seed=1)
CLIENTS = [list(range(sum(SIZES[:i]), sum(SIZES[: i + 1]))) for i in range(len(SIZES))]


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def run(model: nn.Module | None = None, **options: Any) -> atoll.Run:
    given: dict[str, Any] = {
        "data": (X, Y),
        "test": (XT, YT),
        "clients": CLIENTS,
        "algorithm": {"name": "fedavg", "lr": LR},
        "rounds": 2,
        "batch": 4,
        "shuffle": False,
        "engine": "loop",
        **options,
    }
    return atoll.simulate(model or net(), **given)


def clients_of(done: atoll.Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((done.folder / "clients.json").read_text())
    return found


def score(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        out = model(x)
    return {"accuracy": float((out.argmax(1) == y).float().mean()), "loss": float(F.cross_entropy(out, y))}


def loaded(done: atoll.Run, model: nn.Module | None = None) -> nn.Module:
    model = model or net()
    model.load_state_dict(done.params)
    return model


def trained(model: nn.Module, rows: list[int], batch: int = 4) -> nn.Module:
    """Plain SGD over the client's examples, in order."""
    model.train()
    opt = torch.optim.SGD(model.parameters(), LR)
    for start in range(0, len(rows), batch):
        now = rows[start : start + batch]
        opt.zero_grad()
        F.cross_entropy(model(X[now]), Y[now]).backward()
        opt.step()
    return model


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "vector", "threads"])
def test_before_and_after_local_training_are_what_plain_pytorch_measures(engine: str) -> None:
    done = run(engine=engine, evaluate={"after": True, "batch": 3})
    each = clients_of(done)
    central = score(loaded(done), XT, YT)
    assert {k: done.final[k] for k in central} == pytest.approx(central, rel=1e-5)
    for c, rows in enumerate(CLIENTS):
        before = score(loaded(done), X[rows], Y[rows])
        after = score(trained(loaded(done), rows), X[rows], Y[rows])
        for name in before:
            assert each["before"][name][c] == pytest.approx(before[name], rel=1e-4, abs=1e-6), (c, name)
            assert each["after"][name][c] == pytest.approx(after[name], rel=1e-4, abs=1e-6), (c, name)
    assert done.final["clients"]["loss"] == pytest.approx(spread(np.array(each["before"]["loss"]), "lower"))
    assert done.final["after"]["loss"] == pytest.approx(spread(np.array(each["after"]["loss"]), "lower"))
    assert each["examples"] == SIZES
    assert each["on"] == "training data"


def test_per_client_metrics_are_averaged_over_clients_and_central_ones_over_examples() -> None:
    done = run(test=(X, Y))
    each = clients_of(done)["before"]["accuracy"]
    assert done.final["clients"]["accuracy"]["mean"] == pytest.approx(np.mean(each))
    assert done.final["accuracy"] == pytest.approx(np.average(each, weights=SIZES))
    assert done.final["accuracy"] != pytest.approx(np.mean(each))


@pytest.mark.parametrize("algorithm", ["fedavg", "local", "ditto"])
def test_measuring_in_small_batches_is_measuring_at_once(algorithm: str) -> None:
    entry = {"name": algorithm, "lr": LR}
    runs = [
        run(algorithm=entry, engine=e, evaluate={"batch": b, "after": True})
        for e, b in (("loop", 512), ("loop", 2), ("vector", 7))
    ]
    whole, *others = [{**r.final, **clients_of(r)} for r in runs]
    for other in others:
        for key in ("accuracy", "loss"):
            assert other[key] == pytest.approx(whole[key], rel=1e-5), key
        for when in ("before", "after"):
            assert other[when]["loss"] == pytest.approx(whole[when]["loss"], rel=1e-5)


def test_measuring_a_block_of_clients_at_a_time_is_measuring_all(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"name": "fedper", "lr": LR}
    whole = run(algorithm=entry, engine="vector", evaluate={"after": True})
    monkeypatch.setattr("atoll.runs.evaluate._BYTES", 1)  # one client's model at a time
    parts = run(algorithm=entry, engine="vector", evaluate={"after": True})
    assert parts.final["loss"] == pytest.approx(whole.final["loss"], rel=1e-6)
    assert clients_of(parts)["after"]["loss"] == pytest.approx(clients_of(whole)["after"]["loss"], rel=1e-6)


def test_held_out_examples_are_measured_and_not_trained_on() -> None:
    done = run(evaluate={"holdout": 0.3}, rounds=1)
    each = clients_of(done)
    assert each["on"] == "holdout"
    assert done.info["partition"]["examples"] == sum(each["examples"]) < len(X)
    assert each["examples"] == [3, 16, 1, 8, 6]  # of two or more, at least one each way; of one, none is held out
    assert each["before"]["accuracy"][2] is None
    assert done.final["clients"]["accuracy"]["mean"] == pytest.approx(
        np.mean([v for v in each["before"]["accuracy"] if v is not None])
    )


class Flat(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.view(len(x), -1))  # of an empty batch torch cannot tell the second axis


@pytest.mark.parametrize("algorithm", ["fedavg", "local"])
@pytest.mark.parametrize("engine", ["loop", "vector"])
def test_nobody_has_anything_to_hold_out(algorithm: str, engine: str) -> None:
    single = [[i] for i in range(4)]
    entry = {"name": algorithm, "lr": LR}
    done = run(Flat(4, 3), clients=single, algorithm=entry, engine=engine, evaluate={"holdout": 0.5, "after": True})
    for when in ("before", "after"):
        assert clients_of(done)[when] == {"accuracy": [None] * 4, "loss": [None] * 4}
    assert done.final["clients"]["accuracy"] == {}
    assert 0 <= done.final["accuracy"] <= 1


def test_every_so_many_rounds_and_always_in_the_last() -> None:
    done = run(rounds=7, evaluate={"every": 3})
    assert [("accuracy" in e, "clients" in e) for e in done.history] == [
        (r in (3, 6, 7), r in (3, 6, 7)) for r in range(1, 8)
    ]
    assert all("train_loss" in e and "model" in e for e in done.history)
    dense = run(rounds=7)
    assert [e["model"] for e in done.history] == [e["model"] for e in dense.history]  # looking changes nothing
    assert done.history[2]["loss"] == dense.history[2]["loss"]


def test_some_clients_are_measured_and_always_the_same_ones() -> None:
    done = run(rounds=3, evaluate={"clients": 2})
    each = clients_of(done)
    assert len(each["ids"]) == 2
    everyone = clients_of(run(rounds=3))
    assert everyone["ids"] == list(range(5))
    assert [everyone["before"]["loss"][i] for i in each["ids"]] == each["before"]["loss"]
    assert clients_of(run(rounds=1, evaluate={"clients": 2}))["ids"] == each["ids"]
    assert clients_of(run(rounds=1, evaluate={"clients": 99}))["ids"] == list(range(5))
    nobody = run(evaluate={"clients": 0, "after": True})
    assert nobody.final["clients"] == {}
    assert "accuracy" in nobody.final


@pytest.mark.parametrize("partial", [False, True])
def test_a_cap_on_rows_measures_the_same_few_in_every_round_and_says_so(partial: bool) -> None:
    entry = {"name": "fedper", "lr": LR} if partial else {"name": "fedavg", "lr": LR}
    done = run(algorithm=entry, rounds=2, evaluate={"rows": 7, "batch": 3})
    assert any("7 of the" in note and 'evaluate.rows = "all"' in note for note in done.info["notes"])
    rows = rng.distinct(rng.key(0, "measured", "test rows"), len(YT), 7).sort().values
    assert len(set(rows.tolist())) == 7
    if not partial:
        central = score(loaded(done), XT[rows], YT[rows])
        assert {k: done.final[k] for k in central} == pytest.approx(central, rel=1e-5)
    few = run(algorithm=entry, rounds=2, test=(XT[rows], YT[rows]), evaluate={"rows": "all"})
    assert few.final["loss"] == pytest.approx(done.final["loss"], rel=1e-5)
    assert few.history[-1]["model"] == done.history[-1]["model"]  # how it is measured does not change what is learned
    assert not any("test examples" in note for note in few.info["notes"])


@pytest.mark.parametrize(("rows", "batch"), [(5, 3), (10, 1), (15, 3)])
def test_a_cap_on_rows_gives_each_client_the_same_share_of_them(rows: int, batch: int) -> None:
    done = run(rounds=1, evaluate={"rows": rows, "batch": batch})
    own = _own_rows(Partition.from_lists(CLIENTS), 5, EvaluateTable(rows=rows, batch=batch))
    cohort = own.cohort(torch.arange(5), rng.key(0, "measured", "own rows"))
    assert cohort.count.sum(1).tolist() == [min(rows // 5, n) for n in SIZES]
    for c, mine in enumerate(CLIENTS):
        seen = [int(i) for s, n in enumerate(cohort.count[c]) for i in cohort.plan[c, s, :n]]
        assert len(set(seen)) == len(seen)
        assert set(seen) <= set(mine)
        expected = score(loaded(done), X[seen], Y[seen])["loss"]
        assert clients_of(done)["before"]["loss"][c] == pytest.approx(expected, rel=1e-4)


def test_looking_after_training_changes_nothing_not_even_memory() -> None:
    for algorithm in ("scaffold", "ditto", "local"):
        entry = {"name": algorithm, "lr": LR}
        plain, looking = run(algorithm=entry, rounds=3), run(algorithm=entry, rounds=3, evaluate={"after": True})
        assert [e["model"] for e in plain.history] == [e["model"] for e in looking.history]
        assert [e["train_loss"] for e in plain.history] == [e["train_loss"] for e in looking.history]
        assert plain.final["clients"] == looking.final["clients"]


def own_models(rounds: int) -> list[nn.Module]:
    """Every client alone, from the same start."""
    found = []
    for rows in CLIENTS:
        model = net()
        for _ in range(rounds):
            trained(model, rows)
        found.append(model)
    return found


@pytest.mark.parametrize("engine", ["loop", "vector"])
def test_local_training_is_measured_on_each_client_s_own_model(engine: str) -> None:
    done = run(algorithm={"name": "local", "lr": LR}, rounds=2, engine=engine)
    each, models = clients_of(done), own_models(2)
    for c, rows in enumerate(CLIENTS):
        assert each["before"]["loss"][c] == pytest.approx(score(models[c], X[rows], Y[rows])["loss"], rel=1e-4)
    on_test = [score(m, XT, YT) for m in models]  # no server model is whole: the mean over the clients' models
    for name in ("accuracy", "loss"):
        assert done.final[name] == pytest.approx(np.mean([s[name] for s in on_test]), rel=1e-4)


def test_ditto_is_measured_with_personal_models_and_its_server_centrally() -> None:
    fedavg, ditto = run(), run(algorithm={"name": "ditto", "lr": LR, "mu": 0.0})
    assert ditto.final["loss"] == pytest.approx(fedavg.final["loss"], rel=1e-5)  # the shared model is FedAvg's
    alone = [score(m, X[r], Y[r])["loss"] for m, r in zip(own_models(2), CLIENTS, strict=True)]
    assert clients_of(ditto)["before"]["loss"] == pytest.approx(alone, rel=1e-4)  # mu = 0: each is on its own


def test_fedper_measures_shared_body_and_own_head() -> None:
    done = run(algorithm={"name": "fedper", "lr": LR}, rounds=1)
    body = loaded(done)
    models = []
    for rows in CLIENTS:
        head, mine = trained(net(), rows)[2], loaded(done)
        mine[2] = head
        models.append(mine)
    each = [score(m, X[r], Y[r])["loss"] for m, r in zip(models, CLIENTS, strict=True)]
    assert clients_of(done)["before"]["loss"] == pytest.approx(each, rel=1e-4)
    assert done.final["loss"] == pytest.approx(np.mean([score(m, XT, YT)["loss"] for m in models]), rel=1e-4)
    assert torch.equal(body[2].weight, net()[2].weight)  # the server's head never moved


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm, self.head = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.first(x))))


def test_fedbn_measures_own_statistics() -> None:
    clients = [c for c in CLIENTS if len(c) > 1]
    rows = torch.cat([torch.tensor(c) for c in clients]).tolist()
    whole = [[i for i, r in enumerate(rows) if r in c] for c in clients]
    done = run(
        Normed(),
        data=(X[rows], Y[rows]),
        clients=whole,
        algorithm={"name": "fedbn", "lr": LR},
        rounds=1,
        batch=0,
    )
    losses = []
    for c in clients:
        mine, opt_on = Normed(), Normed().train()
        opt = torch.optim.SGD(opt_on.parameters(), LR)
        F.cross_entropy(opt_on(X[c]), Y[c]).backward()
        opt.step()
        mine.load_state_dict({**done.params, **{k: v for k, v in opt_on.state_dict().items() if "norm" in k}})
        losses.append(score(mine, X[c], Y[c])["loss"])
    assert clients_of(done)["before"]["loss"] == pytest.approx(losses, rel=1e-4)


def test_gossip_measures_every_node_and_the_mean_of_all() -> None:
    done = run(round={"name": "gossip", "graph": "complete"}, rounds=1)
    losses = clients_of(done)["before"]["loss"]
    mean = loaded(done)
    assert losses == pytest.approx([score(mean, X[r], Y[r])["loss"] for r in CLIENTS], rel=1e-4)  # all mixed: all alike
    assert done.final["loss"] == pytest.approx(score(mean, XT, YT)["loss"], rel=1e-5)


def test_all_data_in_one_place_is_measured_on_the_clients_it_came_from() -> None:
    done = run(algorithm={"name": "centralised", "lr": LR}, evaluate={"after": True})
    each = clients_of(done)
    assert each["ids"] == list(range(5))
    assert each["after"] is None
    model = loaded(done)
    assert each["before"]["loss"] == pytest.approx([score(model, X[r], Y[r])["loss"] for r in CLIENTS], rel=1e-4)


def test_without_test_data_there_are_no_central_metrics() -> None:
    done = run(test=None)
    assert set(done.final) == {"round", "train_loss", "clients"}


def test_two_classes_regression_and_top_k_have_their_metrics() -> None:
    two = run(nn.Linear(4, 2), data=(X, Y % 2), test=(XT, YT % 2))
    assert {"accuracy", "loss", "auroc"} <= set(two.final)
    assert clients_of(two)["before"]["auroc"][2] is None  # one example is one class
    lines = (two.folder / "record.jsonl").read_text().splitlines()
    strict = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert len(strict) == 2
    numbers = run(nn.Linear(4, 1), data=(X, X.sum(1)), test=(XT, XT.sum(1)))
    assert {"loss", "mse", "mae"} <= set(numbers.final)
    assert "accuracy" not in numbers.final
    top = run(task={"top_k": [2, 3]})
    assert top.final["accuracy"] <= top.final["top2_accuracy"] <= top.final["top3_accuracy"] == 1.0


def test_a_null_metric_is_not_replaced_by_an_older_one() -> None:
    done = run(nn.Linear(4, 2), data=(X, Y % 2), test=(XT[:1], YT[:1] % 2))
    assert done.final["auroc"] is None
    done.history[0]["auroc"] = 0.5
    assert done.final["auroc"] is None
