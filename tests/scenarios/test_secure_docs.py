"""The table of who learns what is what the protocols say."""

import pytest

from atoll.experiment import load, set_up
from atoll.protocols import PROTOCOLS
from tests.support.paths import ROOT


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_threat_model_in_the_docs_is_what_the_protocol_says(name: str) -> None:
    protocol = PROTOCOLS[name]()
    said = protocol.security(20)
    learns = [f"{text[:1].lower()}{text[1:].rstrip('.')}" for text in (said.server_learns, said.clients_learn)]
    row = f"| `{name}` | {said.level} | {protocol.least(20)} | {learns[0]} | {learns[1]} | {said.assumes} |"
    assert row in (ROOT / "docs" / "secure-aggregation.md").read_text().splitlines()


def test_the_epsilon_of_the_shuffle_in_the_docs_is_that_of_its_example() -> None:
    setup = set_up(load(ROOT / "examples" / "shuffle.toml"), "cpu")
    account = setup.listeners(lambda number: setup.chain.bind(setup.spec()))[0]
    said = account.forecast()[0]
    assert said.startswith("epsilon 5.2148 at delta 0.0001")
    assert f" privacy  {said}\n" in (ROOT / "docs" / "secure-aggregation.md").read_text()
