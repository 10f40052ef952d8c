"""The experiment file: read, checked, completed, and turned into calls."""

from atoll.experiment.attack_setup import AttackPlan, make_attack
from atoll.experiment.catalogue import CATALOGUE, GIVEN
from atoll.experiment.defaults import usual_model, usual_partition
from atoll.experiment.device import Device, find_device
from atoll.experiment.experiment import EvaluateTable, Experiment, LocalTable, StopTable, load, plain_signatures
from atoll.experiment.listing import describe, summary_line
from atoll.experiment.memory import fits_in_memory
from atoll.experiment.module import make_module, seeded_torch
from atoll.experiment.registry import Nested, build, check, check_options, find_builder
from atoll.experiment.security import SecurityStatement, security_of
from atoll.experiment.setup import Setup, assemble, load_dataset, make_partition, set_up
from atoll.experiment.signatures import schema
from atoll.experiment.start import safetensors
from atoll.experiment.watched import Watched
from atoll.schema import (
    Argument,
    Entry,
    closest_name,
    did_you_mean,
    override,
    read,
    set_at_path,
    short_toml,
    unknown_option,
)

__all__ = [
    "CATALOGUE",
    "GIVEN",
    "Argument",
    "AttackPlan",
    "Device",
    "Entry",
    "EvaluateTable",
    "Experiment",
    "LocalTable",
    "Nested",
    "SecurityStatement",
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
    "make_attack",
    "make_module",
    "make_partition",
    "override",
    "plain_signatures",
    "read",
    "safetensors",
    "schema",
    "security_of",
    "seeded_torch",
    "set_at_path",
    "set_up",
    "short_toml",
    "summary_line",
    "unknown_option",
    "usual_model",
    "usual_partition",
]
