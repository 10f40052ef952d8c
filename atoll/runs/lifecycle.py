"""Where a run is written, whether it may be, and what it says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from atoll import tree
from atoll.data import label_counts
from atoll.engines import Choice, Threads, Vector
from atoll.engines.ranks import ALONE, World, ranked
from atoll.errors import RankError, RecordError
from atoll.experiment import Experiment
from atoll.experiment.setup import Device, Setup
from atoll.experiment.type_names import shown
from atoll.records import INTERRUPTED, RUNNING, Info, RunFolder, ended, failed
from atoll.runs.driver import Driver
from atoll.runs.environment import code, hardware, versions
from atoll.runs.interrupts import unhurried
from atoll.runs.profiling import Profile
from atoll.runs.progress import Watcher

_CELLS = 10_000  # clients times classes, in run.json


def claim(folder: RunFolder, experiment: Experiment, resume: bool) -> Info | None:
    """The run that is to be resumed here, if it is this experiment's; None for a new one."""
    if not folder.exists():
        folder.vacant()
        return None
    if not resume:
        raise RecordError(f"{folder.path}: holds a run already. Go on with it (--resume), or name another folder.")
    info = folder.info
    if info["digest"] != experiment.digest():
        raise RecordError(
            f"{folder.path}: holds another experiment ({_unlike(info['experiment'], experiment.complete())}). "
            "Resume it with the file it was started from, or name another folder."
        )
    return info


def _unlike(there: Any, yours: Any, at: str = "") -> str:
    """The first settings that differ, and how many more."""
    found = list(_differences(there, yours, at))
    told = [f"{key}: {shown(old)}, yours {shown(new)}" for key, old, new in found[:3]]
    more = [f"{len(found) - 3} more"] if len(found) > 3 else []
    return "; ".join([*told, *more]) or "its digest is another"


