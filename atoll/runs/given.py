"""Names for what a Python program hands over itself, so that its record says so instead of pretending to be a file."""

from typing import NoReturn

from atoll.errors import ConfigError


def arrays(digest: str) -> NoReturn:
    """Arrays given from Python."""
    raise _only_from_python("data")


def clients(digest: str) -> NoReturn:
    """Lists of rows given from Python."""
    raise _only_from_python("partition")


def module(kind: str) -> NoReturn:
    """A module given from Python."""
    raise _only_from_python("task.model")


def _only_from_python(where: str) -> ConfigError:
    return ConfigError(f"{where}.name: was given from Python, so a file cannot rebuild it. Use atoll.simulate again.")
