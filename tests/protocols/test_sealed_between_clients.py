"""What one client tells another passes through the server, which must not be able to read it."""

from collections.abc import Iterable, Mapping

import pytest

from atoll import tree
from atoll.core import Message
from atoll.protocols import AdditiveSharing, LightSecAgg, SecAgg, SecAggPlus, SecureAggregation, run_protocol
from atoll.protocols.mailbox import Mailbox
from tests.support.secure import KEY, vectors

PROTOCOLS = [SecAgg(), SecAggPlus(), LightSecAgg(), AdditiveSharing(splits=6), AdditiveSharing(splits=6, compact=True)]
PIECE = 20  # bytes that nobody meets by chance


def travelled(steps: Iterable[Mapping[int, Message]]) -> bytes:
    """All bytes of all messages."""
    messages = [message for step in steps for message in step.values()]
    return b"|".join(x.contiguous().numpy().tobytes() for m in messages for _, x in tree.paths(m.body))


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: type(protocol).__name__)
def test_no_message_holds_a_text_for_another_client(
    protocol: SecureAggregation, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, sealed = list[bytes](), Mailbox.sealed

    def noted(self: Mailbox, kind: str, own: Mapping[int, bytes]) -> Message:
        texts.extend(own.values())
        return sealed(self, kind, own)

    monkeypatch.setattr(Mailbox, "sealed", noted)
    _, transcript = run_protocol(protocol, vectors(protocol, 6), KEY)
    seen = travelled([*transcript.down, *transcript.up[:-1]])  # the last answers reveal some, as they should
    assert len(texts) == 6 * 5
    assert not [t for t in texts if t[:PIECE] in seen or t[-PIECE:] in seen]


@pytest.mark.parametrize("protocol", PROTOCOLS[:2], ids=lambda protocol: type(protocol).__name__)
def test_a_share_is_read_by_the_server_when_its_holder_reveals_it_and_not_before(protocol: SecureAggregation) -> None:
    _, transcript = run_protocol(protocol, vectors(protocol, 6), KEY, lambda step, id: step == 2 and id == 9)
    answers = [m.body for m in transcript.up[-1].values()]
    shares = [row.numpy().tobytes() for body in answers for name in ("seeds", "keys") for row in body[name]]
    before = travelled([*transcript.down, *transcript.up[:-1]])
    assert len(shares) == 5 * 6
    assert not [share for share in shares if share in before]
