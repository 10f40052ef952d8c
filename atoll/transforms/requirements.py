"""What a mechanism needs to be certain of, and what to do where it is not."""

import math
from typing import Annotated, Literal

from pydantic import Field

from atoll.core import Spec
from atoll.errors import ConfigError, SpecError

Delta = Annotated[float, Field(gt=0, lt=1)]

_KIND = {"l2": "bounded updates", "l1": "updates bounded in L1"}


def needs_no_noise(spec: Spec, name: str) -> None:
    """Refuse a second mechanism: neither would know of the other."""
    if spec.noise is not None:
        raise SpecError(f"{name} follows another noise. Use one mechanism, with the larger noise multiplier.")


def needs_bound(spec: Spec, name: str, norm: Literal["l2", "l1"] = "l2") -> float:
    """The bound on an update, or a refusal."""
    bound = spec.l2 if norm == "l2" else spec.l1
    if bound is None:
        reason = f" ({spec.unbounded_because})" if spec.unbounded_because else ""
        raise SpecError(f"{name} needs {_KIND[norm]}{reason}: put clip_{norm} before it.")
    return bound


def needs_equal_weights(spec: Spec, name: str) -> None:
    """Refuse clients that count by something of their own, such as their number of examples."""
    if not spec.equal_weights:
        raise SpecError(f"{name} needs equal client weights: put equal_weights before it.")


def needs_sum(spec: Spec, name: str) -> None:
    """Refuse a reducer that looks at updates one by one."""
    if not spec.additive:
        raise SpecError(
            f"{name} protects a sum, but here the server sees every update: use reducer = 'mean' and "
            "round.name = 'central'."
        )


def needs_real(spec: Spec, name: str) -> None:
    """Refuse sums of integers or residues."""
    if spec.domain == "modular":
        raise SpecError(f"{name} adds real numbers, but the sum is modular here: put it before that.")
    if spec.domain == "sketch":
        raise SpecError(
            f"{name} works on updates, but what is sent here is a sketch of them: put it before sketch. "
            "There is no noise for sketches: leave sketch out of a private run."
        )
    if spec.domain == "integer":
        raise SpecError(
            f"{name} adds real numbers, but the sum is one of integers here: put it before fixed_point, "
            "or use discrete_gaussian or skellam."
        )


def needs_integers(spec: Spec, name: str) -> None:
    """Refuse real numbers and residues."""
    if spec.domain in ("real", "sketch"):
        raise SpecError(f"{name} works on integers: put fixed_point before it.")
    if spec.domain == "modular":
        raise SpecError(f"{name} follows secure_sum, where sums wrap around: put it before secure_sum.")


def needs_cohort(spec: Spec, name: str) -> int:
    """How many clients add up, or a refusal."""
    if spec.cohort is None:
        raise SpecError(f"{name} needs the same number of clients in every round: use cohort.name = 'fixed'.")
    return spec.cohort


def needs_size(spec: Spec, name: str) -> int:
    """How many numbers an update has, or a refusal."""
    if spec.size is None:
        raise SpecError(f"{name} needs to know how many numbers an update has: bind it to Spec(size = ...).")
    return spec.size


def check_number(where: str, value: float, zero: bool = False) -> None:
    """Refuse what is not a finite number above 0 (or 0, where that is allowed)."""
    if not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
        least = "at least 0" if zero else "above 0"
        raise ConfigError(f"{where}: must be {least} and finite (got {value}).")


def check_noise_stated(name: str, noise_multiplier: float, epsilon: float | None) -> None:
    """Refuse a mechanism that is not told how much noise it adds."""
    if not math.isnan(noise_multiplier):
        check_number(f"{name}.noise_multiplier", noise_multiplier, zero=True)
    elif epsilon is None:
        raise ConfigError(f"{name}: needs noise_multiplier, or epsilon and delta for the whole run.")
    else:
        raise ConfigError(
            f"{name}.epsilon: becomes a noise multiplier when a run is set up. Without a run use noise_multiplier."
        )
