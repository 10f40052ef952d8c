"""The three real models of `benchmarks/gpu.py` as plain PyTorch modules; texts are judged by the token behind them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, CHARACTERS = 10_004, 90


class ResNet18(nn.Module):
    """For pictures of 32 pixels, with GroupNorm (Hsieh et al., 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(32, 64), nn.ReLU())
        blocks, before = [], 64
        for width in (64, 128, 256, 512):
            blocks += [Block(before, width), Block(width, width)]
            before = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(before, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Block(nn.Module):
    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        stride = width // before
        self.body = nn.Sequential(
            nn.Conv2d(before, width, 3, stride, 1, bias=False),
            nn.GroupNorm(32, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.GroupNorm(32, width),
        )
        shortcut = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.GroupNorm(32, width))
        self.shortcut = nn.Identity() if stride == 1 else shortcut

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class Transformer(nn.Module):
    """Of pfl-research's StackOverflow benchmark, without dropout; the last layer is the embedding."""

    def __init__(self, width: int = 96, layers: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(0.02 * torch.randn(20, width))
        self.layers = nn.Sequential(*(Layer(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.layers(self.embedding(tokens) + self.positions))
        return F.linear(x[:, -1], self.embedding.weight)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int = 8, feedforward: int = 1536) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feedforward = nn.Sequential(nn.Linear(width, feedforward), nn.ReLU(), nn.Linear(feedforward, width))

    def forward(self, x: Tensor) -> Tensor:
        B, T, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(B, T, width))
        return x + self.feedforward(self.norm2(x))


class CharLSTM(nn.Module):
    """McMahan et al. (2017), as LEAF has it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, 8)
        self.lstm = nn.LSTM(8, 256, 2, batch_first=True)
        self.head = nn.Linear(256, CHARACTERS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0][:, -1])
