"""Group knowledge transfer: against plain PyTorch, what it becomes without transfer, and what it sends."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from atoll import rng, tree
from atoll.algorithms import FedGKT
from atoll.algorithms.fedgkt import Extraction
from atoll.algorithms.optimizers import Momentum
from atoll.core import Chain, Columns, Info, Trained
from atoll.data import Partition, Population
from atoll.engines import DeviceData, Loop
from atoll.errors import ConfigError
from atoll.rounds import Central, KnowledgeTransfer
from atoll.tasks import Classification, Regression, Supervised, batch_loss
from atoll.tasks.models import Gkt
from atoll.testing.assertions import distance
from atoll.testing.harness import EngineFactory, Federation, federation, stack
from atoll.testing.problems import Problem, network
from atoll.wire import wire_bytes

SIZES, LR, T = (4, 6, 3), 0.2, 2.0
ROWS = (torch.tensor([7, 1, 12, 3]), torch.tensor([0, 5, 9, 2, 11, 4]), torch.tensor([6, 10, 8]))


def net(outputs: int = 3) -> Gkt:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Gkt((1, 2, 3), outputs, features=4, widths=[5], channels=2)


def problem() -> Problem:
    total = sum(SIZES)
    x, y = rng.normal(rng.key("x"), (total, 1, 2, 3)), rng.bits(rng.key("y"), (total,)) % 3
    task = Supervised(net(), Classification(3), {"x": x[:4], "y": y[:4], "mask": torch.ones(4)})
    return Problem(task, task.init(rng.key(0)), {"x": x, "y": y}, Partition.from_lists(ROWS), batch=2)


def made(
    engine: EngineFactory = stack, lr: float = LR, batch: int = 2, max_steps: int | None = None, **options: Any
) -> Federation:
    given = problem()
    algorithm = FedGKT(given.task, lr, max(SIZES), temperature=T, server_batch=4, **options)
    return started(given, algorithm, engine, batch, max_steps)


def started(
    given: Problem, algorithm: FedGKT, engine: EngineFactory = stack, batch: int = 2, max_steps: int | None = None
) -> Federation:
    round = KnowledgeTransfer.around(Central(), algorithm, Chain(), given.partition.sizes, batch, max_steps)
    return federation(given, algorithm, engine, round=round)


def reading(data: DeviceData, batch: int, epochs: int, max_steps: int | None = None) -> DeviceData:
    """The same data, read in another way."""
    population = Population(data.population.partition, batch, epochs, shuffle=False, max_steps=max_steps)
    return replace(data, population=population)


def extracted(model: Gkt, x: Tensor) -> Tensor:
    first, second = model.extractor
    return second(first(x).relu().flatten(1)).relu()  # type: ignore[no-any-return]


def judged(model: Gkt, h: Tensor) -> Tensor:
    first, second = model.tower
    return second(first(h).relu())  # type: ignore[no-any-return]


def kl(taught: Tensor, logits: Tensor) -> Tensor:
    student = (logits / T).log_softmax(1)
    return T * T * F.kl_div(student, (taught / T).softmax(1), reduction="batchmean")


def by_hand(
    rounds: int, lr: float, weight: float, server_epochs: int = 1, momentum: float = 0.0
) -> tuple[list[Gkt], Gkt]:
    """The paper's two loops, client after client and batch after batch; optimizers begin anew in every round."""
    data, clients, server = problem().columns, [net() for _ in SIZES], net()
    answers: dict[int, Tensor] = {}
    for number in range(rounds):
        features, logits = [], []
        for model, rows in zip(clients, ROWS, strict=True):
            optimizer = torch.optim.SGD([*model.extractor.parameters(), *model.classifier.parameters()], lr, momentum)
            for batch in rows.split(2):  # type: ignore[no-untyped-call]
                out = model.classifier[0](extracted(model, data["x"][batch]))
                loss = F.cross_entropy(out, data["y"][batch])
                if answers:
                    loss = loss + weight * kl(torch.stack([answers[int(i)] for i in batch]), out)
                step(loss, optimizer)
            features.append(extracted(model, data["x"][rows]).detach())
            logits.append(model.classifier[0](features[-1]).detach())
        h, z, rows = torch.cat(features), torch.cat(logits), torch.cat(ROWS)
        optimizer = torch.optim.SGD(server.tower.parameters(), 0.1, momentum)
        for turn in range(server_epochs):
            key = rng.fold_host(rng.fold_name(rng.key("round", number), "teach"), turn)
            for batch in torch.argsort(rng.uniform(key, (len(rows),)), stable=True).split(4):  # type: ignore[no-untyped-call]
                out = judged(server, h[batch])
                step(F.cross_entropy(out, data["y"][rows[batch]]) + weight * kl(z[batch], out), optimizer)
        answers = dict(zip(rows.tolist(), judged(server, h).detach(), strict=True))
    return clients, server


