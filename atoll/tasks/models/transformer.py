"""A small decoder-only transformer."""

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from atoll.errors import ConfigError
from atoll.tasks.class_scores import class_scores, embedded
from atoll.tasks.kernels import LinearScores, causal_attention, is_short_text
from atoll.tasks.keyed_dropout import KeyedDropout
from atoll.tasks.models.shapes import Shape, window


class TransformerLM(nn.Module):
    """Decoder-only transformer language model: pre-norm, learned positions, logits of the next token everywhere.

    Vaswani et al. (NeurIPS 2017), arranged as GPT-2 (Radford et al., 2019). The default sizes are those of
    pfl-research's StackOverflow model (Wang et al., 2021). Output: (B, T, vocabulary).

    `tied`: the output layer is the embedding itself; `tied = false` gives the model a last layer of its own.
    """

    def __init__(
        self,
        inputs: Shape,
        outputs: int,
        width: Annotated[int, Field(ge=1)] = 96,
        heads: Annotated[int, Field(ge=1)] = 8,
        layers: Annotated[int, Field(ge=1)] = 3,
        feedforward: Annotated[int, Field(ge=1)] = 1536,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1,
        tied: bool = True,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ConfigError(f"task.model.heads: must divide model.width = {width} (got {heads}).")
        self.embedding = nn.Embedding(outputs, width)
        self.positions = nn.Parameter(torch.empty(window("transformer_lm", inputs), width))
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.Sequential(*(DecoderLayer(width, heads, feedforward, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = None if tied else nn.Linear(width, outputs, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:  # all but the norms and biases
                # The default N(0, 1) of an embedding would, tied, start with scores of size sqrt(width).
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor | LinearScores:
        last: nn.Linear | Tensor
        x, last = embedded(tokens, self.embedding) if self.head is None else (self.embedding(tokens), self.head)
        x = self.dropout(x + self.positions[: tokens.shape[1]])
        return class_scores(self, self.norm(self.layers(x)), last)


class DecoderLayer(nn.Module):
    """x + attention(norm(x)), then x + feedforward(norm(x))."""

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), CausalAttention(width, heads, dropout), nn.Dropout(dropout))
        self.feedforward = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, feedforward),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(feedforward, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x)
        x = x + self.feedforward(x)
        return x


class CausalAttention(nn.Module):
    """softmax(Q K^T / sqrt(d) with the future masked) V, per head."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        B, T, width = x.shape
        if is_short_text(x, self.heads) and (key := self._dropout_key()) is not None:
            attended: Tensor = self.out(causal_attention(self.qkv(x), *key, self.heads))
            return attended
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        weights = self.dropout(scores.masked_fill(future, -math.inf).softmax(-1))
        out: Tensor = self.out((weights @ v).transpose(1, 2).reshape(B, T, width))
        return out

    def _dropout_key(self) -> tuple[Tensor | None, int, float] | None:
        """Key, number and share of the dropout of an engine; None where it must be called, being hooked or another."""
        dropout = self.dropout
        if not isinstance(dropout, KeyedDropout) or dropout._forward_hooks or dropout._forward_pre_hooks:
            return None
        return (*dropout.draw(), dropout.p) if dropout.active else (None, 0, 0.0)
