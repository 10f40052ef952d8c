"""What servers and clients keep over several rounds, against whole rounds written down in NumPy."""

import numpy as np
import pytest
import torch

from atoll import rng, tree
from atoll.core import Chain, Spec, Update
from atoll.transforms.compress import RandK, Relevance, Sign, Sketch, Ternary, TopK
from tests.support.compressing import Array, Client, close, normal

CLIENTS, ROUNDS = 3, 5
WEIGHTS = [1.0, 2.0, 5.0]


def stc(x: Array, share: float) -> Array:
    """Algorithm 1 of Sattler et al."""
    chosen = np.argsort(-np.abs(x))[: int(np.ceil(share * x.size))]
    out = np.zeros_like(x)
    out[chosen] = np.abs(x[chosen]).mean() * np.sign(x[chosen])
    return out


def least_squares(client: int) -> tuple[Array, Array]:
    """One client's data: rows and targets."""
    rows = normal(10, 12, seed=("rows", client)).double().numpy()
    return rows, normal(10, seed=("targets", client)).double().numpy()


def trained(model: Array, client: int) -> Array:
    """The change of the model after three steps of gradient descent."""
    rows, targets = least_squares(client)
    new = model
    for _ in range(3):
        new = new - 0.02 * rows.T @ (rows @ new - targets)
    return new - model


def as_update(x: Array) -> dict[str, torch.Tensor]:
    return {"w": torch.from_numpy(x).float()}


def test_fedavg_with_ternary_both_ways_is_sattlers_algorithm() -> None:
    share, like = 0.25, {"w": torch.zeros(12)}
    ours, theirs = np.zeros(12), np.zeros(12)
    clients = [Client(like, Ternary(share)) for _ in range(CLIENTS)]
    held, servers = np.zeros((CLIENTS, 12)), np.zeros(12)
    for _ in range(ROUNDS):
        arrived = [
            (c.sends(as_update(trained(ours, i)), weight=w), w)
            for i, (c, w) in enumerate(zip(clients, WEIGHTS, strict=True))
        ]
        ours = ours + clients[0].step(*arrived)["w"].double().numpy()
        mean = np.zeros(12)
        for i, w in enumerate(WEIGHTS):
            full = trained(theirs, i) + held[i]
            mean += w / sum(WEIGHTS) * stc(full, share)
            held[i] = full - stc(full, share)
        servers += mean
        step = stc(servers, share)
        servers, theirs = servers - step, theirs + step
        close(torch.from_numpy(ours), theirs, within=1e-5)
    close(clients[0].state["0"]["0"]["residual"]["w"], servers, within=1e-5)


def test_ternary_one_way_applies_the_mean_as_it_is() -> None:
    like = {"w": torch.zeros(20)}
    clients = [Client(like, Ternary(0.2, both_ways=False)) for _ in range(2)]
    arrived = [(c.sends({"w": normal(20, seed=i)}), 1.0) for i, c in enumerate(clients)]
    close(clients[0].step(*arrived)["w"], sum(x["w"].numpy() for x, _ in arrived) / 2)  # type: ignore[arg-type]


def test_the_majority_of_signs_moves_every_coordinate_by_one_step() -> None:
    client = Client({"w": torch.zeros(30), "b": torch.zeros(())}, Sign("majority", step=0.01))
    for turn in range(3):
        updates = [{"w": normal(30, seed=(turn, i)), "b": normal(seed=("b", turn, i))} for i in range(3)]
        step = client.step(*((client.sends(u), 1.0) for u in updates))
        for name in ("w", "b"):
            votes = sum(np.sign(u[name].numpy()) for u in updates)
            close(step[name], 0.01 * np.sign(votes))


def test_a_vote_is_a_sign_and_a_step_also_of_a_single_number() -> None:
    """Or its size would break the bound that noise relies on."""
    value = {"w": 50 * normal(3), "b": torch.tensor(-50.0), "count": torch.tensor(9)}
    sent = Client(value, Sign("majority", step=0.25)).sends(value)
    assert float(sent["b"]) == -0.25
    assert float(tree.norm(sent)) <= 0.25 * 5**0.5
    assert sent["count"].dtype == torch.int64


