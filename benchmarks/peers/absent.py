"""Stand-ins for packages that a peer imports at its top and that the workloads never call.

torchvision's published builds for Linux load only beside a torch built for the same GPU libraries. Where the real
package loads, it is used.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Module(ModuleType):
    """A module in which every name is an empty class."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = type(name, (), {"__module__": self.__name__})
        setattr(self, name, found)
        return found


class _Finder(MetaPathFinder, Loader):
    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        ours = name == self.package or name.startswith(self.package + ".")
        return ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def stand_in(package: str) -> bool:
    """Let `import package` succeed; true if a stand-in was needed."""
    try:
        importlib.import_module(package)
    except (ImportError, RuntimeError):
        for name in [m for m in sys.modules if m == package or m.startswith(package + ".")]:
            del sys.modules[name]
        sys.meta_path.insert(0, _Finder(package))
        return True
    return False
