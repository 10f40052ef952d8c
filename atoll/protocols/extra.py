"""Packages of the extra `secure`: imported when they are first needed."""

from __future__ import annotations

import importlib
from typing import Any

from atoll.errors import ConfigError


def extra(module: str, needed_by: str) -> Any:
    """A module of an optional package, or a ConfigError that says how to get it.

    >>> extra("no_such_package.keys", "secure.protocol: 'paillier'")
    Traceback (most recent call last):
    atoll.errors.ConfigError: secure.protocol: 'paillier' needs no_such_package. Run `pip install 'atoll[secure]'`.
    """
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise ConfigError(f"{needed_by} needs {module.split('.')[0]}. Run `pip install 'atoll[secure]'`.") from e