def test_a_tied_vote_moves_nothing() -> None:
    client, x = Client({"w": torch.zeros(4)}, Sign("majority")), normal(4)
    assert client.step((client.sends({"w": x}), 1.0), (client.sends({"w": -x}), 1.0))["w"].tolist() == [0.0] * 4


@pytest.mark.parametrize(("size", "feedback"), [("mean", 1.0), ("mean", 0.5), ("majority", 1.0)])
def test_signs_with_feedback_send_later_what_they_could_not(size: str, feedback: float) -> None:
    client, held = Client({"w": torch.zeros(25)}, Sign(size, 0.1, feedback)), np.zeros(25)  # type: ignore[arg-type]
    for turn in range(ROUNDS):
        x = normal(25, seed=turn)
        full = x.numpy() + feedback * held
        sent = np.sign(full) * (np.abs(full).mean() if size == "mean" else 0.1)  # Karimireddy et al., Algorithm 1
        close(client.sends({"w": x})["w"], sent, within=2e-6)
        held = full - sent


def test_a_client_that_counts_for_nothing_holds_all_of_its_update_back() -> None:
    client, x = Client({"w": torch.zeros(10)}, TopK(0.1)), normal(10)
    client.sends({"w": x}, weight=0.0)
    assert torch.equal(client.residual()["w"], x)
    client.sends({"w": torch.zeros(10)}, weight=1.0)
    assert int((client.residual()["w"] != 0).sum()) == 9


SKETCHED, COLUMNS = 60, 16


def table(x: Array, rows: int) -> Array:
    """The count sketch of a vector, entry by entry: in blocks as wide as the table, each turned by its own offset."""
    found = np.zeros((rows, COLUMNS))
    for row, (bucket, sign) in enumerate(hashes(rows)):
        np.add.at(found[row], bucket, sign * x)
    return found


