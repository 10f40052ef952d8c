"""The whole cohort as one stack of tensors."""

from atoll.engines.vector.vector import Vector

__all__ = ["Vector"]
