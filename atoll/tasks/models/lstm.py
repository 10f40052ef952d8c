"""LSTMs whose recurrent part knows a client axis (`kernels.recurrent`); nn.LSTM cannot be vmapped over clients."""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from atoll.tasks.kernels import recurrence
from atoll.tasks.models.shapes import Shape, window


class LSTM(nn.Module):
    """nn.LSTM(batch_first=True) with the same parameters, names and initial values: (B, T, features) to (B, T, hidden).

    i, f, g, o = W_ih x + b_ih + W_hh h + b_hh;  c = sigmoid(f) c + sigmoid(i) tanh(g);  h = sigmoid(o) tanh(c).
    Hochreiter & Schmidhuber (1997), with the forget gate of Gers et al. (2000).
    """

    def __init__(self, features: int, hidden: int, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.hidden = hidden
        self.layers = layers
        for k in range(layers):
            before = hidden if k else features
            self.register_parameter(f"weight_ih_l{k}", nn.Parameter(torch.empty(4 * hidden, before)))
            self.register_parameter(f"weight_hh_l{k}", nn.Parameter(torch.empty(4 * hidden, hidden)))
            self.register_parameter(f"bias_ih_l{k}", nn.Parameter(torch.empty(4 * hidden)))
            self.register_parameter(f"bias_hh_l{k}", nn.Parameter(torch.empty(4 * hidden)))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1 / math.sqrt(hidden), 1 / math.sqrt(hidden))
        # One module per gap between layers: a keyed dropout is called once a pass, so that masks differ.
        self.dropouts = nn.ModuleList(nn.Dropout(dropout) for _ in range(layers - 1))

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """The last layer's state at every step; where `real` (B, T) is false, the state of the step before stays."""
        x, real = x.transpose(0, 1), None if real is None else real.transpose(0, 1)
        for k in range(self.layers):
            if k:
                x = self.dropouts[k - 1](x.transpose(0, 1)).transpose(0, 1)
            # getattr, not get_parameter: under functional_call these are plain tensors.
            weight_ih: Tensor = getattr(self, f"weight_ih_l{k}")
            weight_hh: Tensor = getattr(self, f"weight_hh_l{k}")
            bias: Tensor = getattr(self, f"bias_ih_l{k}") + getattr(self, f"bias_hh_l{k}")
            x, _ = recurrence(F.linear(x, weight_ih), bias, weight_hh, real)
        return x.transpose(0, 1)


class CharLSTM(nn.Module):
    """Next-character LSTM: embedding of 8, two layers of 256; logits at every position or only the last.

    McMahan et al. (AISTATS 2017); LEAF (Caldas et al., 2018) predicts only the character after the window:
    `predict = "last"`. 822,570 parameters with 90 characters, as in FedML.
    Output: (B, T, vocabulary), or (B, vocabulary) for "last".
    """

    def __init__(
        self,
        inputs: Shape,
        outputs: int,
        embedding: Annotated[int, Field(ge=1)] = 8,
        hidden: Annotated[int, Field(ge=1)] = 256,
        layers: Annotated[int, Field(ge=1)] = 2,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
        predict: Literal["all", "last"] = "all",
    ) -> None:
        super().__init__()
        window("char_lstm", inputs)
        self.predict = predict
        self.embedding = nn.Embedding(outputs, embedding)
        self.lstm = LSTM(embedding, hidden, layers, dropout)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.lstm(self.embedding(tokens))
        out: Tensor = self.head(states if self.predict == "all" else states[:, -1])
        return out


class SentimentLSTM(nn.Module):
    """Text classifier: embedding, two-layer LSTM, logits from the state after the last real token.

    OARF (Hu et al., 2022) runs two layers over 200 tokens; it does not give the widths, so these are ours.
    Token 0 is padding and is skipped, wherever it stands: the state passes over it unchanged. A text of padding only
    gets the scores of the zero state.
    """

    def __init__(
        self,
        inputs: Shape,
        outputs: int,
        vocabulary: Annotated[int, Field(ge=2)] = 10_000,
        embedding: Annotated[int, Field(ge=1)] = 64,
        hidden: Annotated[int, Field(ge=1)] = 128,
        layers: Annotated[int, Field(ge=1)] = 2,
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    ) -> None:
        super().__init__()
        window("sentiment_lstm", inputs)
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = LSTM(embedding, hidden, layers, dropout)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        states = self.lstm(self.embedding(tokens), real=tokens != 0)
        out: Tensor = self.head(states[:, -1])
        return out
