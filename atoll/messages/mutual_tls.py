"""TLS between workers: both sides show a certificate of one authority, whose name must be the worker's."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.errors import ConfigError, ProtocolError


@dataclass(frozen=True)
class MutualTls:
    """Files in PEM: this worker's certificate, its key, and the authority that signed everybody's."""

    certificate: Path | str
    key: Path | str
    authority: Path | str

    def listening(self) -> ssl.SSLContext:
        """For those who call: they must show a certificate."""
        return self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def calling(self) -> ssl.SSLContext:
        return self._loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    def _loaded(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the name is the worker's, wherever it is: `check_certificate`
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(self.certificate, self.key)
            context.load_verify_locations(self.authority)
        except (OSError, ssl.SSLError) as e:
            raise ConfigError(
                f"tls: {self.certificate}, {self.key}, {self.authority}: cannot be used ({e}). They are the worker's "
                "certificate, its key and the authority's certificate, in PEM."
            ) from e
        return context


def check_certificate(certificate: Any, name: str) -> None:
    """Refuse one that is not this worker's; `certificate` as `SSLSocket.getpeercert` has it."""
    names = [value for kind, value in (certificate or {}).get("subjectAltName", ()) if kind == "DNS"]
    if name not in names:
        raise ProtocolError(
            f"the certificate is of {', '.join(names) or 'nobody'}, not of {name}. Its subjectAltName must be "
            f"DNS:{name}."
        )
