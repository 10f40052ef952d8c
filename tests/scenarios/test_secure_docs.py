"""The table of who learns what is what the protocols say."""

import pytest

from atoll.protocols import PROTOCOLS
from tests.support.paths import ROOT


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_threat_model_in_the_docs_is_what_the_protocol_says(name: str) -> None:
    protocol = PROTOCOLS[name]()
    said = protocol.security(20)
    learns = [f"{text[:1].lower()}{text[1:].rstrip('.')}" for text in (said.server_learns, said.clients_learn)]
    row = f"| `{name}` | {said.level} | {protocol.least(20)} | {learns[0]} | {learns[1]} | {said.assumes} |"
    assert row in (ROOT / "docs" / "secure-aggregation.md").read_text().splitlines()
