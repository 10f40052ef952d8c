"""Runs that advance together: each asks for what it needs, and what they ask for is done as one stack."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from atoll.core import Engine, Evaluate, Pending, Request, Train
from atoll.runs.drivers import Asking


@dataclass(eq=False)
class Lane:
    """One run, the engine that holds its data and client state, and what it asks for now."""

    run: Asking[None]
    engine: Engine
    asked: Request | None = None
    error: BaseException | None = None  # what it ended with, if it failed

    def advance(self, answer: Any = None) -> None:
        """Go on to its next question; None where it has ended. An interrupt is not its own: all must hear of it."""
        try:
            self.asked = next(self.run) if answer is None else self.run.send(Pending.done(answer))
        except StopIteration:
            self.asked = None
        except BaseException as e:
            self.asked, self.error = None, e
            if not isinstance(e, Exception):
                raise

    def fail(self, error: BaseException) -> None:
        """Its question could not be answered: raised where it waits."""
        try:
            self.asked = self.run.throw(error)
        except StopIteration:
            self.asked = None
        except BaseException as e:
            self.asked, self.error = None, e


def lockstep(lanes: Sequence[Lane], leader: Engine) -> None:
    """Answer all runs until all have ended; the leader does what several ask for alike. A run's failure is its own."""
    try:
        for lane in lanes:
            lane.advance()
        while waiting := [lane for lane in lanes if lane.asked is not None]:
            for group in _groups(_behind(waiting)):
                _answer(group, leader)
    except BaseException as e:  # an interrupt, say: every run gets to put its folder in order
        for lane in lanes:
            if lane.asked is not None:
                lane.fail(e)
        raise


def _answer(group: Sequence[Lane], leader: Engine) -> None:
    try:
        answers = _answers(group, leader)
    except Exception as e:  # theirs, to be raised where they wait
        for lane in group:
            lane.fail(e)
        return
    for lane, answer in zip(group, answers, strict=True):
        lane.advance(answer)


def _answers(group: Sequence[Lane], leader: Engine) -> list[Any]:
    asked = [(lane.engine, lane.asked) for lane in group if lane.asked is not None]
    if len(group) == 1 and group[0].engine.signature(asked[0][1]) is None:
        return [asked[0][0].run(asked[0][1])]
    return leader.submit_together(asked)


def _behind(waiting: Sequence[Lane]) -> list[Lane]:
    """Measuring comes first, then second passes, then training: so all meet again for their next round."""
    place = {id(lane): _place(lane.asked) for lane in waiting}
    return [lane for lane in waiting if place[id(lane)] == min(place.values())]


def _place(asked: Request | None) -> int:
    if isinstance(asked, Evaluate):
        return 0
    return 2 if isinstance(asked, Train) and asked.client_state == "update" else 1


def _groups(lanes: Sequence[Lane]) -> list[list[Lane]]:
    """Those whose requests can be done as one; alone, those whose cannot."""
    groups: dict[Hashable, list[Lane]] = {}
    for lane in lanes:
        assert lane.asked is not None
        signature = lane.engine.signature(lane.asked)
        groups.setdefault(id(lane) if signature is None else signature, []).append(lane)
    return list(groups.values())
