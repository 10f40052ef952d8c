"""How many updates become one."""

from collections.abc import Callable
from typing import Any

from atoll.reducers.attacked import Attacked, Bounds, ResidueEncoding
from atoll.reducers.bounded import CentredClipping, NormClipping
from atoll.reducers.client_weights import ScaledMean, client_weights
from atoll.reducers.clusters import ClippedClustering
from atoll.reducers.collect import Collect
from atoll.reducers.coordinatewise import Meamed, Median, TrimmedMean
from atoll.reducers.deferred import Deferred
from atoll.reducers.geometric_median import GeometricMedian
from atoll.reducers.gradient_mask import GradientMask
from atoll.reducers.grouped import EDGES, Grouped
from atoll.reducers.held_mean import HeldMean, HeldTotal
from atoll.reducers.krum import Bulyan, Krum, MultiKrum
from atoll.reducers.mean import Mean
from atoll.reducers.minimum_diameter import MinimumDiameter
from atoll.reducers.mixing import AdaptiveClipping, Bucketing, NearestNeighbourMixing
from atoll.reducers.outliers import ThreeSigma
from atoll.reducers.residual_reweighting import ResidualReweighting
from atoll.reducers.secure_mean import PLAN, SECURE, SecureMean
from atoll.reducers.sign_agreement import RobustLearningRate, SignGuard
from atoll.reducers.similarity import cosine_similarities, mean_and_largest_length
from atoll.reducers.spectral import CovarianceFilter, DivideAndConquer
from atoll.reducers.staleness import Discounted, StalenessDiscount, StalenessShape
from atoll.reducers.trust import FLTrust, FoolsGold, Zeno

REDUCERS: dict[str, Callable[..., Any]] = {
    "mean": Mean,
    "client_weights": client_weights,
    "fedgma": GradientMask,
    "median": Median,
    "trimmed_mean": TrimmedMean,
    "meamed": Meamed,
    "krum": Krum,
    "multi_krum": MultiKrum,
    "bulyan": Bulyan,
    "geometric_median": GeometricMedian,
    "mda": MinimumDiameter,
    "caf": CovarianceFilter,
    "dnc": DivideAndConquer,
    "norm_clipping": NormClipping,
    "centred_clipping": CentredClipping,
    "clipped_clustering": ClippedClustering,
    "sign_guard": SignGuard,
    "robust_lr": RobustLearningRate,
    "three_sigma": ThreeSigma,
    "residual_reweighting": ResidualReweighting,
    "foolsgold": FoolsGold,
    "fltrust": FLTrust,
    "zeno": Zeno,
    "nnm": NearestNeighbourMixing,
    "arc": AdaptiveClipping,
    "bucketing": Bucketing,
}

__all__ = [
    "EDGES",
    "PLAN",
    "REDUCERS",
    "SECURE",
    "AdaptiveClipping",
    "Attacked",
    "Bounds",
    "Bucketing",
    "Bulyan",
    "CentredClipping",
    "ClippedClustering",
    "Collect",
    "CovarianceFilter",
    "Deferred",
    "Discounted",
    "DivideAndConquer",
    "FLTrust",
    "FoolsGold",
    "GeometricMedian",
    "GradientMask",
    "Grouped",
    "HeldMean",
    "HeldTotal",
    "Krum",
    "Meamed",
    "Mean",
    "Median",
    "MinimumDiameter",
    "MultiKrum",
    "NearestNeighbourMixing",
    "NormClipping",
    "ResidualReweighting",
    "ResidueEncoding",
    "RobustLearningRate",
    "ScaledMean",
    "SecureMean",
    "SignGuard",
    "StalenessDiscount",
    "StalenessShape",
    "ThreeSigma",
    "TrimmedMean",
    "Zeno",
    "client_weights",
    "cosine_similarities",
    "mean_and_largest_length",
]
