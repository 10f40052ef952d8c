"""Layers around the sum: what happens to an update between the client's training and the server's step."""

from atoll.transforms.clip import ClipL1, ClipL2, ClipLayers
from atoll.transforms.compress import TopK
from atoll.transforms.noise import GaussianNoise, LaplaceNoise
from atoll.transforms.weights import EqualWeights

TRANSFORMS = {
    "equal_weights": EqualWeights,
    "clip_l2": ClipL2,
    "clip_layers": ClipLayers,
    "clip_l1": ClipL1,
    "gaussian_noise": GaussianNoise,
    "laplace_noise": LaplaceNoise,
    "top_k": TopK,
}

__all__ = ["TRANSFORMS"]
