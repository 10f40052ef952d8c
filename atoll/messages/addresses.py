"""Who is where: the list that all hosts of a run have in common, from a TOML or JSON file.

insecure = false                     # true: say aloud that anybody may listen and speak
[workers]
server = "10.0.0.1:7000"
client-0 = "10.0.0.2:7000"           # may be left out where nobody calls it: the later of two calls the earlier
"""

from __future__ import annotations

import ipaddress
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from atoll.errors import ConfigError
from atoll.messages.worker_topology import WorkerTopology
from atoll.schema import did_you_mean

Address: TypeAlias = tuple[str, int]
_KEYS = ("insecure", "workers")


@dataclass(frozen=True)
class AddressList:
    """Hosts and ports by worker. Without TLS only this machine's own, unless `insecure`."""

    places: Mapping[str, Address]
    insecure: bool = False

    @classmethod
    def read(cls, path: Path | str) -> AddressList:
        """From a file that ends in .toml or .json."""
        path = Path(path)
        try:
            text = path.read_text("utf-8")
            table = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        except OSError as e:
            raise ConfigError(f"{path}: cannot be read ({e.strerror}). Name the list of addresses.") from e
        except ValueError as e:
            raise ConfigError(f"{path}: is no {'JSON' if path.suffix == '.json' else 'TOML'} ({e}).") from e
        return cls.parse(table, str(path))

    @classmethod
    def parse(cls, table: Any, where: str = "addresses") -> AddressList:
        """From what a file says."""
        if not isinstance(table, dict):
            raise ConfigError(f"{where}: is no table. Give 'workers', a table of addresses by name.")
        unknown = [key for key in table if key not in _KEYS]
        if unknown:
            raise ConfigError(f"{where}: {unknown[0]!r} is not known.{did_you_mean(unknown[0], _KEYS)}")
        workers, insecure = table.get("workers"), table.get("insecure", False)
        if not isinstance(workers, dict) or not isinstance(insecure, bool):
            raise ConfigError(f"{where}: 'workers' is a table of addresses by name, and 'insecure' is true or false.")
        return cls({name: _address(text, f"{where}: {name}") for name, text in workers.items()}, insecure)

    def check(self, topology: WorkerTopology, encrypted: bool) -> None:
        """Refuse a list that does not fit the topology, and one that would show everything to a network."""
        for name in self.places:
            topology.check(name)
        called = [name for name in topology.names if callers(topology, name)]
        missing = [name for name in called if name not in self.places]
        if missing:
            raise ConfigError(
                f"addresses: {missing[0]} has none, and {callers(topology, missing[0])[0]} must call it. Add it."
            )
        open_to_all = [name for name, (host, _) in self.places.items() if not is_loopback(host)]
        if open_to_all and not encrypted and not self.insecure:
            raise ConfigError(
                f"addresses: {open_to_all[0]} is at {self.places[open_to_all[0]][0]}, beyond this machine, and there "
                "is no TLS: whoever can connect could read and say everything. Give certificates "
                "(tls=MutualTls(...)), or say insecure = true where the network itself is trusted."
            )


def callers(topology: WorkerTopology, name: str) -> tuple[str, ...]:
    """The neighbours that call a worker: those behind it in the order of the topology."""
    return tuple(n for n in topology.neighbours(name) if topology.index(n) > topology.index(name))


def is_loopback(host: str) -> bool:
    """
    Does it stay on this machine?

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("10.0.0.1")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _address(text: Any, where: str) -> Address:
    host, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"{where}: {text!r} is no address. Write 'host:port', such as '127.0.0.1:7000'.")
    return host.strip("[]"), int(port)
