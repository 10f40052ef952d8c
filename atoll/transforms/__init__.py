"""Transforms around the aggregation: what happens to an update between local training and the server's step."""

from atoll.core import Transform
from atoll.transforms.adaptive import AdaptiveClip
from atoll.transforms.clip import ClipL1, ClipL2, ClipLayers, ClipPerLayer
from atoll.transforms.compress import (
    Compressor,
    Drive,
    Entropy,
    HalfPrecision,
    LowRank,
    MaskLayers,
    Qsgd,
    RandK,
    Relevance,
    Sign,
    Sketch,
    Ternary,
    TopK,
    UniformQuantise,
)
from atoll.transforms.correlated import BandedNoise, TreeNoise
from atoll.transforms.discrete import DiscreteGaussian, Skellam
from atoll.transforms.integers import FixedPoint, SecureSum
from atoll.transforms.joint import JointClip
from atoll.transforms.local_noise import ApproximateLocal, LocalGaussian, LocalLaplace, Privunit
from atoll.transforms.noise import GaussianNoise, LaplaceNoise
from atoll.transforms.published_noise import Nbafl, WeakDp
from atoll.transforms.shared_mask import SharedMask
from atoll.transforms.sum_range import FixedPointFor
from atoll.transforms.weights import EqualWeights

TRANSFORMS: dict[str, type[Transform]] = {
    "equal_weights": EqualWeights,
    "clip_l2": ClipL2,
    "clip_per_layer": ClipPerLayer,
    "clip_layers": ClipLayers,
    "clip_l1": ClipL1,
    "adaptive_clip": AdaptiveClip,
    "joint_clip": JointClip,
    "gaussian_noise": GaussianNoise,
    "laplace_noise": LaplaceNoise,
    "banded_noise": BandedNoise,
    "tree_noise": TreeNoise,
    "fixed_point": FixedPoint,
    "discrete_gaussian": DiscreteGaussian,
    "skellam": Skellam,
    "secure_sum": SecureSum,
    "local_gaussian": LocalGaussian,
    "local_laplace": LocalLaplace,
    "privunit": Privunit,
    "approximate_local": ApproximateLocal,
    "weak_dp": WeakDp,
    "nbafl": Nbafl,
    "top_k": TopK,
    "rand_k": RandK,
    "low_rank": LowRank,
    "qsgd": Qsgd,
    "uniform_quantise": UniformQuantise,
    "drive": Drive,
    "half": HalfPrecision,
    "sign": Sign,
    "ternary": Ternary,
    "mask_layers": MaskLayers,
    "shared_mask": SharedMask,
    "sketch": Sketch,
    "relevance": Relevance,
    "entropy": Entropy,
}

__all__ = ["TRANSFORMS", "Compressor", "FixedPointFor", "SecureSum", "TopK"]
