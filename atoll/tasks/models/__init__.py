"""The models that come with atoll.

A builder takes the shape of one example and the number of outputs from the program; its other arguments are what a
user may set, so its signature is their schema. All models keep to four rules:

- they run under `torch.func.vmap` and `grad` with one set of parameters per client;
- dropout and batch normalisation are modules, each called once in a pass, so that a task can replace them;
- nothing else in `forward` draws random numbers;
- the last layer is an `nn.Linear` called `head`, registered last (`lm_head` in a `llama`, whose names are the hub's;
  a language model that is tied has none).
"""

from collections.abc import Callable

from torch import nn

from atoll.tasks.models.cnn import CNN
from atoll.tasks.models.gan import Gan
from atoll.tasks.models.gkt import Gkt
from atoll.tasks.models.lenet import LeNet
from atoll.tasks.models.linear import Linear, logistic
from atoll.tasks.models.llama import Llama
from atoll.tasks.models.lstm import CharLSTM, SentimentLSTM
from atoll.tasks.models.mlp import MLP
from atoll.tasks.models.one_of import OneOf
from atoll.tasks.models.resnet import resnet18, resnet50
from atoll.tasks.models.supernet import CellNet, Supernet, derived_network, derived_operations
from atoll.tasks.models.transformer import TransformerLM
from atoll.tasks.models.vgg import VGG9, ChannelDropout

MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": Linear,
    "logistic": logistic,
    "mlp": MLP,
    "lenet": LeNet,
    "cnn": CNN,
    "vgg9": VGG9,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "supernet": Supernet,
    "cell_net": CellNet,
    "gan": Gan,
    "gkt": Gkt,
    "one_of": OneOf,
    "char_lstm": CharLSTM,
    "sentiment_lstm": SentimentLSTM,
    "transformer_lm": TransformerLM,
    "llama": Llama,
}

__all__ = [
    "CNN",
    "MLP",
    "MODELS",
    "VGG9",
    "CellNet",
    "ChannelDropout",
    "CharLSTM",
    "Gan",
    "Gkt",
    "LeNet",
    "Linear",
    "Llama",
    "OneOf",
    "SentimentLSTM",
    "Supernet",
    "TransformerLM",
    "derived_network",
    "derived_operations",
    "logistic",
    "resnet18",
    "resnet50",
]
