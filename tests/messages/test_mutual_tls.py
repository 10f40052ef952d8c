"""TLS on both sides: the certificate's name is the worker's, or there is no connection."""

import datetime
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from atoll.errors import ConfigError, ProtocolError
from atoll.messages import AddressList, MutualTls, WorkerTopology
from tests.support.message_workers import Adder, Answerer, adder_or_answerer
from tests.support.worker_threads import QUICK, WorkerThreads

x509 = pytest.importorskip("cryptography.x509")
from cryptography.hazmat.primitives import hashes, serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402
from cryptography.x509.oid import NameOID  # noqa: E402

PAIR = WorkerTopology.star("server", ["client-0"])


class Authority:
    """Signs certificates that are good for an hour."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder, self.name = folder, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.path = folder / f"{name}.pem"
        basic = x509.BasicConstraints(ca=True, path_length=None)
        own = self._builder(self.name, self.key.public_key()).add_extension(basic, critical=True)
        self.path.write_bytes(own.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject, public):
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(hours=1))
        )

    def signed(self, worker: str, trusted: Path | None = None) -> MutualTls:
        """A certificate and a key for a worker, who trusts this authority unless said otherwise."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "anything")])
        names = x509.SubjectAlternativeName([x509.DNSName(worker)])
        signed = self._builder(subject, key.public_key()).add_extension(names, critical=False)
        certificate, private = (self.folder / f"{self.path.stem}-{worker}.{kind}" for kind in ("pem", "key"))
        certificate.write_bytes(signed.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        private.write_bytes(key.private_bytes(*plain))
        return MutualTls(certificate, private, trusted or self.path)


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def pair() -> Iterator[WorkerThreads]:
    threads = WorkerThreads(PAIR, replace(QUICK, joining=1.0))
    yield threads
    threads.close()


def test_with_their_own_certificates_workers_talk(authority: Authority, pair: WorkerThreads) -> None:
    done = pair.run(adder_or_answerer, {name: authority.signed(name) for name in PAIR.names})
    assert int(done["server"].results["server"]["sums"]["client-0"]) == 6


def lost(pair: WorkerThreads, server: MutualTls | None, client: MutualTls | None) -> tuple[str, str]:
    """Why each side gives the other up."""
    waiting = pair.start("server", Adder(), tls=server)
    with pytest.raises(ProtocolError) as caught:
        pair.start("client-0", Answerer(), tls=client).result(20)
    return waiting.result(20).gone["client-0"], str(caught.value)


def test_a_client_with_the_certificate_of_another_is_not_let_in(authority: Authority, pair: WorkerThreads) -> None:
    server, client = lost(pair, authority.signed("server"), authority.signed("client-1"))
    assert "refused: the certificate is of another worker" in client
    assert "no connection" in server
    assert "the certificate is of client-1, not of client-0" in server


def test_a_server_with_the_certificate_of_another_is_not_talked_to(authority: Authority, pair: WorkerThreads) -> None:
    _, client = lost(pair, authority.signed("client-0"), authority.signed("client-0"))
    assert "refused: the certificate is of another worker" in client


def test_certificates_of_another_authority_are_not_taken(authority: Authority, pair: WorkerThreads, tmp_path) -> None:
    other = Authority(tmp_path, "other")
    server, client = lost(pair, authority.signed("server"), other.signed("client-0", authority.path))
    assert "no connection" in server
    assert "TLS" in client or "no connection" in client


def test_a_server_of_another_authority_is_not_talked_to(authority: Authority, pair: WorkerThreads, tmp_path) -> None:
    other = Authority(tmp_path, "other")
    _, client = lost(pair, other.signed("server", authority.path), authority.signed("client-0"))
    assert "TLS: CERTIFICATE_VERIFY_FAILED" in client


@pytest.mark.parametrize("encrypted", ["server", "client-0"])
def test_one_side_without_tls_is_not_let_in(encrypted: str, authority: Authority, pair: WorkerThreads) -> None:
    tls = {encrypted: authority.signed(encrypted)}
    server, _ = lost(pair, tls.get("server"), tls.get("client-0"))
    assert "no connection" in server


def test_files_that_are_no_certificates_are_named(tmp_path) -> None:
    (tmp_path / "a.pem").write_text("nothing")
    with pytest.raises(ConfigError, match="cannot be used"):
        MutualTls(tmp_path / "a.pem", tmp_path / "a.pem", tmp_path / "a.pem").calling()


def test_with_tls_other_machines_may_be_called(authority: Authority) -> None:
    AddressList({"server": ("10.0.0.1", 7000)}).check(PAIR, encrypted=True)
