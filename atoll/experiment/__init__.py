"""The experiment file: read, checked, completed, and turned into calls."""

from atoll.experiment.arguments import schema
from atoll.experiment.catalogue import CATALOGUE, GIVEN
from atoll.experiment.defaults import usual_model, usual_partition
from atoll.experiment.experiment import Experiment
from atoll.experiment.files import load, override, read
from atoll.experiment.listing import describe
from atoll.experiment.registry import Entry, build, check

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
    "usual_model",
    "usual_partition",
]