def _differences(there: Any, yours: Any, at: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(there, dict) and isinstance(yours, dict):
        for key in [*there, *(key for key in yours if key not in there)]:
            yield from _differences(there.get(key), yours.get(key), f"{at}.{key}" if at else key)
    elif there != yours:
        yield at, there, yours


def same_device(info: Info | None, asked: Device) -> Device:
    """Where a resumed run goes on: where it was, since another device rounds otherwise."""
    if info is None:
        return asked
    was: Device = info["hardware"].get("device", asked)
    if asked not in ("auto", was):
        raise RecordError(
            f"device: this run was started on {was!r}, and would not be the same on {asked!r}. "
            "Leave --device out, or start again in a new folder."
        )
    return was


def default_folder(experiment: Experiment, resume: bool) -> Path:
    """runs/<label>-<digest>, or the same with a number; the unfinished one, if it is to be resumed."""
    name = f"{experiment.label or experiment.algorithm['name']}-{experiment.digest()[:8]}"
    first = Path("runs") / name.replace("/", "-").replace(":", "-")
    tried = [first] + [first.with_name(f"{first.name}-{i}") for i in range(2, 1000)]
    if resume:
        there = [p for p in tried if RunFolder(p).exists()]
        if not there:
            raise RecordError(f"{first}: there is no run to resume. Leave --resume out to start one.")
        open_ones = [p for p in there if not ended(RunFolder(p).info)]
        return (open_ones or there)[-1]
    return next(p for p in tried if not p.exists())


def drive(
    setup: Setup, folder: RunFolder, info: Info | None, watch: Watcher, world: World = ALONE, profile: bool = False
) -> None:
    """All rounds that are left. The program's own random numbers are as they were when it is done."""
    with torch.random.fork_rng(devices=[setup.device] if setup.device.type == "cuda" else []):
        choice = kept_choice(info, folder, setup, world)
        driver = Driver(setup, folder, choice, wrap=ranked(world), world=world)
        if profile and world.rank == 0:
            driver.profile = Profile(folder, setup.device)
        conduct(driver, info, watch)


def conduct(driver: Driver, info: Info | None, watch: Watcher) -> None:
    """All rounds that are left to a driver, and what its folder says of them."""
    world, folder = driver.world, driver.folder
    world.same("partition", driver.setup.partition.digest())
    world.first(lambda: folder.create(_needed_bytes(driver)))
    with ExitStack() as held:
        world.first(lambda: held.enter_context(folder.held()))
        _advance(driver, info, watch)


def _advance(driver: Driver, info: Info | None, watch: Watcher) -> None:
    world = driver.world
    if info is None:
        info = world.first(lambda: about(driver))
    else:
        driver.resume()
        info = {**info, "versions": _also(info.get("versions", {}))}
    info = {**info, "ranks": _ranks(world)} if world.size > 1 else {k: v for k, v in info.items() if k != "ranks"}

    before = driver.own.reason

    def write(status: str, quick: bool = False) -> None:
        engine = info["engine"]  # what it found out on the way (too little memory, that compiling pays) is said there
        engine = {**engine, "reason": engine["reason"] + driver.own.reason.removeprefix(before)}
        told = {} if driver.account is None else {"privacy": driver.account.told(quick)}
        driver.folder.write_info({**info, "engine": engine, **told, "status": status})

    world.first(lambda: write(RUNNING))
    if driver.account is not None:  # whoever is killed says what had been spent by the checkpoint
        driver.kept = lambda: write(RUNNING, quick=True)
    try:
        status = driver.run(watch)
    except BaseException as e:
        if isinstance(e, RankError):
            unhurried()
        with suppress(RecordError):  # a full disk must not hide the reason
            if world.rank == 0:
                write(INTERRUPTED if isinstance(e, KeyboardInterrupt) else failed(type(e).__name__))
        raise
    world.first(lambda: write(status))


def _also(versions: Info) -> Info:
    """The versions of a run that is resumed, with today's code where that is another one."""
    before = versions.get("code", "unknown").split(", ")
    return {**versions, "code": ", ".join(dict.fromkeys([*before, code()]))}


def _ranks(world: World) -> Info:
    """How many processes, and how they talked."""
    return {"count": world.size, "here": world.local_size, "backend": world.backend, "threads": torch.get_num_threads()}


def about(driver: Driver) -> Info:
    """What run.json says, but for the status."""
    setup, experiment = driver.setup, driver.experiment
    sizes = setup.training.sizes.double()
    engine = driver.own
    choice: dict[str, Any] = {"name": engine.name}
    if isinstance(engine, Vector):
        choice |= {"chunk": engine.chunk, "capture": engine.capture}
    if isinstance(engine, Threads):
        choice |= {"workers": engine.count()}
    choice |= {k: v for k in ("memory_gb", "spill") if (v := getattr(driver.choice, k)) is not None}
    return {
        "atoll": versions()["atoll"],
        "label": experiment.label or str(experiment.algorithm["name"]),
        "experiment": experiment.complete(),
        "digest": experiment.digest(),
        "seed": experiment.seed,
        "partition": {
            "digest": setup.partition.digest(),
            "clients": setup.training.size,
            "examples": int(sizes.sum()),
            "sizes": {"min": int(sizes.min()), "median": float(sizes.median()), "max": int(sizes.max())},
        },
        "label_counts": _label_counts(setup),
        "model": {
            "name": (experiment.task.model or {}).get("name") or type(setup.task.original).__name__,
            "parameters": tree.count(setup.model["params"]),
        },
        "engine": {"name": engine.name, "reason": engine.reason, "choice": choice, "together": driver.together},
        "notes": setup.notes,
        "versions": versions(),
        "hardware": hardware(setup.device),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _label_counts(setup: Setup) -> list[list[int]] | None:
    """How many examples of each class each client holds, where that is a table one can look at."""
    labels = setup.dataset.labels
    if labels is None or setup.partition.size * setup.dataset.outputs > _CELLS:
        return None
    counts: list[list[int]] = label_counts(setup.partition, labels).tolist()
    return counts


def kept_choice(
    info: Info | None, folder: RunFolder, setup: Setup | None = None, world: World = ALONE
) -> Choice | None:
    """A resumed run goes on with the engine it had; a new one has none yet.

    On another number of ranks each has another part of the machine, so chunks and workers are found anew.
    """
    if info is None:
        return None
    try:
        choice = Choice(**info["engine"]["choice"])
        if setup is None or info.get("ranks", {}).get("count", 1) == world.size:
            return choice
        return replace(setup.choice, name=choice.name, capture=choice.capture)
    except (KeyError, TypeError) as e:
        raise RecordError(f"{folder.path}: its run.json names no engine. Start again in a new folder.") from e


def _needed_bytes(driver: Driver) -> int:
    """Two checkpoints (the old and the new), the model, the record, and the clients' memory if it is a file here."""
    clients, rounds = driver.setup.population.size, driver.experiment.rounds
    cohort = len(driver.agenda.trial().cohort)
    state = tree.nbytes(driver.state.server) + tree.nbytes(driver.state.transforms)
    memory = min(clients, rounds * cohort) * driver.state.memory.layout.width
    here = driver.state.memory.in_file and driver.state.memory.folder == driver.folder.path
    lines = rounds * (2_000 + 8 * cohort)
    return 2 * (state + memory) + here * memory + tree.nbytes(driver.setup.model) + lines
