"""Where a run is written, whether it may be, and what it says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from atoll import tree
from atoll.data import ModelInputs, label_counts
from atoll.engines import Choice
from atoll.engines.ranks import ALONE, World
from atoll.errors import BusyError, RankError, RecordError
from atoll.experiment import Device, Experiment, Setup, security_of, short_toml
from atoll.records import INTERRUPTED, RUNNING, Info, RunFolder, ended, failed, find
from atoll.runs.callbacks import Callback
from atoll.runs.drivers import Asking, drive
from atoll.runs.environment import code, hardware, versions
from atoll.runs.extension import check_extension, differs_in_rounds, extended
from atoll.runs.files_read import files_read, graph_digest
from atoll.runs.interrupts import unhurried
from atoll.runs.profiling import Profile
from atoll.runs.python_inputs import MODULE
from atoll.runs.run_loop import RunLoop

_CELLS = 10_000  # clients times classes, in run.json


def claim(folder: RunFolder, experiment: Experiment, resume: bool) -> Info | None:
    """The run that is to be resumed here, if it is this experiment's; None for a new one."""
    if not folder.exists():
        folder.vacant()
        return None
    if not resume:
        raise RecordError(f"{folder.path}: holds a run already. Go on with it (--resume), or name another folder.")
    info = folder.info
    if info["digest"] == experiment.digest():
        return info
    if not differs_in_rounds(info, experiment):
        raise RecordError(
            f"{folder.path}: holds another experiment ({_unlike(info['experiment'], experiment.complete())}). "
            "Resume it with the file it was started from, or name another folder."
        )
    return extended(folder, info, experiment)


def _unlike(there: Any, yours: Any, at: str = "") -> str:
    """The first settings that differ, and how many more."""
    differences = list(_differences(there, yours, at))
    listed = [f"{key}: {short_toml(old)}, yours {short_toml(new)}" for key, old, new in differences[:3]]
    more = [f"{len(differences) - 3} more"] if len(differences) > 3 else []
    return "; ".join([*listed, *more]) or "its digest is another"


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
    if asked.partition(":")[0] == was:  # perhaps another GPU of the same machine
        return asked
    if asked != "auto":
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
        there = [p for p in tried if RunFolder(p).exists()] or _with_other_rounds(first, experiment)
        if not there:
            raise RecordError(f"{first}: there is no run to resume. Leave --resume out to start one.")
        open_ones = [p for p in there if not ended(RunFolder(p).info)]
        return (open_ones or there)[-1]
    return next(p for p in tried if not p.exists())


def _with_other_rounds(first: Path, experiment: Experiment) -> list[Path]:
    """The runs of this experiment that were begun with another number of rounds, the newest last."""
    runs = [RunFolder(p) for p in first.parent.glob(f"{first.name[:-8]}*") if RunFolder(p).exists()]
    runs.sort(key=lambda run: str(run.info.get("started")))
    return [run.path for run in runs if differs_in_rounds(run.info, experiment)]


def run_all(
    setup: Setup, folder: RunFolder, info: Info | None, callback: Callback, world: World = ALONE, profile: bool = False
) -> None:
    """All rounds that are left. The program's own random numbers are as they were when it is done."""
    with torch.random.fork_rng(devices=[setup.device] if setup.device.type == "cuda" else []):
        choice = resumed_choice(info, folder, setup, world)
        looked_at = Profile(folder, setup.device) if profile and world.rank == 0 else None
        loop = RunLoop(setup, folder, choice, world=world, around=None if looked_at is None else looked_at.round)
        drive(conduct(loop, info, callback), loop.engine)


def conduct(loop: RunLoop, info: Info | None, callback: Callback) -> Asking[None]:
    """All rounds that are left to a run, and what its folder says of them."""
    world, folder = loop.world, loop.folder
    world.check_same("data", loop.setup.dataset.digest())
    world.check_same("partition", loop.setup.partition.digest())
    world.on_rank_zero(lambda: folder.create(_needed_bytes(loop)))
    with ExitStack() as held:
        world.on_rank_zero(lambda: held.enter_context(folder.held()))
        world.on_rank_zero(lambda: _check_still_vacant(folder, info))
        yield from _advance(loop, info, callback)


