"""Convolutions and pooling of many clients at once, each with weights of its own."""

from atoll.tasks.kernels.batched_conv import How, Pair, out_size
from atoll.tasks.kernels.convolution import Conv2d, how_of, stackable
from atoll.tasks.kernels.pooling import MaxPool2d, max_pool2d, poolable

__all__ = ["Conv2d", "How", "MaxPool2d", "Pair", "how_of", "max_pool2d", "out_size", "poolable", "stackable"]
