"""The experiment file: read, checked, completed, and turned into calls."""

from atoll.config.arguments import schema
from atoll.config.catalogue import CATALOGUE, GIVEN
from atoll.config.defaults import usual_model, usual_partition
from atoll.config.experiment import Experiment
from atoll.config.files import load, override, read
from atoll.config.listing import describe, table
from atoll.config.registry import Entry, build, check

__all__ = [
    "CATALOGUE",
    "GIVEN",
    "Entry",
    "Experiment",
    "build",
    "check",
    "describe",
    "load",
    "override",
    "read",
    "schema",
    "table",
    "usual_model",
    "usual_partition",
]
