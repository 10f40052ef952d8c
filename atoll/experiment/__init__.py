"""The experiment file: read, checked, completed, and turned into calls."""

from atoll.experiment.arguments import Argument, schema
from atoll.experiment.catalogue import CATALOGUE, GIVEN
from atoll.experiment.defaults import usual_model, usual_partition
from atoll.experiment.experiment import EvaluateTable, Experiment, LocalTable, StopTable
from atoll.experiment.files import load, override, put, read
from atoll.experiment.listing import describe, meaning
from atoll.experiment.messages import near, unknown_option
from atoll.experiment.module import seeded
from atoll.experiment.registry import Entry, Nested, build, check, check_options, find
from atoll.experiment.setup import Device, Setup, assemble, find_device, loaded, partitioned, set_up
from atoll.experiment.type_names import shown

__all__ = [
    "CATALOGUE",
    "GIVEN",
    "Argument",
    "Device",
    "Entry",
    "EvaluateTable",
    "Experiment",
    "LocalTable",
    "Nested",
    "Setup",
    "StopTable",
    "assemble",
    "build",
    "check",
    "check_options",
    "describe",
    "find",
    "find_device",
    "load",
    "loaded",
    "meaning",
    "near",
    "override",
    "partitioned",
    "put",
    "read",
    "schema",
    "seeded",
    "set_up",
    "shown",
    "unknown_option",
    "usual_model",
    "usual_partition",
]
