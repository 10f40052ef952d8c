"""The rounds of a run, from the first to the last, with records, checkpoints and a clean stop.

All of it is a generator of requests: whoever drives it answers (`drivers.py`, `lockstep.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from threading import Event
from typing import Any

from atoll import rng, tree
from atoll.clock import Timeline
from atoll.core import Context, Outcome
from atoll.engines import TOO_LONG, Choice, arithmetic
from atoll.engines.ranks import ALONE, World
from atoll.errors import ConformanceError, DivergenceError, RankError
from atoll.experiment import Setup, fits_in_memory
from atoll.phases import phase
from atoll.records import RunFolder, stopped_early
from atoll.rounds import client_key
from atoll.runs.best import Best
from atoll.runs.callbacks import Callback, LiveRun
from atoll.runs.checkpoint_schedule import CheckpointSchedule, Sharing
from atoll.runs.drivers import Asking, Stopwatch, drive, on_promises
from atoll.runs.engine_setup import on_device, workplace
from atoll.runs.evaluate import Evaluation, Evaluator
from atoll.runs.interrupts import deferred_interrupts
from atoll.runs.listener import Listener
from atoll.runs.record_line import as_read, diagnostics, line, named
from atoll.runs.round_plan import RoundPlan
from atoll.runs.state import State
from atoll.runs.stopping import Stopping
from atoll.runs.throttled import Throttled
from atoll.runs.timing import Laps
from atoll.tree import Tree

Around = Callable[[int, int], AbstractContextManager[None]]  # of a round's number, and of how many there are


class RunLoop:
    """Makes a run's rounds: `plan` is what comes, `state` what is left."""

    @fits_in_memory()
    def __init__(
        self,
        setup: Setup,
        folder: RunFolder,
        choice: Choice | None = None,
        *,
        columns: tuple[Tree, Tree | None] | None = None,  # training and test data that are on the device already
        budget: int | None = None,  # bytes for the clients' state, at most
        world: World = ALONE,
        around: Around | None = None,  # every round; a profiler, say
        sharing: Sharing | None = None,  # runs that go together share the time that checkpoints may take
    ) -> None:
        self.setup, self.folder, self.experiment, self.world = setup, folder, setup.experiment, world
        self.columns, self.test = columns or on_device(setup)
        self.around, self.sharing = around or (lambda number, rounds: nullcontext()), sharing or Sharing()
        self.together = 1  # runs that share its seconds, as one stack
        self.checkpointed: Callable[[], None] | None = None  # what rank 0 does after a checkpoint
        self.plan = plan = RoundPlan(setup)
        first = setup.round.init(plan.context(0), setup.model, setup.server_key)
        first = tree.to(first, setup.device)
        trial = plan.trial(first)
        choice = choice or setup.choice
        where = (self.columns, self.test)
        self.place = workplace(setup, where, plan.client_rows, trial, choice, folder.path, world, budget)
        self.engine, self.own = self.place.engine, self.place.own
        self.state = State(setup, folder, world, plan, self.engine, first, Best(setup.watched))
        self.live = LiveRun(setup.experiment, folder.path, plan.history, self.state.model, setup.notes, setup.metric)
        self.said: Tree = {}  # diagnostics of the last round
        self.evaluator = Evaluator(setup)
        self.write_clients = Throttled(folder.write_clients)
        self.stopping = Stopping(setup.experiment.stop, setup.watched, setup.schedules())
        self.listeners: list[Listener] = [*setup.listeners(plan.chain)]

    def begin(self) -> bool:
        """Before the first round, which may ask how fast this machine is. Was anything measured, for good?"""
        before = tree.leaves(self.state.round)
        begun = self.setup.round.begun(self.state.round, self._seconds_per_step)
        self.state.round = tree.to(self.world.broadcast_tree(begun), self.setup.device)  # timed by one watch for all
        return any(x is not y for x, y in zip(before, tree.leaves(begun), strict=True))

    def _seconds_per_step(self) -> float:
        """Of the first round's training, the second of two; all ranks go by rank 0's watch."""
        trial = replace(self.plan.trial(self.state.round), client_state="read")
        steps = max(1, int(self.setup.population.steps(trial.ids).sum()))
        for _ in range(2):
            before = time.perf_counter()
            self.engine.run(trial).columns()
        seconds = time.perf_counter() - before
        return self.world.on_rank_zero(lambda: seconds / steps)

    def next_round(self) -> None:
        """One more round, on the run's own engine."""
        drive(self.play_round(), self.engine)

    def rounds(self, callback: Callback) -> Asking[str]:
        """Every round that is left; says why it ended: "finished", "stopped early: ...", or "interrupted"."""
        with deferred_interrupts() as interrupted:
            try:
                with CheckpointSchedule(self.experiment.checkpoint.every, self.sharing) as schedule:
                    return (yield from self._rounds(callback, interrupted, schedule))
            except RankError as e:
                raise RankError(f"{e} {self.state.salvaged()}") from e
            finally:
                self.write_clients.flush()

    def _rounds(self, callback: Callback, interrupted: Event, schedule: CheckpointSchedule) -> Asking[str]:
        rounds = self.experiment.rounds
        while (done := len(self.plan.history)) < rounds:
            why = self._measured_enough() or self._objection(done)
            if why:
                return self._ended(stopped_early(why))
            yield from self.play_round()
            done += 1
            why = self._told(callback)
            if why and done < rounds:
                return self._ended(stopped_early(why))
            if self.world.any_rank(interrupted.is_set()) and done < rounds:
                return self._ended("interrupted")
            if done < rounds and schedule.turn(done) and self.world.on_rank_zero(schedule.due):
                schedule.write(self.checkpoint)
                if self.checkpointed is not None:
                    self.world.on_rank_zero(self.checkpointed)
        return self._ended("finished")

    def _told(self, callback: Callback) -> str | None:
        """Why to end, if a callback says so; it has seen metrics, whatever it decides by."""
        entry = {**self.plan.history[-1], **({"diagnostics": self.said} if self.said else {})}
        why: str | None = self.world.on_rank_zero(lambda: callback.on_round(self.live, entry))
        return self._by_a_metric(why)

    def _measured_enough(self) -> str | None:
        return self._by_a_metric(self.stopping(self.plan.visible_history))

    def _by_a_metric(self, why: str | None) -> str | None:
        for listener in self.listeners if why else ():
            listener.ended_by("a metric")
        return why

    def _objection(self, number: int) -> str | None:
        return next((why for listener in self.listeners if (why := listener.objects(number))), None)

    def _ended(self, why: str) -> str:
        self.world.on_rank_zero(self._save_models)
        self.checkpoint()
        return why

    def _save_models(self) -> None:
        self.folder.save_model(self.state.model())
        for name, state in self.state.beside().items():
            self.folder.save_model(state, name)

    def checkpoint(self) -> None:
        """What a run goes on from, and before it what was measured by then: a resume does not measure that again."""
        self.write_clients.flush()
        self.state.checkpoint()

    def resume(self) -> bool:
        """Go back to the last checkpoint, and to what listeners had heard by then; without one, begin."""
        measured = not self.state.resume() and self.begin()
        for listener in self.listeners:
            listener.replay(self.plan.history)
        return measured

    def play_round(self) -> Asking[None]:
        """One more round: sample, train, apply, measure, record."""
        before, number = self.state.round, len(self.plan.history)
        try:
            with (
                arithmetic(self.setup.device, self.setup.choice.precision),
                self.around(number, self.experiment.rounds),
            ):
                yield from self._play_round(number)
        except RankError:
            self.state.round = before  # as it was when the last line was written
            raise

    def _play_round(self, number: int) -> Asking[None]:
        laps, watch, before = Laps(), Stopwatch(), self.state.round
        self.engine.expect(self.experiment.rounds - number)
        with phase("sampling"):
            ctx = self.plan.context(number)
            self.plan.sample(number)
            self.plan.expect_draws(number)
        laps.lap("sample")
        key = self.plan.key(number)

        def play() -> Any:
            return self.setup.round.run(ctx, before, key)

        with phase("server"):
            self.state.round, outcome = yield from on_promises(play, watch, lambda state: self._ahead(number, state))
        laps.lap("server")
        laps.move("server", "train", watch.seconds)
        dropped = self._dropped(number, outcome, before)
        with phase("evaluation"):
            evaluation = yield from self._evaluate(number, ctx)
        laps.lap("evaluate")
        with phase("record"):
            self._record(number, ctx, before, outcome, dropped, evaluation, laps)

    def _ahead(self, number: int, state: Tree) -> None:
        """While a device is at work on one round, the host asks for the new model's digest and draws the next round."""
        self.state.begin_digest(state)
        following = number + 1
        if following < self.experiment.rounds:
            ids, _ = self.plan.sample(following)
            if self.setup.round.most_at_once(len(ids)) == len(ids):
                self.engine.prepare(ids, client_key(self.plan.key(following)), self.plan.order(following))

    def _dropped(self, number: int, outcome: Outcome, before: Tree) -> list[int]:
        columns = outcome.columns()
        left_out = ~columns.finite.cpu()
        if not bool(left_out.any()):
            return []
        self._check_limits(number, outcome.ids[left_out & (columns.loss.cpu() == TOO_LONG)].tolist(), before)
        bad: list[int] = outcome.ids[left_out].tolist()
        if bad and self.experiment.on_divergence == "stop":
            self.state.round = before
            for listener in self.listeners:
                listener.ended_by("a client")
            raise DivergenceError(
                f"round {number + 1}: the loss or the update of {named(bad)} is not finite. Lower algorithm.lr or "
                "clip updates, or leave such clients out with on_divergence = 'drop'. "
                f"Last checkpoint: {self.state.last()}."
            )
        return bad

    def _check_limits(self, number: int, too_long: list[int], before: Tree) -> None:
        """A mechanism was told a bound that does not hold: whoever said so is wrong, and there is no epsilon."""
        if not too_long:
            return
        self.state.round = before
        for listener in self.listeners:
            listener.ended_by("a bound")
        at, limit = next((i, x) for i, t in enumerate(self.plan.chain(number)[0].transforms) if (x := t.limit()))
        names = [str(entry["name"]) for entry in self.experiment.transform]
        raise ConformanceError(
            f"round {number + 1}: the update of {named(too_long)} is longer ({limit.norm}) than "
            f"{float(limit.bound):.6g}, which {names[at]} relies on: {' or '.join(names[:at])} does not keep the bound "
            "or the weights that it states, and there is no epsilon for such a run. Mend it (`atoll check` tries a "
            "transform by its import path), or use clip_l2 and equal_weights."
        )

    def _evaluate(self, number: int, ctx: Context) -> Asking[Evaluation | None]:
        done = number + 1
        if done % self.experiment.evaluate.every and done != self.experiment.rounds:
            return None
        key = rng.key(self.experiment.seed, "round", number, "evaluate")
        try:
            return (yield from self.evaluator(ctx, self.state.round, key))
        except DivergenceError as e:
            raise DivergenceError(f"round {done}, measuring: {e} Last checkpoint: {self.state.last()}.") from e

    def _record(
        self,
        number: int,
        ctx: Context,
        before: Tree,
        outcome: Outcome,
        dropped: list[int],
        evaluation: Evaluation | None,
        laps: Laps,
    ) -> None:
        entry = line(number, self.plan.settings(ctx.algorithm, before), outcome, evaluation)
        for listener in self.listeners:
            entry[listener.key] = listener.hear(number, outcome, len(dropped))
        entry["bytes"] = outcome.bytes()
        if (times := outcome.timeline_as_sent()) is not None:
            entry["clock"] = times.summary()
        if dropped:
            entry["dropped"] = dropped
        entry["model"] = self.state.digest()  # has waited for the server's step, so that what follows need not
        self.said = diagnostics(outcome, {name for listener in self.listeners for name in listener.diagnostics})
        if self.said:
            entry["diagnostics"] = self.said
        laps.lap("record")
        entry["seconds"] = {**laps.seconds, **self.engine.lap()}
        self.state.align(entry)
        each = None if evaluation is None else {"round": number + 1, **evaluation.each}
        self.plan.history.append(as_read(self.world.on_rank_zero(lambda: self._written(entry, each, times))))
        self.state.measured(self.plan.history[-1])

    def _written(self, entry: dict[str, Any], each: dict[str, Any] | None, timeline: Timeline | None) -> dict[str, Any]:
        if each is not None:
            self.write_clients(each)
        if timeline is not None:
            self.folder.append_times(timeline.as_line(entry["round"]))
        self.folder.append(entry)
        return entry
