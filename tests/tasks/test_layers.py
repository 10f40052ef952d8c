"""Keyed dropout, masked BatchNorm, and how they are put into any model."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from atoll import rng
from atoll.errors import ConfigError
from atoll.tasks.keyed_dropout import KeyedDropout, forward_pass
from atoll.tasks.layers import BatchNorm, keyed, make_stackable

WIDE = 512


def dropped(x: Tensor, key: Tensor, p: float = 0.5, index: int = 0, per_channel: bool = False) -> Tensor:
    layer = KeyedDropout(p, index, per_channel).train()
    with forward_pass(torch.ones(len(x)), key):
        return layer(x)


def mask(key: Tensor, rows: int = 64, p: float = 0.5, index: int = 0, wide: int = WIDE) -> Tensor:
    return dropped(torch.ones(rows, wide), key, p, index) > 0


def agreement(a: Tensor, b: Tensor) -> float:
    return float((a == b).double().mean())


# ---------------------------------------------------------------------------------------------------- dropout


def test_dropout_at_zero_or_in_evaluation_does_nothing_and_at_one_leaves_nothing() -> None:
    x = torch.randn(4, 6)
    assert torch.equal(dropped(x, rng.key(0), p=0.0), x)
    assert torch.equal(KeyedDropout(0.5, 0, False).eval()(x), x)
    assert torch.equal(dropped(x, rng.key(0), p=1.0), torch.zeros(4, 6))


@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.9])
def test_dropout_drops_its_share_and_scales_the_rest(p: float) -> None:
    n = 256 * WIDE
    out = dropped(torch.ones(256, WIDE), rng.key(1), p)
    assert out.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)])
    share = float((out == 0).double().mean())
    assert abs(share - p) < 5 * (p * (1 - p) / n) ** 0.5  # five standard deviations of a fair draw


def test_rows_columns_layers_keys_and_steps_are_independent() -> None:
    key = rng.key(7)
    m = mask(key)
    tolerance = 5 * 0.5 / (64 * WIDE) ** 0.5
    others = {
        "the next row": m.roll(1, 0),
        "the next column": m.roll(1, 1),
        "the other half of the columns": m.roll(WIDE // 2, 1),  # two draws share a word
        "another layer": mask(key, index=1),
        "another key": mask(rng.key(8)),
        "another step": mask(rng.fold(key, 1)),
    }
    for name, other in others.items():
        assert abs(agreement(m, other) - 0.5) < tolerance, name
    for axis in (0, 1):
        n = m.shape[axis]
        shares = m.double().mean(axis)
        assert float((shares - 0.5).abs().max()) < 5.5 * 0.5 / n**0.5  # no row or column stands out


def test_consecutive_keys_and_layers_have_no_common_rows() -> None:
    """A counter that only shifts would give one layer's second row to another's first."""
    rows = torch.cat([mask(rng.key(k), rows=32, index=i) for k in range(4) for i in range(8)])
    assert len(rows.unique(dim=0)) == len(rows)


def test_a_row_s_mask_does_not_depend_on_the_size_of_the_batch() -> None:
    whole = mask(rng.key(3), rows=50, wide=33)
    for rows in (1, 7, 49):
        assert torch.equal(mask(rng.key(3), rows=rows, wide=33), whole[:rows])


def test_a_client_s_mask_does_not_depend_on_the_stack_it_is_in() -> None:
    keys = torch.stack([rng.key(k) for k in range(5)])
    x = torch.ones(5, 3, 8)
    assert torch.equal(vmap(lambda row, k: dropped(row, k))(x, keys), torch.stack([dropped(x[0], k) for k in keys]))


def test_a_channel_is_dropped_as_a_whole() -> None:
    for layer, shape in ((nn.Dropout1d, (6, 40, 5)), (nn.Dropout2d, (6, 40, 5, 5)), (nn.Dropout3d, (6, 40, 2, 2, 2))):
        model = make_stackable(nn.Sequential(layer(0.4))).train()
        with forward_pass(torch.ones(6), rng.key(0)):
            out = model(torch.ones(shape)).flatten(2)
        assert torch.equal(out.amin(2), out.amax(2))
        assert 0.2 < float((out[..., 0] == 0).double().mean()) < 0.6


def test_a_gradient_flows_through_what_is_kept_only() -> None:
    x = torch.ones(3, 20, requires_grad=True)
    out = dropped(x, rng.key(0), p=0.25)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad, out.detach())


# -------------------------------------------------------------------------------------------------- batch norm


def norms(shape: tuple[int, ...], **options: object) -> tuple[nn.Module, nn.Module]:
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)]
    torch.manual_seed(0)
    theirs = kind(shape[1], **options)  # type: ignore[arg-type]
    if theirs.affine:
        nn.init.normal_(theirs.weight)
        nn.init.normal_(theirs.bias)
    return make_stackable(theirs), theirs


@pytest.mark.parametrize("shape", [(9, 4), (9, 4, 6), (9, 4, 3, 3), (9, 4, 2, 2, 2)])
@pytest.mark.parametrize("real", [9, 6, 2])
@pytest.mark.parametrize("options", [{}, {"affine": False}, {"momentum": 0.3, "eps": 1e-2}, {"momentum": None}])
def test_masked_batch_norm_is_batch_norm_of_the_real_rows(
    shape: tuple[int, ...], real: int, options: dict[str, object]
) -> None:
    ours, theirs = norms(shape, **options)
    x = torch.randn(shape) * 3 + 1
    mine, alone = x.clone().requires_grad_(), x[:real].clone().requires_grad_()
    ours.train()
    theirs.train()
    for _ in range(2):
        with forward_pass((torch.arange(shape[0]) < real).float(), None):
            a = ours(mine)[:real]
        b = theirs(alone)
        assert torch.allclose(a, b, atol=1e-5)
    (ga,), (gb,) = torch.autograd.grad(a.sin().sum(), mine), torch.autograd.grad(b.sin().sum(), alone)
    assert torch.allclose(ga[:real], gb, atol=1e-5)
    assert torch.equal(ga[real:], torch.zeros_like(ga[real:]))  # padding has no say
    assert torch.allclose(ours.running_mean, theirs.running_mean, atol=1e-6)
    assert torch.allclose(ours.running_var, theirs.running_var, atol=1e-5)
    ours.eval()
    theirs.eval()
    assert torch.allclose(ours(x), theirs(x), atol=1e-5)


def test_gradients_of_the_weights_are_batch_norm_s_too() -> None:
    ours, theirs = norms((8, 4, 3, 3))
    x = torch.randn(8, 4, 3, 3)
    with forward_pass((torch.arange(8) < 5).float(), None):
        a = torch.autograd.grad(ours.train()(x)[:5].sin().sum(), list(ours.parameters()))
    b = torch.autograd.grad(theirs.train()(x[:5]).sin().sum(), list(theirs.parameters()))
    assert all(torch.allclose(p, q, atol=1e-5) for p, q in zip(a, b, strict=True))


def test_batch_norm_that_keeps_no_statistics_has_none() -> None:
    ours, theirs = norms((6, 4), track_running_stats=False)
    x = torch.randn(6, 4)
    assert dict(ours.named_buffers()) == {}
    with forward_pass(torch.ones(6), None):
        assert torch.allclose(ours.eval()(x), theirs.eval()(x), atol=1e-6)


def test_a_batch_of_one_is_no_division_by_zero() -> None:
    ours, _ = norms((3, 4))
    with forward_pass(torch.tensor([1.0, 0.0, 0.0]), None):
        out = ours.train()(torch.randn(3, 4))
    assert torch.isfinite(out[:1]).all()
    assert torch.isfinite(ours.running_var).all()


def test_frozen_batch_norm_uses_and_keeps_its_statistics() -> None:
    model = nn.BatchNorm1d(3)
    model.running_mean += 2.0
    frozen, x = make_stackable(model, "freeze"), torch.randn(5, 3)
    with forward_pass(torch.ones(5), None):
        out = frozen.train()(x)
    assert torch.allclose(out, model.eval()(x), atol=1e-6)
    assert torch.equal(frozen.running_mean, model.running_mean)


# ---------------------------------------------------------------------------------------------------- prepared


def test_group_norm_takes_the_place_of_batch_norm_where_that_is_the_policy() -> None:
    model = nn.Sequential(nn.Conv2d(1, 48, 1), nn.BatchNorm2d(48, eps=1e-3), nn.Linear(4, 4))
    other = make_stackable(model, "group")
    assert isinstance(other[1], nn.GroupNorm)
    assert (other[1].num_groups, other[1].num_channels, other[1].eps) == (6, 48, 1e-3)
    assert isinstance(make_stackable(nn.BatchNorm1d(7), "group"), nn.GroupNorm)
    assert dict(other.named_buffers()) == {}


GROUPS = {3: 1, 8: 1, 15: 1, 16: 2, 17: 1, 32: 4, 64: 8, 100: 10, 256: 32, 512: 32, 520: 26}


@pytest.mark.parametrize(("features", "groups"), GROUPS.items())
def test_a_group_has_eight_features_or_is_the_only_one(features: int, groups: int) -> None:
    made = make_stackable(nn.BatchNorm1d(features), "group")
    assert made.num_groups == groups
    x = torch.randn(5, features)
    parts = x.reshape(5, groups, -1)
    want = (parts - parts.mean(2, keepdim=True)) / torch.sqrt(parts.var(2, unbiased=False, keepdim=True) + 1e-5)
    assert torch.allclose(made(x), want.reshape(5, features), atol=1e-5)


def test_group_norm_starts_from_the_weights_of_the_module() -> None:
    model = nn.BatchNorm1d(8)
    nn.init.constant_(model.weight, 0.3)
    nn.init.constant_(model.bias, 0.7)
    made, x = make_stackable(model, "group"), torch.randn(4, 8)
    assert torch.allclose(made(x), nn.functional.layer_norm(x, (8,)) * 0.3 + 0.7, atol=1e-6)
    assert not list(make_stackable(nn.BatchNorm1d(8, affine=False), "group").parameters())


@pytest.mark.parametrize(("features", "said"), [(1, "over 1 value,"), (2, "over 2 values,")])
def test_a_group_of_which_no_more_than_a_sign_would_be_left_is_refused(features: int, said: str) -> None:
    model = make_stackable(nn.Sequential(nn.Linear(3, features), nn.BatchNorm1d(features)), "group")
    with pytest.raises(
        ConfigError, match=rf"task.batch_norm: .*'1', BatchNorm1d\({features}\), {said} .* Use 'average'"
    ):
        model(torch.randn(4, 3))
    assert make_stackable(nn.BatchNorm2d(features), "group")(torch.randn(4, features, 2, 2)).shape[1] == features


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.list = nn.ModuleList([nn.Dropout(0.1), nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.2))])
        self.dict = nn.ModuleDict({"drop": nn.Dropout(0.3), "norm": nn.BatchNorm1d(4), "in": nn.ModuleList()})
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dict["norm"](self.dict["drop"](self.list[1](self.list[0](x)))))


def test_layers_are_replaced_wherever_they_stand_and_the_original_is_left_alone() -> None:
    model = Nested()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    other = make_stackable(model)
    kinds = [type(m) for m in other.modules()]
    assert (kinds.count(KeyedDropout), kinds.count(BatchNorm)) == (3, 2)
    assert not any(isinstance(m, nn.Dropout | nn.BatchNorm1d) for m in other.modules())
    assert sum(isinstance(m, nn.Dropout | nn.BatchNorm1d) for m in model.modules()) == 5
    with forward_pass(torch.ones(3), rng.key(0)):
        other.train()(torch.randn(3, 4)).sum().backward()
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_names_stay_the_module_s_own() -> None:
    model = Nested()
    own = {k for k in model.state_dict() if not k.endswith("num_batches_tracked")}
    assert set(make_stackable(model).state_dict()) == own
    assert [k for k, _ in make_stackable(model).named_parameters()] == [k for k, _ in model.named_parameters()]


def test_two_dropouts_of_one_model_draw_apart() -> None:
    model = make_stackable(nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))).train()
    with forward_pass(torch.ones(64), rng.key(0)):
        out = model(torch.ones(64, WIDE))
    assert abs(float((out > 0).double().mean()) - 0.25) < 0.02


class Tied(nn.Module):
    """One layer under two names, and called twice."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.nothing = layer, layer, None
        self.line = nn.Sequential(layer, nn.Identity(), layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(self.second(self.first(x)))


def test_one_dropout_called_four_times_draws_four_times() -> None:
    model = make_stackable(Tied(nn.Dropout(0.5))).train()
    assert not [m for m in model.modules() if isinstance(m, nn.Dropout)]
    with forward_pass(torch.ones(64), rng.key(0)):
        once = model.first(torch.ones(64, WIDE))
    outs = []
    for _ in range(2):
        with forward_pass(torch.ones(64), rng.key(0)):
            outs.append(model(torch.ones(64, WIDE)))
    assert torch.equal(*outs)  # every pass begins anew
    assert abs(float((outs[0] > 0).double().mean()) - 0.5**4) < 0.01
    assert bool((once[outs[0] > 0] > 0).all())  # and the first call is what a single one is


def test_one_batch_norm_in_two_places_stays_one() -> None:
    torch.manual_seed(0)
    theirs = Tied(nn.BatchNorm1d(4, momentum=0.5)).train()
    ours, x = make_stackable(theirs).train(), torch.randn(6, 4) * 2 + 1
    assert not [m for m in ours.modules() if isinstance(m, nn.BatchNorm1d)]
    assert ours.first is ours.second is ours.line[0] is ours.line[2]
    with forward_pass(torch.ones(6), None):
        assert torch.allclose(ours(x), theirs(x), atol=1e-5)
    assert torch.allclose(ours.first.running_mean, theirs.first.running_mean, atol=1e-6)


def test_a_model_that_is_itself_such_a_layer_is_replaced() -> None:
    assert isinstance(make_stackable(nn.Dropout(0.5)), KeyedDropout)
    assert isinstance(make_stackable(nn.BatchNorm1d(3)), BatchNorm)


def test_only_a_model_with_dropout_needs_a_key() -> None:
    assert keyed(make_stackable(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1))))
    assert not keyed(make_stackable(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0))))


def test_forward_passes_nest_and_end() -> None:
    layer: Callable[[Tensor], Tensor] = KeyedDropout(0.5, 0, False).train()
    x = torch.ones(4, WIDE)
    with forward_pass(torch.ones(4), rng.key(0)):
        plain = layer(x), layer(x)
    with forward_pass(torch.ones(4), rng.key(0)):
        outer = layer(x)
        with forward_pass(torch.ones(4), rng.key(1)):
            inner = layer(x)
        again = layer(x)
    assert torch.equal(outer, plain[0])
    assert torch.equal(again, plain[1])  # as if there had been no other pass in between
    assert not torch.equal(inner, outer)


def test_statistics_of_masks_do_not_drift_over_many_steps() -> None:
    """One column of one row, over many keys: as fair as a coin."""
    kept = [int(mask(rng.fold(rng.key(0), s), rows=1, wide=4)[0, 2]) for s in range(600)]
    assert abs(np.mean(kept) - 0.5) < 5 * 0.5 / 600**0.5
    runs = np.mean(np.array(kept[1:]) == np.array(kept[:-1]))
    assert abs(runs - 0.5) < 5 * 0.5 / 600**0.5
