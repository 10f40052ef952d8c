"""Who is where, and who may be called without TLS."""

import json

import pytest

from atoll.errors import ConfigError
from atoll.messages import AddressList, WorkerTopology
from atoll.messages.addresses import callers

STAR = WorkerTopology.star("server", ["client-0", "client-1"])


def test_a_list_is_read_from_toml_and_json(tmp_path) -> None:
    (tmp_path / "a.toml").write_text('[workers]\nserver = "127.0.0.1:7000"\nclient-0 = "[::1]:7001"\n')
    (tmp_path / "a.json").write_text(json.dumps({"workers": {"server": "127.0.0.1:7000", "client-0": "[::1]:7001"}}))
    for name in ("a.toml", "a.json"):
        addresses = AddressList.read(tmp_path / name)
        assert addresses.places == {"server": ("127.0.0.1", 7000), "client-0": ("::1", 7001)}
        addresses.check(STAR, encrypted=False)


def test_the_later_calls_the_earlier() -> None:
    assert callers(STAR, "server") == ("client-0", "client-1")
    assert callers(STAR, "client-1") == ()
    ring = WorkerTopology.ring(["a", "b", "c"])
    assert [callers(ring, name) for name in ring.names] == [("b", "c"), ("c",), ()]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ([], "is no table"),
        ({"worker": {}}, "'worker' is not known. Did you mean 'workers'"),
        ({"workers": ["server"]}, "'workers' is a table of addresses"),
        ({"workers": {"server": "127.0.0.1:7000"}, "insecure": 1}, "'insecure' is true or false"),
        ({"workers": {"server": "127.0.0.1"}}, "'127.0.0.1' is no address"),
        ({"workers": {"server": "127.0.0.1:0"}}, "is no address"),
        ({"workers": {"server": "127.0.0.1:70000"}}, "is no address"),
        ({"workers": {"server": 7000}}, "7000 is no address"),
        ({"workers": {}}, "server has none, and client-0 must call it"),
        ({"workers": {"servr": "127.0.0.1:7000"}}, "no worker 'servr'. Did you mean 'server'"),
        ({"workers": {"server": "10.0.0.1:7000"}}, "beyond this machine, and there is no TLS"),
        ({"workers": {"server": "example.org:7000"}}, "insecure = true where the network itself is trusted"),
    ],
)
def test_lists_that_cannot_be_used_are_refused(table, words) -> None:
    with pytest.raises(ConfigError, match=words):
        AddressList.parse(table).check(STAR, encrypted=False)


def test_other_machines_need_tls_or_a_word_that_none_is_needed() -> None:
    table = {"workers": {"server": "10.0.0.1:7000"}}
    AddressList.parse(table).check(STAR, encrypted=True)
    AddressList.parse({**table, "insecure": True}).check(STAR, encrypted=False)


def test_files_that_are_not_there_or_no_toml_are_named(tmp_path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        AddressList.read(tmp_path / "none.toml")
    (tmp_path / "a.toml").write_text("workers = [")
    with pytest.raises(ConfigError, match="is no TOML"):
        AddressList.read(tmp_path / "a.toml")
