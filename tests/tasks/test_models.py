"""The shipped models: sizes as published, one set of parameters per client, and what each must not see."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import ConfigDict, ValidationError, create_model
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from atoll.errors import ConfigError
from atoll.tasks.models import MODELS
from atoll.tasks.models.lstm import LSTM
from atoll.tasks.models.resnet import basic, bottleneck
from atoll.tasks.models.vgg import ChannelDropout
from tests.support.marks import slow_among

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)

# name, inputs, outputs, options, parameters. Published: mlp 32-16-8 and lenet (NIID-Bench), mlp 200-200 (McMahan),
# cnn (pfl-research), vgg9 (FedMA), resnets (kuangliu/pytorch-cifar), char_lstm (FedML). The rest is counted by hand.
SIZES: list[tuple[str, tuple[int, ...], int, dict[str, Any], int]] = [
    ("linear", (3,), 2, {}, 8),
    ("linear", (90,), 1, {"bias": False}, 90),
    ("logistic", MNIST, 10, {}, 7_850),
    ("mlp", (123,), 2, {"widths": [32, 16, 8], "init": "niid"}, 4_650),
    ("mlp", MNIST, 10, {}, 199_210),
    ("mlp", (5,), 3, {"widths": []}, 18),
    ("lenet", MNIST, 10, {}, 44_426),
    ("lenet", CIFAR, 10, {}, 62_006),
    ("cnn", CIFAR, 10, {}, 1_626_442),
    ("vgg9", CIFAR, 10, {}, 3_491_530),
    ("resnet18", CIFAR, 10, {}, 11_173_962),
    ("resnet18", CIFAR, 10, {"norm": "group"}, 11_173_962),
    ("resnet50", CIFAR, 10, {}, 23_520_842),
    ("resnet50", CIFAR, 10, {"norm": "group"}, 23_520_842),
    ("char_lstm", (80,), 90, {}, 822_570),
    ("sentiment_lstm", (200,), 2, {}, 10_000 * 64 + 4 * 128 * (64 + 3 * 128 + 4) + 2 * 129),
    ("supernet", (1, 8, 8), 10, {}, 80 + 3 * (584 + 1608) + 3 * 5 + 90),
    ("cell_net", (1, 8, 8), 10, {}, 80 + 2 * 584 + 90),
    ("gan", (1, 8, 8), 10, {}, 17 * 64 + 65 * 64 + 65 * 64 + 65 * 10),
    ("gkt", (1, 8, 8), 10, {}, 65 * 32 + 33 * 10 + 33 * 256 + 257 * 128 + 129 * 10),
    ("gkt", (1, 8, 8), 10, {"channels": 4}, 40 + 257 * 32 + 33 * 10 + 33 * 256 + 257 * 128 + 129 * 10),
    ("one_of", (1, 8, 8), 10, {}, 2 + 65 * 64 + 65 * 10 + 65 * 10),
    # pfl-research's 1,962,912 with 10,004 words, plus our learned positions (20 x 96) and last norm (2 x 96).
    ("transformer_lm", (20,), 10_004, {}, 1_962_912 + 20 * 96 + 2 * 96),
    ("transformer_lm", (20,), 10_004, {"tied": False}, 1_962_912 + 20 * 96 + 2 * 96 + 10_004 * 96),
    ("llama", (40,), 90, {}, 90 * 64 + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64) + 64),
    ("llama", (40,), 90, {"preset": "smollm2-135m"}, 134_515_008),  # the count of the hub's own file
]

# A small model of every kind. No dropout and no batch norm: those get their keys and their state from a task.
SMALL: dict[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {
    "linear": ((4,), 3, {}),
    "logistic": ((1, 2, 2), 3, {}),
    "mlp": ((4,), 3, {"widths": [5, 4]}),
    "lenet": ((1, 16, 17), 3, {}),
    "cnn": ((2, 7, 6), 3, {"conv_dropout": 0.0, "dense_dropout": 0.0}),
    "vgg9": ((1, 8, 9), 3, {"widths": [8, 8], "channel_dropout": 0.0, "dropout": 0.0}),
    "resnet18": ((1, 8, 8), 3, {"norm": "group"}),
    "resnet50": ((1, 8, 8), 3, {"norm": "group"}),
    "char_lstm": ((6,), 11, {"hidden": 7}),
    "sentiment_lstm": ((6,), 3, {"vocabulary": 11, "embedding": 5, "hidden": 7}),
    "supernet": ((1, 8, 8), 3, {"channels": 4}),
    "cell_net": ((1, 8, 8), 3, {"operations": ["conv3", "skip", "average"], "channels": 4}),
    "gan": ((1, 4, 4), 3, {}),
    "gkt": ((1, 4, 4), 3, {"features": 5, "widths": [6]}),
    "one_of": ((4,), 3, {"of": [{"name": "mlp", "widths": [5]}, {"name": "linear"}]}),
    "transformer_lm": ((6,), 11, {"width": 8, "heads": 2, "feedforward": 12, "dropout": 0.0}),
    "llama": ((6,), 11, {"width": 16, "heads": 4, "key_value_heads": 2, "feedforward": 12}),
}
TOKENS = {"char_lstm", "sentiment_lstm", "transformer_lm", "llama"}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def build(name: str, **more: Any) -> nn.Module:
    inputs, outputs, options = SMALL[name]
    return MODELS[name](inputs=inputs, outputs=outputs, **{**options, **more})


def examples(name: str, *batch: int) -> Tensor:
    inputs = SMALL[name][0]
    if name in TOKENS:
        return torch.randint(0, 11, (*batch, *inputs))
    return torch.randn(*batch, *inputs)


def targets(name: str, *batch: int) -> Tensor:
    inputs, outputs, _ = SMALL[name]
    every_position = name in ("char_lstm", "transformer_lm", "llama")
    return torch.randint(0, outputs, (*batch, *inputs) if every_position else batch)


def loss_of(model: nn.Module) -> Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]:
    def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        scores = functional_call(model, params, (x,))
        return F.cross_entropy(scores.flatten(0, -2), y.flatten())

    return loss


def seeded(seed: int, make: Callable[[], Any]) -> Any:
    torch.manual_seed(seed)
    return make()


def detached(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def test_every_model_is_covered_here():
    assert set(SMALL) == set(MODELS) == {name for name, *_ in SIZES}


@pytest.mark.parametrize(("name", "inputs", "outputs", "options", "parameters"), SIZES)
def test_parameters_are_as_many_as_published(name, inputs, outputs, options, parameters):
    with torch.device("meta"):  # shapes only
        model = MODELS[name](inputs=inputs, outputs=outputs, **options)
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize("name", MODELS)
def test_scores_have_one_row_per_example_or_per_token(name):
    scores = build(name)(examples(name, 2))
    assert scores.shape == (*targets(name, 2).shape, SMALL[name][1])


@pytest.mark.parametrize("name", slow_among([name for name in MODELS if name != "resnet50"], "resnet18"))  # same parts
def test_stacked_gradients_equal_those_of_each_client(name):
    torch.manual_seed(0)
    # Evaluation mode for the whole network: what is compared is the arithmetic, not the dropout.
    clients = [build(name).eval() for _ in range(2)]
    loss = loss_of(clients[0])
    params = [detached(client) for client in clients]
    x, y = examples(name, 2, 3), targets(name, 2, 3)

    stack = {key: torch.stack([p[key] for p in params]) for key in params[0]}
    stacked = vmap(grad(loss))(stack, x, y)

    for i, client in enumerate(clients):
        F.cross_entropy(client(x[i]).flatten(0, -2), y[i].flatten()).backward()
        for key, parameter in client.named_parameters():
            if key.startswith(("generator.", "classifier.")):  # which the scores do not depend on
                assert not bool(stacked[key].any())
                continue
            assert parameter.grad is not None, key
            torch.testing.assert_close(
                stacked[key][i], parameter.grad, rtol=1e-4, atol=1e-5, msg=lambda m, k=key: f"{k}: {m}"
            )


def test_stacked_models_may_train_with_their_dropout_at_zero():
    for name in ("mlp", "cnn", "vgg9", "char_lstm", "transformer_lm"):
        model = build(name).train()
        params = {key: value.expand(2, *value.shape) for key, value in detached(model).items()}
        vmap(grad(loss_of(model)))(params, examples(name, 2, 2), targets(name, 2, 2))  # random draws would be refused


@pytest.mark.parametrize("name", slow_among(MODELS, "resnet18", "resnet50"))
def test_the_seed_decides_the_initial_parameters(name):
    first, again, other = (seeded(seed, lambda: build(name)) for seed in (1, 1, 2))
    for key, value in detached(first).items():
        assert torch.equal(value, detached(again)[key]), key
    assert not torch.equal(*(nn.utils.parameters_to_vector(m.parameters()) for m in (first, other)))


@pytest.mark.parametrize("name", MODELS)
def test_an_evaluation_leaves_the_global_generator_alone(name):
    model, x = build(name).eval(), examples(name, 2)
    before = torch.get_rng_state()
    model(x)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", MODELS)
def test_the_last_layer_is_a_linear_one(name):
    model = build(name, tied=False) if name in ("transformer_lm", "llama") else build(name)
    *_, (last_name, last) = model.named_modules()
    # a tower is the server's as a whole; each of one_of has a head; llama has the hub's names
    special = {"gkt": "tower.1", "one_of": "networks.1.head", "llama": "lm_head"}
    assert last_name == special.get(name, "head")
    assert isinstance(last, nn.Linear)
    assert last.out_features == SMALL[name][1]


@pytest.mark.parametrize("name", MODELS)
def test_a_builders_signature_is_a_strict_schema(name):
    builder = MODELS[name]
    options = {
        p.name: (p.annotation, p.default)
        for p in inspect.signature(builder, eval_str=True).parameters.values()
        if p.name not in ("inputs", "outputs")
    }
    assert all(default is not inspect.Parameter.empty for _, default in options.values())
    schema = create_model(name, __config__=ConfigDict(extra="forbid", strict=True, validate_default=True), **options)
    schema()
    schema(**SMALL[name][2])
    for key, (_, default) in options.items():
        with pytest.raises(ValidationError):
            schema(**{key: [0] if isinstance(default, list) else "no" if isinstance(default, bool | str) else -1})
    first_line = (inspect.getdoc(builder) or "").splitlines()[0]
    assert first_line.endswith(".")


# the layers, and how they start


def plain_lenet() -> nn.Module:
    conv = [nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Linear(16, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 3)]
    return nn.Sequential(*conv, nn.Flatten(), *dense)


def plain_cnn() -> nn.Module:
    conv = [nn.Conv2d(2, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)]
    dense = [nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 3)]
    return nn.Sequential(*conv, nn.Flatten(), *dense)


def plain_vgg9() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((1, 32), (32, 64), (64, 128), (128, 128), (128, 256), (256, 256)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
    for place in (4, 9, 14):
        layers.insert(place, nn.MaxPool2d(2))
    layers.insert(10, nn.Dropout2d(0.05))
    dense = [
        nn.Dropout(0.1),
        nn.Linear(256, 8),
        nn.ReLU(),
        nn.Linear(8, 8),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(8, 3),
    ]
    return nn.Sequential(*layers, nn.Flatten(), *dense)


@pytest.mark.parametrize(
    ("name", "plain", "published"),
    [
        ("mlp", lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), {}),
        ("lenet", plain_lenet, {}),
        ("cnn", plain_cnn, {"conv_dropout": 0.25, "dense_dropout": 0.5}),
        ("vgg9", plain_vgg9, {"channel_dropout": 0.05, "dropout": 0.1}),
    ],
)
def test_the_layers_stand_in_the_published_order(name, plain, published):
    ours, theirs = build(name, **published), plain()
    theirs.load_state_dict(dict(zip(theirs.state_dict(), ours.state_dict().values(), strict=True)))
    x = examples(name, 4)
    # Training mode, from one seed: the dropouts must come in the same order and drop things of the same shape.
    torch.testing.assert_close(*(seeded(5, lambda model=model: model(x)) for model in (ours, theirs)))


@pytest.mark.parametrize("block", [basic, bottleneck])
def test_a_residual_block_adds_what_it_learnt_to_what_came_in(block):
    residual = block(8, 4, 2, nn.BatchNorm2d)
    x = torch.randn(2, 8, 6, 6)
    layers = list(residual.body)
    body = x
    for conv, norm in zip(layers[0::3], layers[1::3], strict=True):
        body = norm(conv(body if conv is layers[0] else torch.relu(body)))
    torch.testing.assert_close(residual(x), torch.relu(body + residual.shortcut(x)))
    nn.init.zeros_(layers[-1].weight)  # a body that says nothing
    torch.testing.assert_close(residual(x), torch.relu(residual.shortcut(x)))


def test_niid_bench_starts_its_perceptron_wide():
    model = seeded(0, lambda: MODELS["mlp"](inputs=(123,), outputs=2, widths=[320, 160], init="niid"))
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            assert torch.all(layer.bias == 0.1)
            assert layer.weight.std().item() == pytest.approx(0.1, rel=0.15)


def test_the_cnn_starts_from_xavier_weights_and_chosen_biases():
    zero, uniform = (build("cnn", biases=biases) for biases in ("zero", "uniform"))
    bound = (6 / (9 * 2 + 9 * 32)) ** 0.5  # Xavier: sqrt(6 / (fan_in + fan_out)) of the first convolution
    for model in (zero, uniform):
        largest = model.conv1.weight.abs().max().item()
        assert 0.95 * bound < largest <= bound
    assert all(torch.all(p == 0) for key, p in zero.named_parameters() if key.endswith("bias"))
    assert all(torch.any(p != 0) for key, p in uniform.named_parameters() if key.endswith("bias"))


# dropout and normalisation


def test_channel_dropout_drops_whole_channels_as_torch_does():
    x = torch.randn(4, 50, 3, 3)
    ours, theirs = seeded(0, lambda: ChannelDropout(0.3)(x)), seeded(0, lambda: nn.Dropout2d(0.3)(x))
    torch.testing.assert_close(ours, theirs)
    assert 0 < (ours == 0).flatten(2).all(-1).float().mean() < 1


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_group_norm_replaces_every_batch_norm(name):
    with torch.device("meta"):
        batch, group = (MODELS[name](inputs=CIFAR, outputs=10, norm=norm) for norm in ("batch", "group"))
    count = lambda model, kind: sum(isinstance(m, kind) for m in model.modules())  # noqa: E731
    assert count(group, nn.BatchNorm2d) == count(batch, nn.GroupNorm) == 0
    assert count(group, nn.GroupNorm) == count(batch, nn.BatchNorm2d) > 0


def test_a_resnet_halves_the_image_three_times():
    with torch.device("meta"):
        model = MODELS["resnet18"](inputs=CIFAR, outputs=10)
        assert model.stages(model.stem(torch.empty(1, *CIFAR))).shape == (1, 512, 4, 4)


# LSTM


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_our_lstm_is_torchs_in_start_outputs_and_gradients(layers):
    theirs = seeded(3, lambda: nn.LSTM(4, 5, layers, batch_first=True))
    ours = seeded(3, lambda: LSTM(4, 5, layers))
    assert {k: v.tolist() for k, v in ours.state_dict().items()} == {
        k: v.tolist() for k, v in theirs.state_dict().items()
    }
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.mul_(3.0)  # far enough from the linear range that a swapped gate shows
    ours.load_state_dict(theirs.state_dict())

    x = torch.randn(3, 7, 4)
    outputs = ours(x), theirs(x)[0]
    torch.testing.assert_close(*outputs)
    weights = torch.randn(3, 7, 5)
    for out in outputs:
        (out * weights).sum().backward()
    for (key, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5, msg=lambda m, k=key: f"{k}: {m}")


def test_dropout_stands_between_lstm_layers_only():
    x = torch.randn(2, 5, 4)
    assert len(LSTM(4, 5, 1, dropout=0.9).dropouts) == 0
    ours, theirs = LSTM(4, 5, 2, dropout=0.5), nn.LSTM(4, 5, 2, batch_first=True, dropout=0.5)
    ours.load_state_dict(theirs.state_dict())
    assert not torch.equal(ours(x), ours(x))
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x)[0])


def test_predicting_the_last_character_is_the_last_of_all_predictions():
    every = build("char_lstm")
    last = build("char_lstm", predict="last")
    last.load_state_dict(every.state_dict())
    tokens = examples("char_lstm", 3)
    torch.testing.assert_close(last(tokens), every(tokens)[:, -1])


def test_padding_does_not_matter_to_sentiment():
    model = build("sentiment_lstm")
    text = torch.randint(1, 11, (3, 4))
    alone = model(text)
    for before, after in ((0, 2), (2, 0), (1, 1)):
        padded = F.pad(text, (before, after))
        torch.testing.assert_close(model(padded), alone)
        gradients = torch.autograd.grad(model(padded).sum(), list(model.parameters()))
        for a, b in zip(gradients, torch.autograd.grad(model(text).sum(), list(model.parameters())), strict=True):
            torch.testing.assert_close(a, b)
    with torch.no_grad():
        model.embedding.weight[0] += 100.0
    torch.testing.assert_close(model(F.pad(text, (1, 1))), alone)


def test_texts_of_different_length_are_read_to_their_own_end():
    model = build("sentiment_lstm")
    tokens = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]])
    torch.testing.assert_close(model(tokens)[1:], model(tokens[1:, :2]))
    assert torch.isfinite(model(torch.zeros(1, 4, dtype=torch.long))).all()
    assert not torch.allclose(model(tokens), model(tokens.flip(1)))


# transformer


def test_the_transformer_does_not_see_the_future():
    model = build("transformer_lm").eval()
    nn.init.normal_(model.positions)
    tokens = examples("transformer_lm", 2)
    for t in range(tokens.shape[1]):
        changed = tokens.clone()
        changed[:, t] = (changed[:, t] + 1) % 11
        a, b = model(tokens), model(changed)
        torch.testing.assert_close(a[:, :t], b[:, :t], rtol=0, atol=0)
        for later in range(t, tokens.shape[1]):
            assert not torch.equal(a[:, later], b[:, later]), "a later position must see the change"


def test_the_transformer_knows_where_a_token_stands():
    model = build("transformer_lm").eval()
    scores = model(torch.full((1, 6), 3))
    assert not torch.allclose(scores[:, 0], scores[:, 1])


def test_a_shorter_window_gives_the_same_beginning():
    model = build("transformer_lm").eval()
    tokens = examples("transformer_lm", 2)
    torch.testing.assert_close(model(tokens[:, :4]), model(tokens)[:, :4])


def test_attention_is_torchs():
    model = build("transformer_lm")
    attention = model.layers[0].attention[1]
    nn.init.normal_(attention.qkv.weight)  # sharp enough that a wrong scale shows
    x = torch.randn(2, 6, 8)
    split = lambda y: y.view(2, 6, 2, 4).transpose(1, 2)  # noqa: E731
    q, k, v = (split(y) for y in attention.qkv(x).chunk(3, -1))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attention(x), attention.out(expected))


def test_a_tied_transformer_scores_with_its_embedding():
    model = build("transformer_lm").eval()
    states = []
    model.norm.register_forward_hook(lambda _module, _args, out: states.append(out))
    scores = model(torch.full((1, 6), 3))
    torch.testing.assert_close(scores, states[0] @ model.embedding.weight.T)
    F.cross_entropy(scores[0], torch.full((6,), 4)).backward()
    assert torch.any(model.embedding.weight.grad[4] != 0), "a word that is only a target must learn too"


# what is refused


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("lenet", (1, 8, 8), r"'lenet' needs images of at least 16 x 16 pixels .* \(got 8 x 8\).* use 'mlp'"),
        ("lenet", (1, 28, 15), r"got 28 x 15"),
        ("cnn", (1, 5, 8), r"at least 6 x 6"),
        ("vgg9", (1, 7, 7), r"at least 8 x 8"),
        ("resnet18", (123,), r"'resnet18' takes images .* shape \(123,\).* 'mlp'"),
        ("resnet50", (123,), r"'resnet50' takes images"),
        ("char_lstm", MNIST, r"'char_lstm' takes a window of tokens .* shape \(1, 28, 28\)"),
        ("sentiment_lstm", MNIST, r"'sentiment_lstm' takes a window of tokens"),
        ("transformer_lm", MNIST, r"'transformer_lm' takes a window of tokens"),
        ("llama", MNIST, r"'llama' takes a window of tokens"),
    ],
)
def test_data_that_a_model_cannot_take_is_refused_with_advice(name, inputs, message):
    with pytest.raises(ConfigError, match=message):
        MODELS[name](inputs=inputs, outputs=10)


@pytest.mark.parametrize(("name", "smallest"), [("lenet", 16), ("cnn", 6), ("vgg9", 8)])
def test_the_smallest_image_that_is_not_refused_works(name, smallest):
    model = MODELS[name](inputs=(1, smallest, smallest), outputs=10)
    assert model(torch.randn(2, 1, smallest, smallest)).shape == (2, 10)
    with pytest.raises(ConfigError):
        MODELS[name](inputs=(1, smallest, smallest - 1), outputs=10)


def test_options_that_do_not_fit_together_are_refused():
    with pytest.raises(ConfigError, match=r"model.heads: must divide model.width = 96 \(got 7\)"):
        MODELS["transformer_lm"](inputs=(20,), outputs=50, heads=7)
    with pytest.raises(ConfigError, match=r"model.groups: must divide 64 channels \(got 3\)"):
        MODELS["resnet18"](inputs=CIFAR, outputs=10, norm="group", groups=3)


def test_one_of_several_networks_is_that_network_and_others_learn_nothing():
    model, x = build("one_of"), examples("one_of", 3)
    for i, network in enumerate(model.networks):
        params = {**detached(model), "kind": torch.eye(2)[i]}
        assert torch.equal(functional_call(model, params, (x,)), network(x))
        slopes = grad(loss_of(model))(params, x, targets("one_of", 3))
        for name, g in slopes.items():
            assert name == "kind" or bool(g.any()) == name.startswith(f"networks.{i}."), name


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ([{"name": "mlp"}], "fewer than two"),
        ([{"name": "mpl"}, {"name": "linear"}], r"task.model.of.0.name: .* Did you mean 'mlp'"),
        ([{"name": "mlp"}, {"name": "one_of"}], r"task.model.of.1.name: 'one_of' is no network"),
        ([{"name": "mlp"}, {"name": "mlp", "width": 3}], r"task.model.of.1.width: .* Options: widths"),
        ([{"name": "mlp", "widths": [0]}, {"name": "mlp"}], r"task.model.of.0.widths: "),
    ],
)
def test_networks_that_cannot_stand_side_by_side_are_refused(of, words):
    with pytest.raises(ConfigError, match=words):
        MODELS["one_of"](inputs=(4,), outputs=3, of=of)
