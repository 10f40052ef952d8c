"""The signal-to-noise ratio of a round."""

import math

from atoll.errors import ConfigError


def signal_to_noise(norm: float, dimension: int, std: float) -> float:
    """Signal over noise of one round: |Δ| / √(d σ²) (Granqvist et al., pfl-research, 2024, equation 1).

    Δ is the aggregated update before noise, d its dimension, σ the standard deviation of the noise on it (both on the
    sum, or both on the mean). Without noise it is infinite.

    >>> signal_to_noise(norm=3.0, dimension=100, std=0.1)
    3.0
    """
    if not (norm >= 0 and std >= 0 and dimension >= 1):
        raise ConfigError(
            f"signal_to_noise: needs norm and std at least 0 and dimension at least 1 "
            f"(got norm={norm}, std={std}, dimension={dimension})."
        )
    return math.inf if std == 0 else norm / (math.sqrt(dimension) * std)