def hashes(rows: int) -> list[tuple[Array, Array]]:
    """Buckets and signs of every entry, row by row."""
    blocks = -(-SKETCHED // COLUMNS)
    both = []
    at = torch.arange(rows, dtype=torch.int32)
    for row in range(rows):
        drawn = rng.quick_bits(rng.key("sketch"), at, blocks * COLUMNS + blocks)[row].numpy().astype(np.int64)
        i = np.arange(SKETCHED)
        bucket = (i % COLUMNS + (drawn[:blocks] & 0x7FFFFFFF)[i // COLUMNS] % COLUMNS) % COLUMNS
        both.append((bucket, 1 - 2 * (drawn[blocks:] & 1)[:SKETCHED]))
    return both


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_server_of_fetchsgd_keeps_momentum_and_errors_as_sketches(rows: int, momentum: float) -> None:
    like = {"a": torch.zeros(5, 11), "b": torch.zeros(()), "c": torch.zeros(4)}
    client = Client(like, Sketch(COLUMNS, rows, share=0.05, momentum=momentum))
    u, e = np.zeros((rows, COLUMNS)), np.zeros((rows, COLUMNS))
    for turn in range(ROUNDS):
        xs = [normal(SKETCHED, seed=(turn, i)).double().numpy() for i in range(CLIENTS)]
        arrived = [(client.sends(dict(zip(like, split(x), strict=True))), w) for x, w in zip(xs, WEIGHTS, strict=True)]
        for (sent, _), x in zip(arrived, xs, strict=True):
            close(sent["sketch"], table(x, rows), within=2e-6)
        step = client.step(*arrived)
        u = momentum * u + table(np.average(xs, axis=0, weights=WEIGHTS), rows)  # Rothchild et al., Algorithm 1
        e = e + u
        estimate = np.median([sign * e[row][bucket] for row, (bucket, sign) in enumerate(hashes(rows))], axis=0)
        flat = torch.cat([x.flatten() for x in tree.leaves(step)])
        chosen = flat.numpy().nonzero()[0]  # entries that share their buckets are tied: any of them will do
        close(torch.from_numpy(np.sort(np.abs(estimate[chosen]))), np.sort(np.abs(estimate))[-3:])
        delta = np.zeros(SKETCHED)
        delta[chosen] = estimate[chosen]
        hit = table(delta, rows) != 0
        u[hit], e[hit] = 0.0, 0.0
        close(flat, delta, within=1e-5)
        close(client.state["0"]["error"], e, within=1e-5)
        close(client.state["0"]["momentum"], u, within=1e-5)


def split(x: Array) -> list[torch.Tensor]:
    flat = torch.from_numpy(x).float()
    return [flat[:55].reshape(5, 11), flat[55], flat[56:]]


def test_a_sketch_of_a_sum_is_the_sum_of_sketches() -> None:
    sketch, x, y = Sketch(COLUMNS), normal(SKETCHED), normal(SKETCHED, seed=1)
    close(sketch.table(x + y), (sketch.table(x) + sketch.table(y)).numpy(), within=1e-5)


def test_a_few_large_entries_are_read_from_a_sketch_as_they_were() -> None:
    x = torch.zeros(2000)
    x[torch.tensor([3, 700, 1999])] = torch.tensor([5.0, -3.0, 2.0])
    close(Sketch(200).read(Sketch(200).table(x), 2000), x.numpy())


def test_cmfl_lets_those_speak_who_agree_with_the_last_step() -> None:
    like, threshold = {"w": torch.zeros(40), "b": torch.zeros(())}, 0.5
    server, last = Client(like, Relevance(threshold)), None
    silenced = 0
    for turn in range(6):
        xs = [normal(41, seed=(turn, i)).numpy() for i in range(CLIENTS)]
        agree = [last is None or np.mean(np.sign(x) == np.sign(last)) >= threshold for x in xs]  # Wang et al., (4)
        weights = [w * a for w, a in zip(WEIGHTS, agree, strict=True)]
        arrived = []
        for x, w in zip(xs, WEIGHTS, strict=True):
            given = {"w": torch.from_numpy(x[:40]), "b": torch.tensor(x[40])}
            update, _ = server.chain.client(
                Update(given, torch.tensor(w)), server.state, server.own, torch.zeros(2, dtype=torch.int64)
            )
            arrived.append((update.value, float(update.weight)))
        assert [w for _, w in arrived] == weights
        silenced += weights.count(0.0)
        step = server.step(*arrived)
        if any(weights):
            last = np.average(xs, axis=0, weights=weights)
            close(torch.cat([step["w"], step["b"][None]]), last, within=1e-5)
        else:
            assert not step["w"].any()
    assert 0 < silenced < 15


@pytest.mark.parametrize("order", [0, 1])
def test_where_nobody_speaks_the_servers_residual_and_the_model_stay_finite(order: int) -> None:
    both = [Relevance(1.0), Ternary(0.2, feedback=0.0)]
    client = Client({"w": torch.zeros(10)}, *both[:: 1 - 2 * order])
    client.step((normal_update(0), 1.0), (normal_update(1), 1.0))
    held = next(x for path, x in tree.paths(client.state) if path.endswith("residual/w"))
    step = client.step(({"w": torch.zeros(10)}, 0.0))
    now = next(x for path, x in tree.paths(client.state) if path.endswith("residual/w"))
    assert torch.isfinite(step["w"]).all()
    close(step["w"] + now, held.numpy())  # what it held back it may send now, but must not lose


def normal_update(i: int) -> tree.Tree:
    return {"w": normal(10, seed=i)}


def test_a_compressors_server_says_nothing_to_clients() -> None:
    for transform in (Ternary(), Sketch(8)):
        bound, _ = transform.bind(Spec())
        assert bound.client_view(bound.init({"w": torch.zeros(40)})[0]) == {}


def test_only_compressors_with_a_server_side_have_one() -> None:
    sides = {
        type(t).__name__: Chain((t,)).bind(Spec())[0].has_server_side() for t in (TopK(0.1), RandK(0.1), Ternary())
    }
    assert sides == {"TopK": False, "RandK": False, "Ternary": True}
