"""The Llama family: beside transformers' own, and beside a plain one that was written from the papers."""

import cmath
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.func import functional_call, vmap

from atoll import rng
from atoll.errors import ConfigError
from atoll.experiment import Experiment, load_dataset, make_module
from atoll.experiment.start import started_from
from atoll.tasks import Supervised
from atoll.tasks.models import MODELS, Llama
from atoll.tasks.models.llama import PRESETS
from atoll.tasks.objectives import NextToken

SIZES: dict[str, Any] = {
    "width": 24, "layers": 2, "heads": 6, "key_value_heads": 2, "feedforward": 20, "rope_theta": 100_000.0
}  # fmt: skip


def llama(tied: bool = True, seed: int = 0, **more: Any) -> Llama:
    torch.manual_seed(seed)
    model = Llama((9,), 13, **{**SIZES, **more}, tied=tied)
    for p in model.parameters():
        nn.init.normal_(p, std=0.4)  # far from where norms are ones and attention is even
    return model


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, 13, shape, generator=torch.Generator().manual_seed(1))


# oracles


def test_logits_are_those_of_the_papers_computed_number_by_number() -> None:
    """One position, one head and one pair of numbers at a time: rotations are products of complex numbers."""
    model = llama(tied=False)
    w = {k: v.detach().double() for k, v in model.state_dict().items()}
    text = tokens(5).tolist()
    torch.testing.assert_close(model(torch.tensor([text]))[0].double(), plain_logits(w, text), rtol=0, atol=1e-5)


def plain_logits(w: dict[str, Tensor], text: list[int]) -> Tensor:
    heads, groups, depth = SIZES["heads"], SIZES["key_value_heads"], SIZES["width"] // SIZES["heads"]
    xs = [w["model.embed_tokens.weight"][t] for t in text]
    for i in range(SIZES["layers"]):
        own = {k.removeprefix(f"model.layers.{i}."): v for k, v in w.items() if k.startswith(f"model.layers.{i}.")}
        normed = [rms(x) * own["input_layernorm.weight"] for x in xs]
        q, k, v = ([own[f"self_attn.{n}_proj.weight"] @ x for x in normed] for n in "qkv")
        attended = []
        for t in range(len(text)):
            parts = []
            for h in range(heads):
                g = h // (heads // groups)
                query = turned(q[t][h * depth : (h + 1) * depth], t)
                keys = [turned(k[s][g * depth : (g + 1) * depth], s) for s in range(t + 1)]
                scores = torch.stack([query @ key for key in keys]) / math.sqrt(depth)
                parts.append(sum(p * v[s][g * depth : (g + 1) * depth] for s, p in enumerate(scores.softmax(0))))
            attended.append(own["self_attn.o_proj.weight"] @ torch.cat(parts))
        xs = [x + a for x, a in zip(xs, attended, strict=True)]
        normed = [rms(x) * own["post_attention_layernorm.weight"] for x in xs]
        gates = [own["mlp.gate_proj.weight"] @ x for x in normed]
        ups = [own["mlp.up_proj.weight"] @ x for x in normed]
        inside = [g / (1 + (-g).exp()) * u for g, u in zip(gates, ups, strict=True)]
        xs = [x + own["mlp.down_proj.weight"] @ z for x, z in zip(xs, inside, strict=True)]
    return torch.stack([w["lm_head.weight"] @ (rms(x) * w["model.norm.weight"]) for x in xs])


def rms(x: Tensor) -> Tensor:
    return x / math.sqrt(float((x * x).sum()) / len(x) + 1e-5)


def turned(x: Tensor, position: int) -> Tensor:
    half = len(x) // 2
    rates = [SIZES["rope_theta"] ** (-2 * j / len(x)) for j in range(half)]
    pairs = [complex(x[j], x[half + j]) * cmath.exp(1j * position * r) for j, r in enumerate(rates)]
    return torch.tensor([z.real for z in pairs] + [z.imag for z in pairs], dtype=torch.float64)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of another project are not ours to mend