def step(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


@pytest.mark.parametrize("engine", [stack, Loop])
def test_two_rounds_are_those_of_plain_pytorch(engine: EngineFactory) -> None:
    run = made(engine, kl_weight=0.7, server_kl_weight=0.7)
    for _ in range(2):
        run.run([0, 1, 2])
    clients, server = by_hand(2, LR, 0.7)
    for i, model in enumerate(clients):
        own = tree.rows(run.rows()["algorithm"]["params"], i)
        assert distance(own, {k: dict(model.named_parameters())[k].detach() for k in own}) < 1e-5
    tower = {k: x for k, x in run.server["params"].items() if k.startswith("tower.")}
    assert distance(tower, {k: dict(server.named_parameters())[k].detach() for k in tower}) < 1e-5
    assert distance(tower, {k: dict(by_hand(2, LR, 0.0)[1].named_parameters())[k].detach() for k in tower}) > 1e-3


def test_passes_of_the_server_have_orders_of_their_own_and_one_momentum() -> None:
    run = made(kl_weight=0.7, server_kl_weight=0.7, server_epochs=2, optimizer=Momentum(0.5))
    for _ in range(2):
        run.run([0, 1, 2])
    _, server = by_hand(2, LR, 0.7, server_epochs=2, momentum=0.5)
    tower = {k: x for k, x in run.server["params"].items() if k.startswith("tower.")}
    assert distance(tower, {k: dict(server.named_parameters())[k].detach() for k in tower}) < 1e-5


def test_one_logit_of_two_classes_is_trained_as_yes_or_no() -> None:
    given, model = problem(), net(outputs=1)
    columns = {**given.columns, "y": given.columns["y"] % 2}
    task = Supervised(net(outputs=1), Classification(2), {**tree.rows(columns, slice(0, 4)), "mask": torch.ones(4)})
    given = Problem(task, task.init(rng.key(0)), columns, given.partition, batch=2)
    run = started(given, FedGKT(task, LR, max(SIZES), server_batch=4))
    run.run([0, 1, 2])
    optimizer = torch.optim.SGD([*model.extractor.parameters(), *model.classifier.parameters()], LR)
    for batch in ROWS[0].split(2):  # type: ignore[no-untyped-call]
        out = model.classifier[0](extracted(model, columns["x"][batch]))
        step(F.binary_cross_entropy_with_logits(out[:, 0], columns["y"][batch].float()), optimizer)
    own = tree.rows(run.rows()["algorithm"]["params"], 0)
    assert distance(own, {k: dict(model.named_parameters())[k].detach() for k in own}) < 1e-5
    assert run.state["answers"]["logits"].shape == (3, 6, 2)


@pytest.mark.parametrize("batch", [0, 1, 4, 50])
@pytest.mark.parametrize("epochs", [1, 2])
def test_every_example_is_read_once_after_training_whatever_the_batch(batch: int, epochs: int) -> None:
    run = made(lambda data, store: stack(reading(data, batch, epochs), store), batch=batch)
    game = run.round.run(run.context([0, 1, 2]), run.state, rng.key(0))
    request: Any = next(game)
    request = game.send(run.engine.submit(request).result())
    read = run.engine.submit(request).result()
    assert request.max_steps == -(-max(SIZES) // (batch or max(SIZES)))
    with pytest.raises(StopIteration) as end:
        game.send(read)
    assert end.value.value[0]["answers"]["known"].sum(1).tolist() == list(SIZES)


def test_of_examples_that_max_steps_cuts_nothing_is_said() -> None:
    run = made(lambda data, store: stack(reading(data, 2, 1, max_steps=2), store), max_steps=2)
    first, second = run.run([0, 1, 2]).traffic, run.run([0, 1, 2]).traffic
    assert run.state["answers"]["known"].sum(1).tolist() == [4, 4, 3]
    rows = [
        {"features": torch.zeros(n, 4), "logits": torch.zeros(n, 3), "labels": torch.zeros(n).long()} for n in (4, 4, 3)
    ]
    assert first.up == second.up == sum(wire_bytes(x) for x in rows)
    assert second.down == sum(wire_bytes({"logits": torch.zeros(n, 3)}) for n in (4, 4, 3))


def places_of(read: Trained, ids: Tensor) -> Columns:
    return read.columns()._replace(order=ids[read.order])


def test_answers_go_to_those_whose_rows_came_where_a_client_was_left_out() -> None:
    run = made()
    known = []
    for left_out in (False, True):
        game = run.round.run(run.context([0, 1, 2]), run.state, rng.key(0))
        request: Any = game.send(run.engine.submit(next(game)).result())  # type: ignore[arg-type]
        ids = torch.tensor([0, 2]) if left_out else request.ids
        read = run.engine.submit(replace(request, ids=ids)).result()
        with pytest.raises(StopIteration) as end:
            game.send(replace(read, columns=partial(places_of, read, ids)))
        known.append(end.value.value[0]["answers"]["known"].sum(1).tolist())
    assert known == [[4, 6, 3], [4, 0, 3]]


def test_padding_is_not_written_down() -> None:
    own = {"params": made().rows()["algorithm"]["params"]}
    own, reader = tree.rows(own, 0), Extraction(3)
    batch = {"x": torch.ones(2, 1, 2, 3), "y": torch.tensor([1, 2]), "mask": torch.tensor([1.0, 0.0])}
    update, _ = reader.finish(
        reader.step(reader.start({}, own), {}, own, {**batch, "place": torch.tensor([2, 0])}),
        {}, own, Info(torch.tensor(0), torch.tensor(1.0), torch.tensor(1.0)),
    )  # fmt: skip
    assert update.value["read"].tolist() == [0, 0, 1]
    assert update.value["labels"].tolist() == [0, 0, 1]


def test_without_transfer_on_frozen_features_the_tower_is_trained_centrally() -> None:
    run = made(lr=1e-12, kl_weight=0.0, server_kl_weight=0.0)
    for _ in range(3):
        run.run([2, 0, 1])
    data, model = problem().columns, net()
    h, y = extracted(model, data["x"]).detach(), data["y"]
    rows = torch.cat(ROWS)
    optimizer = torch.optim.SGD(model.tower.parameters(), 0.1)
    for number in range(3):
        key = rng.fold_host(rng.fold_name(rng.key("round", number), "teach"), 0)
        for batch in rows[torch.argsort(rng.uniform(key, (len(rows),)), stable=True)].split(4):
            optimizer.zero_grad()
            F.cross_entropy(judged(model, h[batch]), y[batch]).backward()
            optimizer.step()
    assert distance(run.server["params"], {k: p.detach() for k, p in model.named_parameters()}) < 1e-5


def test_bytes_are_rows_of_each_example_up_and_answers_down_from_the_second_round_on() -> None:
    run = made()
    first, second = run.run([0, 1, 2]).traffic, run.run([0, 2]).traffic
    rows = [
        {"features": torch.zeros(n, 4), "logits": torch.zeros(n, 3), "labels": torch.zeros(n).long()} for n in SIZES
    ]
    up = [wire_bytes(x) for x in rows]
    assert (first.up, first.down) == (sum(up), 3 * wire_bytes({}))
    answers = [wire_bytes({"logits": torch.zeros(n, 3)}) for n in SIZES]
    assert (second.up, second.down) == (up[0] + up[2], answers[0] + answers[2])


def test_a_round_to_which_nobody_comes_changes_nothing_and_others_keep_their_answers() -> None:
    run = made()
    run.run([0, 1, 2])
    before = run.state
    assert not run.run([]).changed
    assert tree.digest(run.state) == tree.digest(before)
    run.run([1])
    old, new = before["answers"]["logits"], run.state["answers"]["logits"]
    assert torch.equal(old[[0, 2]], new[[0, 2]])
    assert not torch.equal(old[1], new[1])


def test_models_that_cannot_be_cut_and_examples_with_two_holders_are_refused() -> None:
    given = network()
    with pytest.raises(ConfigError, match=r"task.model = 'gkt'"):
        FedGKT(given.task, LR, 7).init(given.model, rng.key(0))
    with pytest.raises(ConfigError, match="held by two clients"):
        Population(Partition.from_lists([[0, 1], [1]], overlap=True), 2).places(2)


LOSSES: dict[str, nn.Module] = {
    "smoothed": nn.CrossEntropyLoss(label_smoothing=0.1),
    "weighted": nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 1.0])),
    "summed": nn.CrossEntropyLoss(reduction="sum"),
    "of log probabilities": nn.NLLLoss(),
    "another": nn.MultiMarginLoss(),
}


