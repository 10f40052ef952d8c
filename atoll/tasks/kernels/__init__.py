"""Convolutions, pooling, normalisation and recurrent layers of many clients at once, each with weights of its own."""

from atoll.tasks.kernels.activation import Sequential, add_relu, is_fusible_sequence
from atoll.tasks.kernels.batched_conv import ConvGeometry, Pair, out_size
from atoll.tasks.kernels.convolution import Conv2d, conv_geometry, is_replaceable_conv
from atoll.tasks.kernels.layouts import kernel_layout
from atoll.tasks.kernels.lstm import StackableLSTM, is_replaceable_lstm
from atoll.tasks.kernels.normalisation import ChannelsLastGroupNorm
from atoll.tasks.kernels.pooling import MaxPool2d, is_replaceable_pool, max_pool2d
from atoll.tasks.kernels.recurrent import recurrence

__all__ = [
    "ChannelsLastGroupNorm",
    "Conv2d",
    "ConvGeometry",
    "MaxPool2d",
    "Pair",
    "Sequential",
    "StackableLSTM",
    "add_relu",
    "conv_geometry",
    "is_fusible_sequence",
    "is_replaceable_conv",
    "is_replaceable_lstm",
    "is_replaceable_pool",
    "kernel_layout",
    "max_pool2d",
    "out_size",
    "recurrence",
]