@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_transformers(tied: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=13, hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=100_000.0, tie_word_embeddings=tied,
    )  # fmt: skip
    theirs = transformers.LlamaForCausalLM(config).eval()
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.4)
    theirs.save_pretrained(tmp_path)
    ours = started_from(llama(tied), str(tmp_path))  # as their own code wrote it
    text = tokens(3, 9)
    torch.testing.assert_close(ours(text), theirs(text).logits, rtol=0, atol=1e-5)


def test_the_sizes_of_smollm2_are_those_of_its_published_config() -> None:
    s = PRESETS["smollm2-135m"]
    assert (s.width, s.layers, s.heads, s.key_value_heads, s.feedforward) == (576, 30, 9, 3, 1536)
    assert (s.vocabulary, s.rope_theta, s.eps) == (49_152, 100_000.0, 1e-5)


# what it must be


def test_a_llama_does_not_see_the_future_and_knows_where_a_token_stands() -> None:
    model, text = llama(), tokens(2, 9)
    changed = text.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 13
    a, b = model(text), model(changed)
    torch.testing.assert_close(a[:, :5], b[:, :5], rtol=0, atol=0)
    assert (a[:, 5:] != b[:, 5:]).any(-1).all()
    last = model(torch.tensor([[1, 2, 3], [2, 1, 3]]))[:, -1]
    assert not torch.allclose(last[0], last[1])


def test_a_shorter_text_gives_the_same_beginning() -> None:
    model, text = llama(), tokens(2, 9)
    torch.testing.assert_close(model(text[:, :4]), model(text)[:, :4])


def test_with_as_many_keys_as_queries_attention_is_torchs() -> None:
    model = llama(key_value_heads=6, layers=1)
    attention = model.model.layers[0].self_attn
    x, none = torch.randn(2, 5, 24), torch.zeros(5, 4)
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    q, k, v = (
        layer(x).view(2, 5, 6, 4).transpose(1, 2) for layer in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    expected = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attention(x, none + 1, none, future), attention.o_proj(expected))  # nothing turned


def test_a_base_that_is_not_stacked_is_read_by_all_clients() -> None:
    """One set of parameters for three texts: what a frozen base is to a stack."""
    model, text = llama(), tokens(3, 2, 9)
    params = {k: v.detach() for k, v in model.named_parameters()}
    stacked = vmap(lambda p, x: functional_call(model, p, (x,)), in_dims=(None, 0))(params, text)
    torch.testing.assert_close(stacked, torch.stack([model(x) for x in text]), rtol=1e-5, atol=1e-5)


def test_in_bfloat16_logits_stay_near() -> None:
    model, text = llama(), tokens(4, 9)
    example = {"x": text, "y": text, "mask": torch.ones(4)}
    task = Supervised(model, NextToken(13), example)
    start = task.init(torch.zeros(2, dtype=torch.int64))
    exact = task.logits(start["params"], {}, example)
    task.compute_dtype = torch.bfloat16
    near = task.logits(start["params"], {}, example)
    assert near.dtype == torch.float32
    assert not torch.equal(near, exact)
    assert float((near - exact).norm() / exact.norm()) < 0.05


def test_it_learns_a_text_it_is_shown() -> None:
    model = MODELS["llama"](inputs=(9,), outputs=13, layers=1)
    text = tokens(2, 10)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(25):
        loss = nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.5 < math.log(13)


