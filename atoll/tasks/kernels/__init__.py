"""Layers and losses of many clients at once, each with weights of its own."""

from atoll.tasks.kernels.attention import causal_attention, is_short_text
from atoll.tasks.kernels.batched_conv import ConvGeometry, Pair, out_size
from atoll.tasks.kernels.bias_relu import bias_relu_dropout, takes_bias_relu
from atoll.tasks.kernels.convolution import Conv2d, conv_geometry, is_replaceable_conv
from atoll.tasks.kernels.cross_entropy import cross_entropy_rows
from atoll.tasks.kernels.cut_cross_entropy import LinearScores, scores_cross_entropy, takes_linear_scores
from atoll.tasks.kernels.descent import takes_scale
from atoll.tasks.kernels.dropout import drop
from atoll.tasks.kernels.embedding import takes_tied_embedding, tied_embedding
from atoll.tasks.kernels.layer_norm import LayerNorm, is_replaceable_layer_norm
from atoll.tasks.kernels.layouts import kernel_layout, plain_layout
from atoll.tasks.kernels.lstm import StackableLSTM, is_replaceable_lstm
from atoll.tasks.kernels.normalisation import ChannelsLastGroupNorm
from atoll.tasks.kernels.pooling import MaxPool2d, is_replaceable_pool, max_pool2d
from atoll.tasks.kernels.recurrent import recurrence
from atoll.tasks.kernels.residual import add_relu

__all__ = [
    "ChannelsLastGroupNorm",
    "Conv2d",
    "ConvGeometry",
    "LayerNorm",
    "LinearScores",
    "MaxPool2d",
    "Pair",
    "StackableLSTM",
    "add_relu",
    "bias_relu_dropout",
    "causal_attention",
    "conv_geometry",
    "cross_entropy_rows",
    "drop",
    "is_replaceable_conv",
    "is_replaceable_layer_norm",
    "is_replaceable_lstm",
    "is_replaceable_pool",
    "is_short_text",
    "kernel_layout",
    "max_pool2d",
    "out_size",
    "plain_layout",
    "recurrence",
    "scores_cross_entropy",
    "takes_bias_relu",
    "takes_linear_scores",
    "takes_scale",
    "takes_tied_embedding",
    "tied_embedding",
]
