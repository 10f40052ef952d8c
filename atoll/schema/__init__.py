"""What a file may say, as plain values: read, checked and put into words without torch."""

from atoll.schema.argument import REQUIRED, Argument
from atoll.schema.argument_json import from_json, to_json
from atoll.schema.checks import Checks, Entry, Kind, known_name, one_experiment
from atoll.schema.files import override, read, set_at_path
from atoll.schema.messages import closest_name, did_you_mean, mistakes, unknown_option
from atoll.schema.remembered import check_remembered
from atoll.schema.toml import dumps as toml_text
from atoll.schema.toml import inline as inline_toml
from atoll.schema.type_names import bare, marks, short_toml, words

__all__ = [
    "REQUIRED",
    "Argument",
    "Checks",
    "Entry",
    "Kind",
    "bare",
    "check_remembered",
    "closest_name",
    "did_you_mean",
    "from_json",
    "inline_toml",
    "known_name",
    "marks",
    "mistakes",
    "one_experiment",
    "override",
    "read",
    "set_at_path",
    "short_toml",
    "to_json",
    "toml_text",
    "unknown_option",
    "words",
]