def _check_still_vacant(folder: RunFolder, info: Info | None) -> None:
    """It was looked at before it was held: another process may have begun a run in between."""
    if info is None and folder.exists():
        raise BusyError(f"{folder.path}: another process has begun a run here. Go on with it (--resume).")


def _advance(loop: RunLoop, info: Info | None, callback: Callback) -> Asking[None]:
    world = loop.world
    if info is None:
        measured = loop.begin()
        info = world.on_rank_zero(lambda: about(loop))
    else:
        was = info
        world.on_rank_zero(lambda: _check_resumable(loop, was))
        measured = loop.resume()
        info = {**info, "versions": _also(info.get("versions", {}))}
    info = {**info, "ranks": _ranks(world)} if world.size > 1 else {k: v for k, v in info.items() if k != "ranks"}
    write = _Status(loop, info)
    world.on_rank_zero(lambda: write(RUNNING))  # first of all files: without it the folder would hold a stranger's
    world.on_rank_zero(lambda: loop.folder.write_preprocessing(ModelInputs.of(loop.setup.dataset).as_json()))
    if measured:  # whoever is killed before the next checkpoint goes on with the same machine, not with another watch
        loop.checkpoint()
    loop.checkpointed = write.at_checkpoint
    try:
        world.on_rank_zero(lambda: callback.on_start(loop.live))
        status = yield from loop.rounds(callback)
    except BaseException as e:
        if isinstance(e, RankError):
            unhurried()
        if world.rank == 0:
            _end(loop, callback, write, INTERRUPTED if isinstance(e, KeyboardInterrupt) else failed(type(e).__name__))
        raise
    world.on_rank_zero(lambda: _end(loop, callback, write, status))


def _end(loop: RunLoop, callback: Callback, write: _Status, status: str) -> None:
    try:
        with suppress(RecordError) if status == INTERRUPTED or status.startswith("failed") else nullcontext():
            write(status)  # a full disk must not hide the reason
    finally:
        callback.on_end(loop.live, status)


class _Status:
    """Writes run.json: what is known of the run, what its engine found out on the way, and what listeners heard."""

    def __init__(self, loop: RunLoop, info: Info) -> None:
        self.loop, self.info, self.known = loop, info, len(loop.engine.notes)
        self.best: Info = {}

    def __call__(self, status: str, quick: bool = False) -> None:
        engine = self.info["engine"]
        reason = "; ".join([engine["reason"], *self.loop.engine.notes[self.known :]])
        heard = {x.key: x.summary(self.loop.state.round, quick) for x in self.loop.listeners}
        self.best = self.loop.state.best.summary()
        info = {**self.info, "engine": {**engine, "reason": reason}, **self.best, **heard, "status": status}
        self.loop.folder.write_info(info)

    def at_checkpoint(self) -> None:
        """Whoever is killed says what had been heard by the checkpoint, and what best.pt is."""
        if self.loop.listeners or self.best != self.loop.state.best.summary():
            self(RUNNING, quick=True)


def _also(versions: Info) -> Info:
    """The versions of a run that is resumed, with today's code where that is another one."""
    before = versions.get("code", "unknown").split(", ")
    return {**versions, "code": ", ".join(dict.fromkeys([*before, code()]))}


def _ranks(world: World) -> Info:
    """How many processes, and how they talked."""
    return {"count": world.size, "here": world.local_size, "backend": world.backend, "threads": torch.get_num_threads()}


