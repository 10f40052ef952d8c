"""More rounds for a run than it was begun with: the same bits as if they had been asked for at first, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from atoll.core import resolve, transform_name
from atoll.errors import RecordError
from atoll.experiment import Experiment, Setup
from atoll.records import FINISHED, INTERRUPTED, Info, RunFolder


def differs_in_rounds(info: Info, experiment: Experiment) -> bool:
    """Is this the run's own experiment, but for the number of rounds?"""
    there, yours = ({k: v for k, v in e.items() if k != "rounds"} for e in (info["experiment"], experiment.complete()))
    return there == yours


def extended(folder: RunFolder, info: Info, experiment: Experiment) -> Info:
    """What run.json says once the run has these rounds. `extended` lists how many it had."""
    before, made = info["experiment"]["rounds"], len(folder.record())
    if experiment.rounds < made:
        raise RecordError(
            f"{folder.path}: has made {made} rounds already, and you ask for {experiment.rounds}. "
            "Ask for more, or name another folder."
        )
    if made and not folder.has_checkpoint():
        raise RecordError(
            f"{folder.path}: its checkpoint is gone, so there is nothing to go on from. Start again in a new folder."
        )
    status = INTERRUPTED if info["status"] == FINISHED and experiment.rounds > made else info["status"]
    asked = {"experiment": experiment.complete(), "digest": experiment.digest(), "status": status}
    return {**info, **asked, "extended": [*info.get("extended", []), before]}


def check_extension(setup: Setup, folder: RunFolder, before: int) -> None:
    """Refuse where the rounds so far would have been others, had more been asked for."""
    why = next(_what_depends_on_rounds(setup, before), None)
    if why is not None:
        raise RecordError(
            f"{folder.path}: was begun with rounds = {before}, and cannot have {setup.experiment.rounds}: {why}. "
            "Start again in a new folder."
        )


def _what_depends_on_rounds(setup: Setup, before: int) -> Iterator[str]:
    request, local = setup.privacy.request, setup.experiment.local.privacy
    if request is not None and request.target is not None:
        yield f"the noise was chosen for epsilon {request.target[0]:g} after {before} rounds"
    if local is not None and local.epsilon is not None:
        yield f"the noise was chosen for epsilon {local.epsilon:g} after {before} rounds (local.privacy.epsilon)"
    yield from _transforms_for(setup, before)
    for schedule in setup.schedules():
        if schedule.horizon() == before:
            yield f"the {type(schedule).__name__.lower()} schedule ends with round {before}"
    reads = setup.experiment.stop is not None or any(schedule.metrics() for schedule in setup.schedules())
    if reads and before % setup.experiment.evaluate.every:
        yield f"round {before} was measured because it was the last, and a metric decides what comes after it"


def _transforms_for(setup: Setup, before: int) -> Iterator[str]:
    """Those that are made for a number of rounds, such as noise that is correlated over them."""
    chain, spec = resolve(setup.chain, 0, []), setup.spec()
    now, then = chain.bind(spec)[0], chain.bind(replace(spec, rounds=before))[0]
    for transform, other in zip(now.transforms, then.transforms, strict=True):
        if transform != other:
            yield f"{transform_name(transform)} was made for {before} rounds"
