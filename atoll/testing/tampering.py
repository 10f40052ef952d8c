"""Are messages refused that are malformed, changed, of another round or out of turn? And is nothing readable early?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import Message
from atoll.errors import ConformanceError, ProtocolError
from atoll.protocols import SecureAggregation, Transcript, run_protocol
from atoll.testing.assertions import need
from atoll.testing.interception import Change, Intercepted, unchanged
from atoll.testing.mask_quality import byte_rows
from atoll.tree import Tree

_KEY, _OTHER = rng.key("protocol", "one"), rng.key("protocol", "another")
Places = Iterator[tuple[str, int, int, Message]]  # direction, step, client, message


def refuses_malformed_messages(protocol: SecureAggregation, held: Mapping[int, Tree]) -> str:
    """Another name, a part that is missing, cut, of another type or shape, a number out of range: a ProtocolError."""
    for direction, step, id, message in _places(_transcript(protocol, held), held):
        for how, bad in _malformed(protocol, message, len(held)):
            outcome = _outcome(protocol, held, direction, step, id, bad)
            _need_refused(outcome, f"{message.kind!r} {direction} with {how} is refused", "a field used unchecked")
    return "refuses malformed messages"


def refuses_changed_bytes(protocol: SecureAggregation, held: Mapping[int, Tree]) -> str | None:
    """A byte changed on its way to a client is noticed; on its way to the server, too, or it changes nothing."""
    if not protocol.authenticates:
        return None
    plain = run_protocol(protocol, held, _KEY)[0]
    for direction, step, id, message in _places(_transcript(protocol, held), held):
        for path, x in tree.paths(message.body):
            if x.dtype != torch.uint8 or not x.numel():
                continue
            for at in {0, x.numel() - 1}:
                bad = _with(message, path, _flipped(x, at))
                outcome = _outcome(protocol, held, direction, step, id, bad)
                what = f"a byte of {path!r} in {message.kind!r}, changed on its way {direction}, is refused"
                if direction == "up" and isinstance(outcome, dict) and tree.digest(outcome) == tree.digest(plain):
                    continue  # a share that was not needed
                _need_refused(outcome, what, "ciphertexts or shares without authentication")
    return "refuses changed bytes"


def refuses_replays(protocol: SecureAggregation, held: Mapping[int, Tree]) -> str | None:
    """A message of another round, or of an earlier step of this one, is a ProtocolError."""
    if not protocol.authenticates:
        return None
    here, other = _transcript(protocol, held), _transcript(protocol, held, _OTHER)
    for direction, step, id, message in _places(here, held):
        steps, others = (x.down if direction == "down" else x.up for x in (here, other))
        replays = [("of another round", others[step][id])]
        replays += [("of an earlier step", steps[i][id]) for i in range(step)]
        for name, replay in replays:
            if direction == "down" and step == 0:
                continue  # the first message begins a round: there is nothing yet that it could contradict
            outcome = _outcome(protocol, held, direction, step, id, replay)
            what = f"{replay.kind!r} {name} in place of {message.kind!r} {direction} is refused"
            _need_refused(outcome, what, "a message without its session")
    return "refuses messages of other rounds and steps"


def reveals_nothing_early(protocol: SecureAggregation, held: Mapping[int, Tree]) -> str:
    """What clients reveal in a step could not be read in what they sent before."""
    _, transcript = run_protocol(protocol, held, _KEY, _one_is_lost(protocol, held))
    earlier = b""
    for step in transcript.up:
        rows = list(byte_rows([step]))
        early = sum(row in earlier for row in rows)
        need(early == 0, "nothing can be read before it is revealed", f"{early} secrets", "none", "shares in clear")
        earlier += b"".join(rows)
    return "reveals nothing early"


def _one_is_lost(protocol: SecureAggregation, held: Mapping[int, Tree]) -> Callable[[int, int], bool]:
    """One client before its vector arrives, where the protocol goes on without it."""
    spare = protocol.least(len(held)) < len(held) and protocol.vector_kind in protocol.answers()
    step = protocol.answers().index(protocol.vector_kind) if spare else -1
    return lambda at, id: at == step and id == min(held)


def _transcript(protocol: SecureAggregation, held: Mapping[int, Tree], key: Tensor = _KEY) -> Transcript:
    return run_protocol(protocol, held, key)[1]


def _places(transcript: Transcript, held: Mapping[int, Tree]) -> Places:
    """Every message to and from the first and the last client."""
    for direction, steps in (("down", transcript.down), ("up", transcript.up)):
        for step, messages in enumerate(steps):
            for id in (min(held), max(held)):
                if id in messages:
                    yield direction, step, id, messages[id]


def _outcome(
    protocol: SecureAggregation,
    held: Mapping[int, Tree],
    direction: str,
    step: int,
    id: int,
    replacement: Message,
) -> Tree | Exception:
    """The result of a run in which one message was another, or what it ended with."""

    def one(at: int, of: int, message: Message) -> Message:
        return replacement if (at, of) == (step, id) else message

    changes: tuple[Change, Change] = (one, unchanged) if direction == "down" else (unchanged, one)
    try:
        return run_protocol(Intercepted(protocol, *changes), held, _KEY)[0]
    except Exception as e:  # a stranger's protocol may raise anything
        return e


def _need_refused(outcome: Tree | Exception, what: str, cause: str) -> None:
    if isinstance(outcome, ProtocolError):
        need("." in str(outcome), "a ProtocolError says what and why", str(outcome), "a sentence", "a bare refusal")
        return
    ended = f"{type(outcome).__name__}: {outcome}" if isinstance(outcome, Exception) else "a result"
    error = f"{what}: found {ended}, expected a ProtocolError. Usual cause: {cause}."
    raise ConformanceError(error) from (outcome if isinstance(outcome, Exception) else None)


def _malformed(protocol: SecureAggregation, message: Message, clients: int) -> Iterator[tuple[str, Message]]:
    yield "another name", message._replace(kind="unheard-of")
    for path, x in tree.paths(message.body):
        yield f"no {path!r}", _with(message, path, None)
        yield f"{path!r} of another type", _with(message, path, x.float())
        yield f"{path!r} of another shape", _with(message, path, x[None])
        if x.dim() and len(x):
            yield f"{path!r} cut", _with(message, path, x[:-1])
    masked = protocol.masked(message)
    if masked is not None and len(masked):
        for path, x in tree.paths(message.body):
            if x.shape == masked.shape and x.dtype != torch.uint8:
                for number in (-1, min(protocol.modulus(clients), torch.iinfo(x.dtype).max)):
                    bad = x.clone()
                    bad[-1] = number
                    yield f"{number} in {path!r}", _with(message, path, bad)


def _with(message: Message, path: str, value: Tensor | None) -> Message:
    """The message with another tensor, or without one."""

    def changed(inside: Tree, names: list[str]) -> Tree:
        rest = {k: v for k, v in inside.items() if k != names[0]}
        if len(names) > 1:
            return {**inside, names[0]: changed(inside[names[0]], names[1:])}
        return rest if value is None else {**inside, names[0]: value}

    return message._replace(body=changed(message.body, path.split("/")))


def _flipped(x: Tensor, at: int) -> Tensor:
    flat = x.clone().flatten()
    flat[at] ^= 1
    return flat.reshape(x.shape)
