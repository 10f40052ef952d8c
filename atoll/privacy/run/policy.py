"""A private run, checked as a whole: the noise is chosen, and whatever would reach the model past it is refused."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace

from atoll import tree
from atoll.attacks import Planted
from atoll.core import Chain, Participation, resolve, schedules_in, transform_name
from atoll.data import DATA, EMBEDDED, Dataset
from atoll.data.sources import PACKAGED
from atoll.errors import ConfigError
from atoll.privacy import ACCOUNTANTS, Event, NotPrivate, Pure, accountant_for, supported_terms
from atoll.privacy.run.calibration import calibrate_noise, sampler_advice
from atoll.privacy.run.leak_check import metrics_read
from atoll.privacy.run.request import Crowd, PrivacyRequest, read_request
from atoll.privacy.run.round_events import (
    approximate_delta,
    rests_on_everybody,
    run_event,
    sampled_event,
    states_simulated_system,
)
from atoll.privacy.run.run_setup import ExperimentOptions, RunSetup
from atoll.privacy.run.tables import PrivacyTable
from atoll.schedules import Schedule


@dataclass(frozen=True)
class RunPrivacy:
    """What a run promises, and what that asks of the rest of it."""

    request: PrivacyRequest | None = None  # of the mechanisms on updates; None where there are none
    canaries: Planted | None = None
    visible: frozenset[str] | None = None  # what schedules and stopping may see of a record line; None: all of it
    assumed: tuple[str, ...] = ()  # what its epsilon rests on beside its mechanisms, in words


def plan_privacy(setup: RunSetup, metrics: Sequence[str]) -> tuple[Chain, RunPrivacy, list[str]]:
    """The chain with its noise chosen, what the run promises, and advice; a ConfigError for what cannot hold.

    `metrics` are those of the test data.
    """
    chain, bound, request = _choose_noise(setup)
    if bound.events():
        request = _check_mechanisms(setup, chain, bound, request)
        privacy = RunPrivacy(request, _plant_canaries(setup))
        sampler = sampler_advice(bound, setup.participation, setup.experiment.rounds, request)
        notes = [advice for advice in (sampler, _shuffle_advice(setup, bound, request)) if advice is not None]
    else:
        _check_table(setup)
        privacy, notes = RunPrivacy(), []
    protects_clients = _is_private(bound)
    if not protects_clients and setup.example_privacy is None:
        return chain, privacy, notes
    visible = frozenset(["round", "settings", *metrics])
    mechanism = "the noise on updates" if protects_clients else "local.privacy"
    watched = setup.watched.metric if setup.experiment.stop and setup.watched else None
    _check_feedback(watched, setup.schedules(), visible, mechanism)
    return chain, replace(privacy, visible=visible, assumed=_assumed(setup)), notes


def _choose_noise(setup: RunSetup) -> tuple[Chain, Chain, PrivacyRequest]:
    """The chain with its noise calibrated, where a budget was given; the same bound, which refuses what cannot hold."""
    spec, rounds = setup.spec(), setup.experiment.rounds
    request = read_request(setup.experiment.privacy, setup.chain.transforms, setup.population.size)
    chain, request = calibrate_noise(setup.chain, spec, setup.participation, rounds, request)
    return chain, resolve(chain, 0, []).bind(spec)[0], request


def _check_mechanisms(setup: RunSetup, chain: Chain, bound: Chain, request: PrivacyRequest) -> PrivacyRequest:
    """The request with a delta that approximate mechanisms leave room for, checked against accountant and budget."""
    _check_chain(setup, chain, bound)
    experiment, participation = setup.experiment, setup.participation
    lost = experiment.rounds * approximate_delta(sampled_event(bound.events(), participation))
    if lost and (experiment.privacy is None or experiment.privacy.delta is None):
        request = replace(request, delta=min(0.5, 2 * lost))
    if states_simulated_system(bound, request) or not bound.simulated_events():
        whole = run_event(bound, participation, experiment.rounds, request)
        # refuses an accountant that does not know it
        supported_terms(accountant_for(whole, ACCOUNTANTS, request.accountant), whole)
        request = _in_crowd(setup, bound, request)
        _check_budget(bound, participation, request)
    return request


def _in_crowd(setup: RunSetup, bound: Chain, request: PrivacyRequest) -> PrivacyRequest:
    """The request with the crowd of a shuffle, where the whole run costs less with it."""
    if setup.crowd is None or bound.simulated_events():
        return request
    rounds = setup.experiment.rounds
    hidden = replace(request, crowd=Crowd.of(setup.crowd, request.delta, rounds))
    costs = [_cost(run_event(bound, setup.participation, rounds, each), each) for each in (request, hidden)]
    return hidden if costs[1] < costs[0] else request


def _cost(event: Event, request: PrivacyRequest) -> float:
    return accountant_for(event, ACCOUNTANTS, request.accountant).epsilon(event, request.delta)


def _shuffle_advice(setup: RunSetup, bound: Chain, request: PrivacyRequest) -> str | None:
    """That a shuffle gains nothing, where that is so."""
    if setup.crowd is None or request.crowd is not None:
        return None
    name = transform_name(bound.mechanisms()[0])
    if not any(isinstance(e, Pure) for e in bound.events()):
        return (
            f"{name}: no amplification by shuffling is claimed for it. Use local_laplace or privunit, which are pure."
        )
    return (
        f"secure.threshold: shuffling {setup.crowd} reports at least gains nothing over {name}'s own epsilon. "
        f"Use a larger threshold (a cohort has {setup.spec().cohort} clients), or a smaller epsilon."
    )


def _is_private(bound: Chain) -> bool:
    """Is there a mechanism on updates, real or simulated?"""
    return bool(bound.simulated_events()) or not all(isinstance(e, NotPrivate) for e in bound.events())


def _plant_canaries(setup: RunSetup) -> Planted | None:
    """The canaries that the file asks for."""
    table = setup.experiment.privacy
    if table is None or not table.canaries:
        return None
    if (why := setup.round.traits().refuses.get("privacy.canaries")) is not None:
        raise ConfigError(f"privacy.canaries: {why}")
    size, seed = setup.population.size, setup.experiment.seed
    return Planted.plant(table.canaries, setup.update_like(), setup.sampler, size, seed, setup.device)


def _check_table(setup: RunSetup) -> None:
    """[privacy] is about noise on updates, of which there is none."""
    table, examples = setup.experiment.privacy, setup.example_privacy
    if table is None:
        return
    if table.budget is not None or table.canaries:
        raise ConfigError(
            "privacy: there is a budget or an audit, but nothing in transform adds noise. "
            'Add "equal_weights", { name = "clip_l2", max_norm = 1.0 } and { name = "gaussian_noise", ... }.'
        )
    if examples is not None and table.delta not in (None, examples.delta):
        raise ConfigError(
            f"privacy.delta: {table.delta:g} is for noise on updates, of which there is none; that of examples is "
            f"{examples.delta:g}. Use local.privacy.delta."
        )


def _check_chain(setup: RunSetup, chain: Chain, bound: Chain) -> None:
    """What noise on updates cannot go together with."""
    clock = setup.experiment.clock
    if clock is not None and clock.leaves_out and rests_on_everybody(bound):
        raise ConfigError(
            "clock: can leave clients out that were asked, and each adds a share of the noise that all rely on. "
            "Use gaussian_noise, or a [clock] without deadline, over_selection, min_reports, dropout and availability."
        )
    if clock is not None and clock.dropout_by_labels is not None:
        raise ConfigError(
            "clock.dropout_by_labels: who is in the sum would depend on labels, which the noise is to protect. "
            "Use dropout_by_size (sizes are then said to be public), or leave the noise out."
        )
    if (why := setup.round.traits().refuses.get("noise")) is not None:
        raise ConfigError(f"transform: with noise on updates {why}")
    if setup.round.traits().selects_by_time and rests_on_everybody(bound):
        raise ConfigError(
            "round.name: fewer clients than a buffer holds may be in a step, and each adds a share of the noise that "
            "all rely on. Use gaussian_noise, or round.name = 'central'."
        )
    secure = setup.experiment.secure
    if secure is not None and secure.dropout and rests_on_everybody(bound):
        raise ConfigError(
            "secure.dropout: loses clients that were asked, and each adds a share of the noise that all rely on. "
            "Leave dropout out, or the noise."
        )
    if setup.model["buffers"] and setup.experiment.task.batch_norm == "recompute":
        raise ConfigError(
            "task.batch_norm: 'recompute' reads statistics from the clients past the noise. Use 'group' or 'freeze'."
        )
    if setup.algorithm.traits().pooled:
        raise ConfigError(
            f"transform: {setup.experiment.algorithm['name']} pools all data in one client, and noise on updates hides "
            "one client among others. Use [local.privacy], which hides one example."
        )
    if not tree.leaves(setup.update_like()):
        raise ConfigError(
            f"transform: {setup.experiment.algorithm['name']} sends nothing of this model, so that noise has nothing "
            "to protect. Use a model with more layers, or leave the noise out."
        )
    for transform, bound_transform in zip(chain.transforms, bound.transforms, strict=True):
        if bound_transform.mechanisms() and any(metrics_read(s) for s in schedules_in(transform)):
            raise ConfigError(
                f"{transform_name(transform)}: its schedule follows what the run measures. How much noise there is "
                "must be known beforehand: use a number, or a schedule over rounds ('step', 'cosine')."
            )


def _check_budget(bound: Chain, participation: Participation, request: PrivacyRequest) -> None:
    """Refuse a budget that not even the first round keeps."""
    if request.budget is None:
        return
    if (cost := _cost(run_event(bound, participation, 1, request), request)) > request.budget:
        raise ConfigError(
            f"privacy.budget: {request.budget:g} is less than one round costs (epsilon {cost:.4g} at delta "
            f"{request.delta:g}). Use a larger noise multiplier, a smaller cohort, or a budget above that."
        )


def _check_feedback(watched: str | None, every: Sequence[Schedule], visible: frozenset[str], mechanism: str) -> None:
    """What was read from the clients must not decide anything: `mechanism` does not cover it."""
    uses = [("stop.metric", watched)] if watched and watched not in visible else []
    uses += [(_describe_schedule(s), name) for s in every for name in sorted(metrics_read(s) - visible)]
    if uses:
        raise ConfigError(
            [
                f"{where}: {name!r} is read from the clients, which {mechanism} does not cover. Use a metric of the "
                "test data."
                for where, name in uses
            ]
        )


def _describe_schedule(schedule: Schedule) -> str:
    name = type(schedule).__name__
    return f"{name.lower()}, metric" if schedule.metrics() else f"schedule {name}"


def _assumed(setup: RunSetup) -> tuple[str, ...]:
    """What an epsilon rests on beside its mechanism: what is public, and code that nobody here has checked."""
    return (*_public(setup.experiment, setup.dataset), *_timed(setup), *_foreign(setup.experiment))


def _timed(setup: RunSetup) -> tuple[str, ...]:
    """Who is in the sum must not depend on what the noise protects; how long a client takes depends on its examples."""
    clock = setup.experiment.clock
    if clock is None or not (clock.selects_by_time or setup.round.traits().selects_by_time):
        return ()
    return ("public: how many examples each client has, by which [clock] decides who reports in time",)


def _foreign(experiment: ExperimentOptions) -> tuple[str, ...]:
    """Code by import path that clients' updates go through, or that draws them."""
    entries = [experiment.algorithm, experiment.cohort, experiment.reducer, experiment.round, *experiment.transform]
    entries += [] if experiment.secure is None else [experiment.secure.protocol]
    names = [name for entry in entries if ":" in (name := str(entry["name"])) and not name.startswith("atoll.")]
    return (f"code that is not atoll's does what it says: {', '.join(names)}",) if names else ()