def about(loop: RunLoop) -> Info:
    """What run.json says, but for the status."""
    setup, experiment, engine = loop.setup, loop.experiment, loop.own
    traits, topology = setup.algorithm.traits(), setup.round.traits()
    sizes, names = setup.training.sizes.double(), setup.training.client_names
    asked = {"memory_gb": loop.place.choice.memory_gb, "spill": loop.place.choice.spill}
    choice = {**engine.choice(), **{k: v for k, v in asked.items() if v is not None}}
    reason = "; ".join(engine.notes)
    return {
        "atoll": versions()["atoll"],
        "label": experiment.label or str(experiment.algorithm["name"]),
        "experiment": experiment.complete(),
        "digest": experiment.digest(),
        "seed": experiment.seed,
        "data": _data(setup),
        "partition": {
            "digest": setup.partition.digest(),
            "split": setup.training.digest(),
            "clients": setup.training.size,
            "examples": int(sizes.sum()),
            "sizes": {"min": int(sizes.min()), "median": float(sizes.median()), "max": int(sizes.max())},
            **({"names": list(names)} if 0 < len(names) <= _CELLS else {}),
        },
        "label_counts": _label_counts(setup),
        "model": {
            "name": _model_name(experiment) or type(setup.task.original).__name__,
            "parameters": tree.count(setup.model["params"]),
            "initial": tree.digest(setup.model),
            **_frozen(setup),
        },
        "engine": {"name": engine.name, "reason": reason, "choice": choice, "together": loop.together},
        "metric": setup.metric,
        "better": {name: metric.better for name, metric in setup.metrics.items()},
        "personal": traits.personal or traits.partial or topology.partial,
        "security": security_of(setup).written(),
        **({} if setup.attack is None else {"attack": setup.attack.written()}),
        **setup.round.facts(setup.population.size),
        **({"files": files} if (files := files_read(experiment)) else {}),
        "notes": setup.notes,
        "versions": versions(),
        "hardware": hardware(setup.device),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _model_name(experiment: Experiment) -> str | None:
    """What a person calls it: a module that Python handed over goes by its class."""
    entry = experiment.task.model or {}
    return entry.get("kind") if entry.get("name") == MODULE else entry.get("name")


def _frozen(setup: Setup) -> Info:
    """What nobody learns, where there is any: a resumed run must find it as it was."""
    base = setup.task.base()
    return {"frozen": tree.count(base), "base": tree.digest(base)} if base else {}


def _data(setup: Setup) -> Info:
    """Which examples these are: a file of the same name may hold others tomorrow."""
    test = setup.dataset.test
    return {
        "digest": setup.dataset.digest(),
        "train": setup.dataset.examples,
        "test": 0 if test is None else len(test["y"]),
    }


def _check_resumable(loop: RunLoop, info: Info) -> None:
    _check_same_examples(loop, info)
    for before in info.get("extended", []):
        check_extension(loop.setup, loop.folder, before)


def _check_same_examples(loop: RunLoop, info: Info) -> None:
    """Refuse to go on with other data, or with the same at other clients. Older runs do not say what they had."""
    for what, was, now in (
        ("data", _marks(info, "data", "digest"), loop.setup.dataset.digest()),
        ("clients' shares of the data", _marks(info, "partition", "digest"), loop.setup.partition.digest()),
        ("examples held out", _marks(info, "partition", "split"), loop.setup.training.digest()),
        ("frozen weights", _marks(info, "model", "base"), _frozen(loop.setup).get("base", "")),
        ("graph and its weights", _marks(info, "topology", "digest"), graph_digest(loop.setup)),
        *((f"contents of {k}", _marks(info, "files", k), now) for k, now in files_read(loop.experiment).items()),
    ):
        if was and was != now:
            raise RecordError(
                f"{loop.folder.path}: the {what} are not those that this run began with (digest {was[:8]}..., now "
                f"{now[:8]}...). Put them back as they were, or start again in a new folder."
            )


def _marks(info: Info, *path: str) -> str:
    return str(find(info, *path) or "")


def _label_counts(setup: Setup) -> list[list[int]] | None:
    """How many examples of each class each client holds, where that is a table one can look at."""
    labels = setup.dataset.labels
    if labels is None or setup.partition.size * setup.dataset.outputs > _CELLS:
        return None
    counts: list[list[int]] = label_counts(setup.partition, labels).tolist()
    return counts


def resumed_choice(
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


def _needed_bytes(loop: RunLoop) -> int:
    """Two checkpoints (the old and the new), models, the record, and the clients' state if it is a file here."""
    clients, rounds = loop.setup.population.size, loop.experiment.rounds
    cohort = max(1, len(loop.plan.sample(0)[0]))
    client_bytes = min(clients, rounds * cohort) * loop.state.layout.width
    here = loop.place.spills and loop.place.spill_folder == loop.folder.path
    lines = rounds * (2_000 + 8 * cohort)
    learned, base = tree.nbytes(loop.setup.model), tree.nbytes(loop.setup.task.base())
    models = 3 * learned + 2 * base  # the last, the best, and the best in a checkpoint, which has no base
    return 2 * (tree.nbytes(loop.state.round) + client_bytes) + here * client_bytes + models + lines
