"""Low-rank adapters: what they add, what they leave alone, and how they are merged."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atoll import rng
from atoll.engines.budget import activation_bytes
from atoll.errors import ConfigError
from atoll.tasks import Classification, LoraLinear, Supervised, adapted, merged
from atoll.tasks.lora import merged_state, shared_copy
from atoll.tasks.models import Llama

KEY = rng.key(0)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def stirred(module: nn.Module) -> nn.Module:
    """With adapters that are no longer zero."""
    for p in module.parameters():
        if p.requires_grad:
            nn.init.normal_(p)
    return module


def task_of(module: nn.Module, rows: int = 5) -> tuple[Supervised, dict[str, Tensor]]:
    batch = {"x": torch.randn(rows, 6), "y": torch.arange(rows) % 3, "mask": torch.ones(rows)}
    return Supervised(module, Classification(3), batch), batch


def test_an_adapted_layer_is_w_plus_alpha_over_rank_b_a() -> None:
    base, x = nn.Linear(6, 4), torch.randn(7, 6)
    layer = stirred(adapted(base, rank=2, alpha=6.0, targets=["*"]))
    assert isinstance(layer, LoraLinear)
    whole = base.weight + 6.0 / 2 * layer.lora_B @ layer.lora_A
    torch.testing.assert_close(layer(x), x @ whole.T + base.bias)


@pytest.mark.parametrize("module", [net, lambda: Llama((4,), 6, layers=1)], ids=["mlp", "llama"])
def test_at_first_adapters_leave_the_output_unchanged(module: Any) -> None:
    plain = module()
    x = torch.randn(3, 6) if isinstance(plain, nn.Sequential) else torch.randint(0, 6, (3, 4))
    assert torch.equal(adapted(plain, 2, 16.0, ["*"])(x), plain(x))
    assert not torch.equal(stirred(adapted(plain, 2, 16.0, ["*"]))(x), plain(x))


def test_a_full_rank_step_of_b_is_a_dense_step_of_the_weight() -> None:
    """With A = I and alpha = rank, dL/dB = dL/dW: one step of gradient descent is that of the dense layer."""
    plain, lr = nn.Linear(6, 4, bias=False), 0.3
    x, y = torch.randn(9, 6), torch.randn(9, 4)
    layer = adapted(plain, rank=6, alpha=6.0, targets=["*"])
    assert isinstance(layer, LoraLinear)
    with torch.no_grad():
        layer.lora_A.copy_(torch.eye(6))
    for module, moving in ((plain, plain.weight), (layer, layer.lora_B)):
        loss = ((module(x) - y) ** 2).mean()
        (g,) = torch.autograd.grad(loss, [moving])
        with torch.no_grad():
            moving.sub_(lr * g)
    torch.testing.assert_close(merged(layer)(x), plain(x))


def test_a_merged_model_is_the_adapted_one_with_the_names_of_the_plain_one() -> None:
    plain = net()
    before = {k: v.clone() for k, v in plain.state_dict().items()}
    learned = stirred(adapted(plain, 2, 3.0, ["0", "4"], also_train=["2.bias"]))
    whole, x = merged(learned), torch.randn(5, 6)
    torch.testing.assert_close(whole(x), learned(x))
    assert list(whole.state_dict()) == list(before)
    assert not any(isinstance(m, LoraLinear) for m in whole.modules())
    assert all(p.requires_grad for p in whole.parameters())
    with torch.no_grad():
        for p in whole.parameters():
            p.add_(1.0)
    assert all(torch.equal(v, before[k]) for k, v in plain.state_dict().items())  # nothing of ours was touched


def test_only_adapters_and_what_is_named_beside_them_learn() -> None:
    task, _ = task_of(adapted(net(), 2, 16.0, ["0"], also_train=["4.*"]))
    assert set(task.init(KEY)["params"]) == {"0.lora_A", "0.lora_B", "4.weight", "4.bias"}
    assert set(task.base()) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_targets_are_names_or_patterns_whole_or_of_the_last_part() -> None:
    model = Llama((4,), 6)
    layers = lambda *targets: {  # noqa: E731
        n for n, m in adapted(model, 1, 1.0, list(targets)).named_modules() if isinstance(m, LoraLinear)
    }
    both = {f"model.layers.{i}.self_attn.{p}_proj" for i in (0, 1) for p in "qv"}
    assert layers("q_proj", "v_proj") == both
    assert layers("model.layers.1.self_attn.[qv]_proj") == {n for n in both if ".1." in n}
    assert len(layers("*")) == 2 * 7
    assert len(layers("*.mlp.*", "o_proj")) == 2 * 4


def test_the_base_of_a_task_is_shared_and_not_copied() -> None:
    plain = net()
    module = adapted(plain, 2, 16.0, ["*"])
    task, _ = task_of(module)
    memory = lambda m: {p.data_ptr() for n, p in m.named_parameters() if "lora" not in n}  # noqa: E731
    assert memory(module) == memory(task.model) == memory(shared_copy(task.model))
    assert not memory(plain) & memory(module)  # whose module it is may go on training it
    assert all(p.requires_grad for p in plain.parameters())
    learning = [m.get_parameter("0.lora_A").data_ptr() for m in (module, task.model, shared_copy(task.model))]
    assert len(set(learning)) == 3


def test_a_layer_in_two_places_has_one_adapter() -> None:
    layer = nn.Linear(6, 6)
    module = stirred(adapted(nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(6, 3)), 2, 4.0, ["*"]))
    assert module[0] is module[2]
    task, batch = task_of(module)
    model = task.init(KEY)
    assert set(model["params"]) == {"0.lora_A", "0.lora_B", "3.lora_A", "3.lora_B"}
    shell = task.plain_module()
    shell.load_state_dict(task.state(model))
    torch.testing.assert_close(shell(batch["x"]), module(batch["x"]))


def test_adapters_may_have_dropout_drawn_from_the_key() -> None:
    task, batch = task_of(stirred(adapted(net(), 2, 16.0, ["*"], dropout=0.5)))
    params, one = task.init(KEY)["params"], {**batch, "key": rng.key(1)}
    assert task.step_needs().key
    assert torch.equal(task.logits(params, {}, one), task.logits(params, {}, one))
    assert not torch.equal(task.logits(params, {}, one), task.logits(params, {}, {**batch, "key": rng.key(2)}))
    still = task.logits(params, {}, one, training=False)
    torch.testing.assert_close(still, merged(task.model.eval())(batch["x"]), rtol=1e-3, atol=1e-3)


def test_in_bfloat16_the_base_is_cast_once_and_counts_as_shared() -> None:
    task, batch = task_of(stirred(adapted(net(), 2, 1.0, ["*"])))
    params = task.init(KEY)["params"]
    exact = task.logits(params, {}, batch)
    task.compute_dtype = torch.bfloat16
    near = task.logits(params, {}, batch)
    assert not torch.equal(near, exact)
    assert float((near - exact).norm() / exact.norm()) < 0.05
    assert {x.dtype for x in task.shared()} == {torch.float32, torch.bfloat16}
    assert len(task.shared()) == 2 * len(task.base())
    task.compute_dtype = None
    assert torch.equal(task.logits(params, {}, batch), exact)


def test_what_autograd_keeps_of_the_base_is_no_clients_own() -> None:
    task, batch = task_of(adapted(nn.Sequential(nn.Linear(6, 500), nn.Linear(500, 3)), 1, 1.0, ["*"]))
    model = task.init(KEY)
    own = activation_bytes(task, model, batch, task.shared())
    kept = activation_bytes(task, model, batch)
    assert kept - own == task.base()["1.weight"].nbytes  # read by the backward pass; that of the first layer is not
    assert own < 5 * 4 * 2000  # five rows, activations of 500 numbers or so


def test_the_head_that_stays_with_clients_is_what_learns_of_it() -> None:
    task, _ = task_of(adapted(net(), 2, 16.0, ["*"]))
    assert task.names("head") == ("4.lora_A", "4.lora_B")
    task, _ = task_of(adapted(net(), 2, 16.0, ["0"]))
    with pytest.raises(ConfigError, match=r"nothing of its last linear layer, '4', learns.*task\.lora\.targets"):
        task.names("head")


def test_two_bases_are_two_structures_and_one_is_one() -> None:
    plain, other = net(), net()
    one, same, unlike = (task_of(adapted(m, 2, 16.0, ["*"]))[0].structure() for m in (plain, plain, other))
    assert one == same != unlike


def test_hidden_units_of_adapted_layers_are_refused() -> None:
    task, _ = task_of(adapted(net(), 2, 16.0, ["*"]))
    with pytest.raises(ConfigError, match=r"task\.lora: '0' has an adapter, whose base is frozen"):
        task.unit_layers()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.body, self.out = nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False)
        self.out.weight = self.embedding.weight


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (net, {"targets": ["q_proj"]}, r"task\.lora\.targets: 'q_proj' is no linear layer .* are: 0, 2, 4\."),
        (net, {"targets": ["0", "1"]}, r"task\.lora\.targets: '1' is no linear layer"),
        (lambda: nn.Conv2d(1, 1, 3), {}, r"'\*' is no linear layer .* are: none\."),
        (Tied, {}, r"targets: 'out' shares its weight with another layer"),
        (net, {"also_train": ["head"]}, r"also_train: 'head' is no parameter .*: 2\.bias, 4\.weight, 4\.bias\."),
        (net, {"also_train": ["4.*"]}, r"also_train: '4\.bias' is of a layer that has an adapter"),
    ],
)
def test_what_cannot_be_adapted_is_refused_with_advice(module: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        adapted(module(), **{"rank": 2, "alpha": 2.0, "targets": ["*"], **options})


def test_a_state_without_adapters_is_left_as_it_is() -> None:
    plain = net()
    state = plain.state_dict()
    assert merged_state(plain, state) == dict(state)
    assert torch.equal(merged(plain)(torch.ones(1, 6)), plain(torch.ones(1, 6)))
