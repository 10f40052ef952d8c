"""Does a protocol come to its end, with the same messages each time, and with a word where too many drop out?"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from atoll import rng, tree
from atoll.core import Message, Protocol
from atoll.errors import ConformanceError, ProtocolError
from atoll.protocols import SecureAggregation, Transcript, run_protocol
from atoll.testing.assertions import need, need_same
from atoll.testing.secure_aggregation import SECURE_CHECKS, vector
from atoll.tree import Tree

_CLIENTS, _LONGEST = 5, 100
_KEY = rng.key("protocol")


def check_protocol(protocol: Protocol, own: Callable[[int], Tree] | None = None) -> list[str]:
    """The names of the checks that a protocol passes, or a ConformanceError that says which one it does not.

    A check that a protocol gives nothing to look at (it has no seeds, or does not say that it authenticates) is not
    made, and its name not returned.

    `own(i)` is what client i holds; unless given, an update with two tensors, or a vector for a secure aggregation,
    which is put through more checks.
    """
    if isinstance(protocol, SecureAggregation):
        residues = {3 * i + 1: own(i) if own else vector(protocol, i) for i in range(_CLIENTS)}
        first, *others = SECURE_CHECKS  # what is declared comes before what is done
        named = [check(protocol, residues) for check in (first, *CHECKS, *others)]
        return [name for name in named if name is not None]
    held = {3 * i + 1: (own or _update)(i) for i in range(_CLIENTS)}
    return [check(protocol, held) for check in CHECKS]


def is_pure(protocol: Protocol, held: Mapping[int, Tree]) -> str:
    """The same result and the same messages twice; what clients hold is left alone."""
    before = {id: tree.digest(x) for id, x in held.items()}
    (one, first), (two, second) = (run_protocol(protocol, held, _KEY) for _ in range(2))
    need_same(one, two, "gives the same twice", "a draw without the key")
    touched = [id for id, x in held.items() if tree.digest(x) != before[id]]
    need(not touched, "leaves what clients hold alone", touched, "no change", "an operation in place")
    for a, b in zip(_messages(first), _messages(second), strict=True):
        need(a.kind == b.kind, "sends the same messages twice", b.kind, a.kind, "an order that is not fixed")
        need_same(a.body, b.body, "sends the same messages twice", "a draw without the key")
    return "pure, and keyed"


def messages_can_travel(protocol: Protocol, held: Mapping[int, Tree]) -> str:
    """Every message has a name and a tree of tensors: what a wire format can encode."""
    _, transcript = run_protocol(protocol, held, _KEY)
    steps = len(transcript.up)
    need(0 < steps <= _LONGEST, "comes to its end", f"{steps} steps", f"1 to {_LONGEST}", "a loop without a condition")
    for message in _messages(transcript):
        need(
            bool(message.kind) and isinstance(message.kind, str), "messages are named", message.kind, "text", "no kind"
        )
        wrong = [p for p, x in tree.paths(message.body) if not isinstance(x, torch.Tensor)]
        need(not wrong, f"{message.kind} is a tree of tensors", wrong, "tensors", "a Python number; use torch.tensor")
    return "messages can travel"


def survives_dropouts(protocol: Protocol, held: Mapping[int, Tree]) -> str:
    """Whoever drops out, at whatever step: there is a result, or a ProtocolError that says why."""
    steps = len(run_protocol(protocol, held, _KEY)[1].up)
    for step in range(steps):
        for gone in (list(held)[:1], list(held)[:-1], list(held)):
            _try(protocol, held, step, set(gone))
    return "says so where too many drop out"


def _try(protocol: Protocol, held: Mapping[int, Tree], step: int, gone: set[int]) -> None:
    try:
        run_protocol(protocol, held, _KEY, lambda at, id: at == step and id in gone)
    except ProtocolError as e:
        need("." in str(e), "a ProtocolError says what and why", str(e), "a sentence", "a bare refusal")
    except Exception as e:  # a stranger's protocol may raise anything
        raise ConformanceError(
            f"survives dropouts: {len(gone)} clients gone at step {step + 1} end in {type(e).__name__}: {e}; expected "
            "a result or a ProtocolError. Usual cause: an inbox that is taken to hold everybody."
        ) from e


CHECKS: tuple[Callable[[Protocol, Mapping[int, Tree]], str], ...] = (is_pure, messages_can_travel, survives_dropouts)


def _messages(transcript: Transcript) -> list[Message]:
    return [m for steps in (transcript.down, transcript.up) for step in steps for m in step.values()]


def _update(i: int) -> Tree:
    key = rng.key("update", i)
    return {"w": rng.normal(key, (3, 4)), "b": rng.uniform(key, (4,))}