# what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 7}, r"model\.heads: model\.width = 24 must be an even number for each head \(got 7\)"),
        ({"heads": 24, "key_value_heads": 1}, r"even number for each head"),
        ({"key_value_heads": 4}, r"key_value_heads: must divide model\.heads = 6 \(got 4\)"),
        ({"vocabulary": 12}, r"vocabulary: 12 is too small for data of 13 tokens\. Use vocabulary = 13"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Llama((9,), 13, **{**SIZES, **options})


def test_a_larger_vocabulary_than_the_datas_is_taken_and_a_smaller_one_refused() -> None:
    data = {"name": "library_text", "window": 9}
    raw = {"rounds": 1, "data": data, "algorithm": {"name": "fedavg", "lr": 0.1}}
    dataset = load_dataset(Experiment.parse(raw))
    for size, tokens_known in ((500, 500), (None, dataset.outputs)):
        task = {"model": {"name": "llama", "layers": 1, **({} if size is None else {"vocabulary": size})}}
        entry = Experiment.parse({**raw, "task": task}).task.model
        assert entry is not None
        model = make_module(entry, dataset, "task.model", rng.key(0))
        assert model(dataset.train["x"][:2]).shape == (2, 9, tokens_known)
    with pytest.raises(ConfigError, match=rf"vocabulary: 12 is too small .*Use vocabulary = {dataset.outputs}"):
        make_module({"name": "llama", "vocabulary": 12}, dataset, "task.model", rng.key(0))


# weights of the hub


def saved(state: dict[str, Tensor], path: Path) -> str:
    save_file({k: v.detach().clone().contiguous() for k, v in state.items()}, path)
    return str(path)


def test_weights_are_read_from_a_file_with_the_hubs_names(tmp_path: Path) -> None:
    there, here = llama(seed=1), llama(seed=2)
    names = set(there.state_dict())
    assert {"model.layers.1.self_attn.k_proj.weight", "model.layers.0.post_attention_layernorm.weight"} <= names
    assert "lm_head.weight" not in names  # tied: as the hub's files of SmolLM2 are
    started = started_from(here, saved(there.state_dict(), tmp_path / "model.safetensors"))
    assert torch.equal(started(tokens(2, 9)), there(tokens(2, 9)))
    assert not torch.equal(here(tokens(2, 9)), there(tokens(2, 9)))  # a copy was started


def test_a_tied_layer_that_a_file_has_twice_is_read_once_and_an_untied_one_is_refused(tmp_path: Path) -> None:
    there = llama(seed=1)
    state = there.state_dict()
    twice = {**state, "lm_head.weight": state["model.embed_tokens.weight"]}
    started = started_from(llama(), saved(twice, tmp_path / "twice.safetensors"))
    assert torch.equal(started(tokens(2, 9)), there(tokens(2, 9)))
    untied = {**state, "lm_head.weight": state["model.embed_tokens.weight"] + 1}
    with pytest.raises(ConfigError, match=r"it has 'lm_head.weight', which task.model has not"):
        started_from(llama(), saved(untied, tmp_path / "untied.safetensors"))


def test_half_precision_weights_are_widened(tmp_path: Path) -> None:
    half = {k: v.bfloat16() for k, v in llama(seed=1).state_dict().items()}
    started = started_from(llama(), saved(half, tmp_path / "half.safetensors"))
    for k, v in started.state_dict().items():
        assert v.dtype == torch.float32
        assert torch.equal(v, half[k].float())


def test_a_folder_of_the_hub_with_one_file_or_with_several_is_read(tmp_path: Path) -> None:
    there = llama(seed=1)
    state = there.state_dict()
    one, many = tmp_path / "one", tmp_path / "many"
    for folder in (one, many):
        folder.mkdir()
    saved(state, one / "model.safetensors")
    names = sorted(state)
    index = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(index.values()):
        saved({k: v for k, v in state.items() if index[k] == file}, many / file)
    (many / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    for folder in (one, many):
        assert torch.equal(started_from(llama(), str(folder))(tokens(2, 9)), there(tokens(2, 9)))
    wrong = {**index, names[0]: index[names[1]]}
    (many / "model.safetensors.index.json").write_text(json.dumps({"weight_map": wrong}))
    with pytest.raises(ConfigError, match=r"lacks .* which model\.safetensors\.index\.json says it has"):
        started_from(llama(), str(many))
    (many / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"cannot be read as an index of files"):
        started_from(llama(), str(many))
