"""Changes of messages on their way, for `atoll.testing.interception`."""

from collections.abc import Callable

from atoll.core import Message
from atoll.testing.interception import Change
from atoll.tree import Tree


def at(kind: str, change: Callable[[Tree], Tree], id: int | None = None) -> Change:
    """Changes the bodies of messages of one kind, of one client or of all."""

    def changed(step: int, client: int, message: Message) -> Message:
        hit = message.kind == kind and id in (None, client)
        return Message(kind, change(message.body)) if hit else message

    return changed