def _public(experiment: ExperimentOptions, dataset: Dataset) -> tuple[str, ...]:
    """What must be public, since it is in everybody's examples. Named data sets are; of others somebody must say so."""
    table, name = experiment.privacy or PrivacyTable(), experiment.data["name"]
    if not dataset.fitted:
        return ()
    if not (name in EMBEDDED or name in PACKAGED or table.public_statistics):
        raise ConfigError(
            f"data: {dataset.fitted} of all training rows are in every client's examples, past the noise: one client "
            f"moves what the others hold. {_alternative(name, dataset.fitted)}, or say that they are public: "
            "privacy.public_statistics = true."
        )
    return (f"public: {dataset.fitted} of the training rows, with which examples were prepared",)


def _alternative(name: str, fitted: str) -> str:
    """What else can be done, with the options that the format has.

    >>> _alternative("csv", "means and deviations")
    "Prepare the data beforehand and set standardise = 'none'"
    >>> _alternative("huggingface", "means and deviations")
    'Prepare the data beforehand'
    """
    alternatives = {
        "means and deviations": ("standardise", "standardise = 'none'"),
        "missing values": ("missing", "missing = 'zero' or 'drop'"),
        "categories": ("exclude", "exclude to the columns of text"),
        "vocabulary": ("words", "words to a file of them"),
    }
    options = inspect.signature(DATA[name]).parameters if name in DATA else {}
    settings = [setting for part, (option, setting) in alternatives.items() if part in fitted and option in options]
    return f"Prepare the data beforehand{' and set ' if settings else ''}{', '.join(settings)}"
