"""A decoder-only language model of the Llama family, with the hub's names."""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from atoll.errors import ConfigError
from atoll.tasks.models.shapes import Shape, window

Size = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class LlamaSizes:
    """What distinguishes one model of the family from another."""

    width: int
    layers: int
    heads: int
    key_value_heads: int
    feedforward: int
    rope_theta: float
    vocabulary: int | None = None  # None: as many as the data have
    eps: float = 1e-5


PRESETS: dict[str, LlamaSizes] = {
    "tiny": LlamaSizes(64, 2, 4, 2, 128, 10_000.0),
    "smollm2-135m": LlamaSizes(576, 30, 9, 3, 1536, 100_000.0, vocabulary=49_152),
}


class Llama(nn.Module):
    """Llama (Touvron et al., 2023): RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases.

    `preset` names all sizes at once: "tiny" trains in seconds, "smollm2-135m" is SmolLM2-135M (Allal et al., 2025).
    Sizes beside it replace the preset's. Parameters have the names of LlamaForCausalLM in `transformers`, so that
    `task.start` takes a `model.safetensors` of the hub. Output: (B, T, vocabulary), logits of the next token.

    `tied`: the output layer is the embedding itself, as in SmolLM2.
    """

    def __init__(
        self,
        inputs: Shape,
        outputs: int,
        preset: Literal["tiny", "smollm2-135m"] = "tiny",
        width: Size | None = None,
        layers: Size | None = None,
        heads: Size | None = None,
        key_value_heads: Size | None = None,
        feedforward: Size | None = None,
        rope_theta: Annotated[float, Field(gt=0)] | None = None,
        vocabulary: Size | None = None,
        tied: bool = True,
    ) -> None:
        super().__init__()
        own = {"width": width, "layers": layers, "heads": heads, "key_value_heads": key_value_heads,
               "feedforward": feedforward, "rope_theta": rope_theta, "vocabulary": vocabulary}  # fmt: skip
        sizes = replace(PRESETS[preset], **{k: v for k, v in own.items() if v is not None})  # type: ignore[arg-type]
        tokens = _tokens(sizes, outputs)
        _check(sizes)
        self.model = LlamaDecoder(sizes, tokens, window("llama", inputs))
        self.lm_head = None if tied else nn.Linear(sizes.width, tokens, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=sizes.width**-0.5)  # SmolLM2's initializer_range is 1/24

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.model(tokens)
        out: Tensor = F.linear(x, self.model.embed_tokens.weight) if self.lm_head is None else self.lm_head(x)
        return out


class LlamaDecoder(nn.Module):
    """Embedding, layers, and a last norm."""

    cos: Tensor
    sin: Tensor

    def __init__(self, sizes: LlamaSizes, tokens: int, positions: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(tokens, sizes.width)
        self.layers = nn.ModuleList(LlamaLayer(sizes) for _ in range(sizes.layers))
        self.norm = RMSNorm(sizes.width, sizes.eps)
        cos, sin = rotary_tables(positions, sizes.width // sizes.heads, sizes.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        T = tokens.shape[1]
        x = self.embed_tokens(tokens)
        cos, sin = self.cos[:T].to(x.dtype), self.sin[:T].to(x.dtype)
        future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        for layer in self.layers:
            x = layer(x, cos, sin, future)
        out: Tensor = self.norm(x)
        return out


class LlamaLayer(nn.Module):
    """x + attention(norm(x)), then x + feedforward(norm(x))."""

    def __init__(self, sizes: LlamaSizes) -> None:
        super().__init__()
        self.self_attn = GroupedQueryAttention(sizes)
        self.mlp = SwiGLU(sizes.width, sizes.feedforward)
        self.input_layernorm = RMSNorm(sizes.width, sizes.eps)
        self.post_attention_layernorm = RMSNorm(sizes.width, sizes.eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, future: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, future)
        x = x + self.mlp(self.post_attention_layernorm(x))
        return x


class GroupedQueryAttention(nn.Module):
    """Causal attention in which `heads / key_value_heads` queries share each key and value (Ainslie et al., 2023).

    The queries of a group are rows of one product with their key, which is not repeated for them.
    """

    def __init__(self, sizes: LlamaSizes) -> None:
        super().__init__()
        self.heads, self.groups = sizes.heads, sizes.key_value_heads
        self.depth = sizes.width // sizes.heads
        shared = self.groups * self.depth
        self.q_proj = nn.Linear(sizes.width, sizes.width, bias=False)
        self.k_proj = nn.Linear(sizes.width, shared, bias=False)
        self.v_proj = nn.Linear(sizes.width, shared, bias=False)
        self.o_proj = nn.Linear(sizes.width, sizes.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, future: Tensor) -> Tensor:
        B, T, width = x.shape
        q = rotated(self._split(self.q_proj(x), self.heads), cos, sin)
        k = rotated(self._split(self.k_proj(x), self.groups), cos, sin)
        v = self._split(self.v_proj(x), self.groups)
        together = q.reshape(B, self.groups, -1, self.depth)  # (B, groups, queries of a group x T, depth)
        scores = (together @ k.transpose(-2, -1)).reshape(B, self.heads, T, T) / math.sqrt(self.depth)
        weights = scores.float().masked_fill(future, -math.inf).softmax(-1).to(x.dtype)
        seen = (weights.reshape(B, self.groups, -1, T) @ v).reshape(B, self.heads, T, self.depth)
        out: Tensor = self.o_proj(seen.transpose(1, 2).reshape(B, T, width))
        return out

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.reshape(*x.shape[:2], heads, self.depth).transpose(1, 2)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer, 2020)."""

    def __init__(self, width: int, feedforward: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, feedforward, bias=False)
        self.up_proj = nn.Linear(width, feedforward, bias=False)
        self.down_proj = nn.Linear(feedforward, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class RMSNorm(nn.RMSNorm):
    """x / sqrt(mean(x^2) + eps) * weight, in float32 (Zhang and Sennrich, 2019).

    Written out, since torch's fused kernel has no rule for a stack of clients.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__(width, eps)
        self.epsilon = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        scaled = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + self.epsilon)
        return self.weight * scaled.to(x.dtype)


def rotary_tables(positions: int, depth: int, theta: float) -> tuple[Tensor, Tensor]:
    """(positions, depth) cosines and sines of position x theta^(-2i / depth), each twice (Su et al., 2021)."""
    rates = theta ** -(torch.arange(0, depth, 2, dtype=torch.float32) / depth)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), rates).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(B, heads, T, depth) turned by its positions; the two halves of a head are the two parts of complex numbers."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def _tokens(sizes: LlamaSizes, outputs: int) -> int:
    tokens = sizes.vocabulary or outputs
    if tokens < outputs:
        raise ConfigError(
            f"task.model.vocabulary: {tokens:,} is too small for data of {outputs:,} tokens. "
            f"Use vocabulary = {outputs}."
        )
    return tokens


def _check(sizes: LlamaSizes) -> None:
    if sizes.width % (2 * sizes.heads):
        raise ConfigError(
            f"task.model.heads: model.width = {sizes.width} must be an even number for each head (got {sizes.heads})."
        )
    if sizes.heads % sizes.key_value_heads:
        raise ConfigError(
            f"task.model.key_value_heads: must divide model.heads = {sizes.heads} (got {sizes.key_value_heads})."
        )
