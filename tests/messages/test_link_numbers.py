"""Every message once and in order, however often the connection breaks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import ProtocolError
from atoll.messages.link_numbers import LinkNumbers, SeenNumbers


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.booleans()), max_size=12))
def test_a_link_that_breaks_hands_every_message_over_once_and_in_order(connections) -> None:
    """On each connection some are posted, some of what is sent arrives, and perhaps an acknowledgement."""
    sender, receiver, taken = LinkNumbers(), LinkNumbers(), []
    for posted, arrives, acknowledged in [*connections, (0, 1 << 30, True)]:
        for _ in range(posted):
            sender.keep(sender.sent + 1, b"%d" % (sender.sent + 1))
        on_the_way = sender.after(receiver.received if acknowledged else 0)
        for number, frame in on_the_way[:arrives]:
            if receiver.take(number):
                taken.append(int(frame))
        if acknowledged:
            sender.acknowledge(receiver.received)
    assert taken == list(range(1, sender.sent + 1))
    assert not sender.kept


def test_numbers_that_nobody_sent_are_refused() -> None:
    link = LinkNumbers()
    with pytest.raises(ProtocolError, match="message 2 came where 1 was due"):
        link.take(2)
    with pytest.raises(ProtocolError, match="message 1 is acknowledged, and only 0 were sent"):
        link.acknowledge(1)


@given(st.lists(st.integers(1, 12)))
def test_numbers_in_any_order_are_new_once(numbers: list[int]) -> None:
    seen = SeenNumbers()
    new = [number for number in numbers if seen.add(number)]
    assert sorted(new) == sorted(set(numbers))
    assert all(number > seen.all_up_to for number in seen.beyond)
