"""Layers around the sum: what happens to an update between the client's training and the server's step."""

from atoll.transforms.clip import ClipL2
from atoll.transforms.compress import TopK
from atoll.transforms.noise import GaussianNoise
from atoll.transforms.weights import EqualWeights

TRANSFORMS = {
    "equal_weights": EqualWeights,
    "clip_l2": ClipL2,
    "gaussian_noise": GaussianNoise,
    "top_k": TopK,
}

__all__ = ["TRANSFORMS"]
