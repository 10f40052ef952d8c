"""Layers and losses of many clients at once, each with weights of its own."""

from atoll.tasks.kernels.batched_conv import ConvGeometry, Pair, out_size
from atoll.tasks.kernels.convolution import Conv2d, conv_geometry, is_replaceable_conv
from atoll.tasks.kernels.layer_norm import LayerNorm, is_replaceable_layer_norm
from atoll.tasks.kernels.normalisation import ChannelsLastGroupNorm
from atoll.tasks.kernels.pooling import MaxPool2d, is_replaceable_pool, max_pool2d

__all__ = [
    "ChannelsLastGroupNorm",
    "Conv2d",
    "ConvGeometry",
    "LayerNorm",
    "MaxPool2d",
    "Pair",
    "conv_geometry",
    "is_replaceable_conv",
    "is_replaceable_layer_norm",
    "is_replaceable_pool",
    "max_pool2d",
    "out_size",
]