def with_loss(loss: nn.Module) -> Supervised:
    given = problem().columns
    out = torch.zeros(len(given["y"]), 3)
    objective = Classification(3, loss=batch_loss(loss, out, given["y"]))
    return Supervised(net(), objective, {"x": given["x"][:4], "y": given["y"][:4], "mask": torch.ones(4)})


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_would_not_be_used_is_refused(name: str) -> None:
    task = with_loss(LOSSES[name])
    with pytest.raises(ConfigError, match=r"task.loss: .* Leave task.loss out"):
        FedGKT(task, LR, 6).init(problem().model, rng.key(0))


def test_cross_entropy_by_its_own_name_is_not_refused() -> None:
    FedGKT(with_loss(nn.CrossEntropyLoss()), LR, 6).init(problem().model, rng.key(0))


def test_data_without_classes_is_refused() -> None:
    given = problem().columns
    example = {"x": given["x"][:4], "y": rng.normal(rng.key("t"), (4,)), "mask": torch.ones(4)}
    with torch.random.fork_rng(devices=[]):
        task = Supervised(Gkt((1, 2, 3), 1), Regression(), example)
    with pytest.raises(ConfigError, match="this data has none"):
        FedGKT(task, LR, 6).init(task.init(rng.key(0)), rng.key(0))


@pytest.mark.parametrize("part", ["noise", "local.privacy", "privacy.canaries"])
def test_noise_is_refused_since_the_server_sees_examples(part: str) -> None:
    assert "there is no epsilon" in made().round.traits().refuses[part]  # type: ignore[index]
