"""The rounds of a run, from the first to the last, with records, checkpoints and a clean stop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import Event
from typing import Any

import torch

from atoll import rng, tree
from atoll.core import Cohort, Participation, Result
from atoll.core.settings import resolve
from atoll.engines import AnyEngine, Choice, Vector, arithmetic, default_budget
from atoll.engines.ranks import ALONE, Ranked, World
from atoll.errors import DivergenceError, RankError
from atoll.experiment.setup import Setup
from atoll.phases import phase
from atoll.privacy.run.account import Account, planted
from atoll.records import RunFolder
from atoll.rounds import Gossip, NoisySum, Parts, clients_key, nobody
from atoll.runs.checkpoint_schedule import Spacing
from atoll.runs.engine_setup import engine, ground, on_device, one_client, store
from atoll.runs.evaluate import Evaluation, Evaluator, Moment
from atoll.runs.interrupts import deferred_interrupts
from atoll.runs.pace import Pace
from atoll.runs.profiling import Profile
from atoll.runs.progress import Watcher
from atoll.runs.record_line import as_read, line, named
from atoll.runs.round_plan import Agenda
from atoll.runs.state import State
from atoll.runs.stopping import Stopping
from atoll.runs.timing import Clock, Timed
from atoll.tree import Tree


class Driver:
    """Makes a run's rounds: `state` is what they leave, `agenda` what comes. `wrap` goes around the engine."""

    def __init__(
        self,
        setup: Setup,
        folder: RunFolder,
        choice: Choice | None = None,
        *,
        wrap: Callable[[AnyEngine], AnyEngine] | None = None,
        data: tuple[Tree, Tree | None] | None = None,  # training and test columns that are on the device already
        budget: int | None = None,  # bytes for the clients' memory, at most
        world: World = ALONE,
    ) -> None:
        self.setup, self.folder, self.experiment, self.world = setup, folder, setup.experiment, world
        self.columns, self.test = data or on_device(setup)
        self.profile: Profile | None = None
        self.together = 1  # runs that share its seconds, as one stack
        self.kept: Callable[[], None] | None = None  # what rank 0 does after a checkpoint
        first = resolve(setup.algorithm, 0, [])
        server = setup.topology.init(first, setup.model, setup.population.size)
        layers, spec = resolve(setup.chain, 0, []).bind(setup.spec())
        self.like = setup.update_like()
        transforms, kept = layers.init(self.like)
        transforms = tree.to(transforms, setup.device)
        noisy = NoisySum.of(spec, setup.how, layers.zeros(self.like, transforms, kept))
        canaries = planted(setup, self.like)
        self.account = Account.of(setup, layers, canaries)
        rows = {"algorithm": first.memory(setup.model), "chain": kept}
        self.choice = choice = choice or setup.choice
        whole = int(choice.memory_gb * 1e9) if choice.memory_gb else default_budget(setup.device) // world.sharing
        where = Path(choice.spill) if choice.spill else folder.path
        memory = store(setup, rows, min(whole, budget or whole), where, world)
        self.state = State(setup, folder, world, server, transforms, memory, canaries)
        self.agenda = Agenda(setup, self.state, (layers, spec), noisy)
        trial = self.agenda.trial()
        self.client_bytes = one_client(setup, self.columns, trial, rows)
        self.chunk = choice.chunk or max(1, whole // max(1, self.client_bytes))
        self.ground = ground(setup, self.columns)
        self.own = engine(choice, self.ground, self.chunk, trial, world)
        self.engine = self.own if wrap is None else wrap(self.own)
        self.pace = Pace()
        measuring = self.engine if world.size == 1 else self.own
        self.evaluator = Evaluator(setup, measuring, self.columns, self.test, world)
        self.stopping = Stopping(setup.experiment.stop, setup.schedules())

    def run(self, watch: Watcher) -> str:
        """Every round that is left; says why it ended: "finished", "stopped early: ...", or "interrupted"."""
        with deferred_interrupts() as interrupted:
            try:
                return self._rounds(watch, interrupted)
            except RankError as e:
                raise RankError(f"{e} {self.state.salvaged()}") from e

    def _rounds(self, watch: Watcher, interrupted: Event) -> str:
        with Spacing(self.experiment.checkpoint.every) as spacing:
            return self._spaced(watch, interrupted, spacing)

    def _spaced(self, watch: Watcher, interrupted: Event, spacing: Spacing) -> str:
        rounds = self.experiment.rounds
        while (done := len(self.state.history)) < rounds:
            why = self._measured_enough() or self._unaffordable(done)
            if why:
                return self._ended(f"stopped early: {why}")
            self.next_round()
            done += 1
            if self.world.rank == 0:
                watch(done, rounds, self.state.history[-1])
            if self.world.any(interrupted.is_set()) and done < rounds:
                return self._ended("interrupted")
            if done < rounds and spacing.turn(done) and self.world.first(spacing.due):
                spacing.write(self.state.checkpoint)
                if self.kept is not None:
                    self.world.first(self.kept)
        return self._ended("finished")

    def _measured_enough(self) -> str | None:
        why = self.stopping(self.agenda.past)
        if why and self.account is not None:
            self.account.ended_by_a_measure()
        return why

    def _unaffordable(self, number: int) -> str | None:
        if self.account is None:
            return None
        return self.account.affords(self.agenda.layers(number)[0], self.agenda.cohort(number)[0])

    def _ended(self, why: str) -> str:
        self.world.first(lambda: self.folder.save_model(self.state.model()))
        self.state.checkpoint()
        if self.engine is self.own:  # else the seconds are of several runs
            self.pace.confirm(self.choice, self.ground, self.agenda.trial, self.own)
        return why

    def resume(self) -> None:
        """Go back to the last checkpoint, and to what had been spent by then; without one, to the beginning."""
        self.state.resume()
        if self.account is not None:
            self.account.replay(self.state.history, lambda number: self.agenda.layers(number)[0])

    def next_round(self) -> None:
        """One more round: sample, train, apply, measure, record."""
        state = self.state
        before = state.server, state.transforms
        try:
            with arithmetic(self.setup.device, self.setup.choice.precision), self._watched():
                self._next_round(before)
        except RankError:
            state.server, state.transforms = before  # as they were when the last line was written
            raise

    def _watched(self) -> AbstractContextManager[None]:
        if self.profile is None:
            return nullcontext()
        return self.profile.round(len(self.state.history), self.experiment.rounds)

    def _next_round(self, before: tuple[Tree, Tree]) -> None:
        state, number = self.state, len(self.state.history)
        if isinstance(self.own, Vector):
            self.own.left = self.experiment.rounds - number
        clock = Clock()
        timed = Timed(self.engine)
        parts = self.agenda.parts(number, timed, lambda: self._draw_next(number + 1))
        with phase("sampling"):
            how, cohort = self.agenda.cohort(number)
        clock.lap("sample")
        if len(cohort) or parts.private is not None:
            with phase("server"):
                state.server, state.transforms, result = self.setup.topology.run(
                    parts, cohort, state.server, state.transforms, rng.key(self.experiment.seed, "round", number)
                )
        else:
            result = nobody()
        clock.lap("server")
        clock.move("server", "train", timed.seconds)
        if len(cohort):
            self.pace.add(timed.seconds, int(cohort.steps.sum()))
        dropped = self._dropped(number, cohort, result, before)
        with phase("evaluation"):
            found = self._evaluated(number, parts)
        clock.lap("evaluate")
        with phase("record"):
            self._record(number, parts, cohort, how, result, dropped, found, clock)

    def _dropped(self, number: int, cohort: Cohort, result: Result, before: tuple[Tree, Tree]) -> list[int]:
        bad: list[int] = cohort.id[~result.finite.cpu()].tolist()
        if bad and self.experiment.on_divergence == "stop":
            self.state.server, self.state.transforms = before
            if self.account is not None:
                self.account.ended_by_a_client()
            raise DivergenceError(
                f"round {number + 1}: the loss or the update of {named(bad)} is not finite. Lower algorithm.lr or "
                "clip updates, or leave such clients out with on_divergence = 'drop'. "
                f"Last checkpoint: {self.state.last()}."
            )
        return bad

    def _evaluated(self, number: int, parts: Parts) -> Evaluation | None:
        done = number + 1
        if done % self.experiment.evaluate.every and done != self.experiment.rounds:
            return None
        key = rng.key(self.experiment.seed, "round", number, "evaluate")
        try:
            return self.evaluator(Moment(parts.now, parts.settings, self.state.server, self.state.memory, key))
        except DivergenceError as e:
            raise DivergenceError(f"round {done}, measuring: {e} Last checkpoint: {self.state.last()}.") from e

    def _record(
        self,
        number: int,
        parts: Parts,
        cohort: Cohort,
        how: Participation,
        result: Result,
        dropped: list[int],
        found: Evaluation | None,
        clock: Clock,
    ) -> None:
        entry = line(number, parts, cohort, how, result, found)
        if self.account is not None:
            entry["privacy"] = self._spent(number, parts, cohort, how, result, dropped)
        entry["bytes"] = self.traffic(len(cohort))
        if dropped:
            entry["dropped"] = dropped
        entry["model"] = self.state.digest()
        clock.lap("record")
        entry["seconds"] = {**clock.seconds, **self._by_rank()}
        self.state.align(entry)
        each = None if found is None else {"round": number + 1, **found.each}
        self.state.history.append(as_read(self.world.first(lambda: self._written(entry, each))))

    def _spent(
        self, number: int, parts: Parts, cohort: Cohort, how: Participation, result: Result, dropped: list[int]
    ) -> dict[str, Any]:
        assert self.account is not None
        self.account.add(parts.layers, how, len(dropped))
        signal = None if result.signal is None else float(result.signal)
        return self.account.line(self.agenda.layers(number)[1], parts.layers, signal, len(cohort) - len(dropped))

    def _written(self, entry: dict[str, Any], each: dict[str, Any] | None) -> dict[str, Any]:
        if each is not None:
            self.folder.write_clients(each)
        self.folder.append(entry)
        return entry

    def _by_rank(self) -> dict[str, Any]:
        return {"ranks": self.engine.lap()} if isinstance(self.engine, Ranked) else {}

    def traffic(self, clients: int) -> dict[str, int]:
        """Bytes up and down in a round of so many clients."""
        topology = self.setup.topology
        if isinstance(topology, Gossip):
            each = tree.nbytes(self.setup.model) * topology.links(self.setup.population.size)
            return {"up": each, "down": each}
        sent, _ = topology.sent(self.setup.algorithm, self.state.server, torch.zeros(1, dtype=torch.int64))
        up = clients * tree.count(self.like) * self.agenda.spec.bits / 8
        return {"up": round_up(up), "down": clients * tree.nbytes(sent)}

    def _draw_next(self, number: int) -> None:
        if number >= self.experiment.rounds:
            return
        _, cohort = self.agenda.cohort(number)
        if isinstance(self.engine, Vector):
            self.engine.ahead(cohort, clients_key(rng.key(self.experiment.seed, "round", number)))


def round_up(x: float) -> int:
    """Whole bytes."""
    return int(-(-x // 1))
