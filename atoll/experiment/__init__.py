"""The experiment file: read, checked, completed, and turned into calls."""

from atoll.experiment.arguments import Argument, schema
from atoll.experiment.catalogue import CATALOGUE, GIVEN
from atoll.experiment.clock_setup import make_clock
from atoll.experiment.defaults import usual_model, usual_partition
from atoll.experiment.experiment import EvaluateTable, Experiment, LocalTable, StopTable
from atoll.experiment.files import load, override, read, set_at_path
from atoll.experiment.listing import describe, summary_line
from atoll.experiment.memory import fits_in_memory
from atoll.experiment.messages import closest_name, did_you_mean, unknown_option
from atoll.experiment.module import make_module, seeded_torch
from atoll.experiment.registry import Entry, Nested, build, check, check_options, find_builder
from atoll.experiment.setup import Device, Setup, assemble, find_device, load_dataset, make_partition, set_up
from atoll.experiment.start import safetensors
from atoll.experiment.type_names import short_toml
from atoll.experiment.watched import Watched

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
    "Watched",
    "assemble",
    "build",
    "check",
    "check_options",
    "closest_name",
    "describe",
    "did_you_mean",
    "find_builder",
    "find_device",
    "fits_in_memory",
    "load",
    "load_dataset",
    "make_clock",
    "make_module",
    "make_partition",
    "override",
    "read",
    "safetensors",
    "schema",
    "seeded_torch",
    "set_at_path",
    "set_up",
    "short_toml",
    "summary_line",
    "unknown_option",
    "usual_model",
    "usual_partition",
]
