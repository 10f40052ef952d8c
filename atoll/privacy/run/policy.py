"""A private run, checked as a whole: the noise is chosen, and whatever would reach the model past it is refused."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from atoll import tree
from atoll.attacks import Planted
from atoll.core import Chain, Participation
from atoll.core.settings import resolve, schedules
from atoll.core.transform import named
from atoll.data import DATA, EMBEDDED, Dataset
from atoll.data.sources import PACKAGED
from atoll.errors import ConfigError
from atoll.experiment.experiment import Experiment, PrivacyTable
from atoll.privacy import ACCOUNTANTS, NotPrivate, accountant_for
from atoll.privacy.accountant import supported_terms
from atoll.privacy.run.leak_check import looks_at
from atoll.privacy.run.request import Asked, advice, asked, calibrated, described, planned, sampled, spends_delta
from atoll.schedules import Schedule

if TYPE_CHECKING:
    from atoll.experiment.setup import Setup


@dataclass(frozen=True)
class Rules:
    """What holds for a whole run, because something in it is private."""

    shown: frozenset[str]  # what schedules and stopping may see of a line: nothing that was read from the clients
    public: tuple[str, ...] = ()  # what its epsilon assumes to be known to everybody, in words


def with_privacy(setup: Setup, metrics: Sequence[str]) -> Setup:
    """The setup with its noise chosen and its rules found; a ConfigError for what cannot hold.

    `metrics` are those of the test data.
    """
    setup, real = _with_noise(setup)
    setup = replace(setup, canaries=_planted(setup))
    if not real and setup.example_privacy is None:
        return setup
    experiment, every = setup.experiment, setup.schedules()
    shown = frozenset(["round", "settings", *metrics])
    _check_feedback(experiment, every, shown, "the noise on updates" if real else "local.privacy")
    return replace(setup, rules=Rules(shown, _public(experiment, setup.dataset)))


def _planted(setup: Setup) -> Planted | None:
    """The canaries that the file asks for."""
    table = setup.experiment.privacy
    if table is None or not table.canaries:
        return None
    size, seed = setup.population.size, setup.experiment.seed
    return Planted.plant(table.canaries, setup.update_like(), setup.sampler, size, seed, setup.device)


def _with_noise(setup: Setup) -> tuple[Setup, bool]:
    """The chain bound once, which refuses what cannot hold; its noise chosen, where a budget was given.

    Also: is there a mechanism, real or simulated?
    """
    experiment, spec, how = setup.experiment, setup.spec(), setup.how
    known = asked(experiment, setup.chain.transforms, setup.population.size)
    chain, known = calibrated(setup.chain, spec, how, experiment.rounds, known)
    bound, _ = resolve(chain, 0, []).bind(spec)
    if not bound.events():
        _check_table(setup)
        return setup, False
    _check_chain(setup, chain, bound)
    lost = experiment.rounds * spends_delta(sampled(bound.events(), how))
    if lost and (experiment.privacy is None or experiment.privacy.delta is None):
        known = replace(known, delta=min(0.5, 2 * lost))
    if described(bound, known) or not bound.simulated_events():
        whole = planned(bound, how, experiment.rounds, known)
        # refuses an accountant that does not know it
        supported_terms(accountant_for(whole, ACCOUNTANTS, known.accountant), whole)
        _check_budget(bound, how, known)
    hint = advice(bound, how, experiment.rounds, known)
    setup = replace(setup, chain=chain, asked=known, notes=[*setup.notes, *([hint] if hint else [])])
    return setup, bool(bound.simulated_events()) or not all(isinstance(e, NotPrivate) for e in bound.events())


def _check_table(setup: Setup) -> None:
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


def _check_chain(setup: Setup, chain: Chain, bound: Chain) -> None:
    """What noise on updates cannot go together with."""
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
    for layer, made in zip(chain.transforms, bound.transforms, strict=True):
        if made.event() is not None and any(looks_at(s) for s in schedules(layer)):
            raise ConfigError(
                f"{named(layer)}: its schedule follows what the run measures. How much noise there is must be known "
                "beforehand: use a number, or a schedule over rounds ('step', 'cosine')."
            )


def _check_budget(bound: Chain, how: Participation, known: Asked) -> None:
    """Refuse a budget that not even the first round keeps."""
    if known.budget is None:
        return
    first = planned(bound, how, 1, known)
    if (cost := accountant_for(first, ACCOUNTANTS, known.accountant).epsilon(first, known.delta)) > known.budget:
        raise ConfigError(
            f"privacy.budget: {known.budget:g} is less than one round costs (epsilon {cost:.4g} at delta "
            f"{known.delta:g}). Use a larger noise multiplier, a smaller cohort, or a budget above that."
        )


def _check_feedback(experiment: Experiment, every: Sequence[Schedule], shown: frozenset[str], what: str) -> None:
    """What was read from the clients must not decide anything: `what` does not cover it."""
    stop = experiment.stop
    found = [("stop.metric", stop.metric)] if stop and stop.metric not in shown else []
    found += [(_words(s), name) for s in every for name in sorted(looks_at(s) - shown)]
    if found:
        raise ConfigError(
            [
                f"{where}: {name!r} is read from the clients, which {what} does not cover. Use a metric of the test "
                "data."
                for where, name in found
            ]
        )


def _words(schedule: Schedule) -> str:
    name = type(schedule).__name__
    return f"{name.lower()}, metric" if hasattr(schedule, "metric") else f"schedule {name}"


def _public(experiment: Experiment, dataset: Dataset) -> tuple[str, ...]:
    """What must be public, since it is in everybody's examples. Named data sets are; of others somebody must say so."""
    table, name = experiment.privacy or PrivacyTable(), experiment.data["name"]
    if not dataset.fitted:
        return ()
    if not (name in EMBEDDED or name in PACKAGED or table.public_statistics):
        raise ConfigError(
            f"data: {dataset.fitted} of all training rows are in every client's examples, past the noise: one client "
            f"moves what the others hold. {_instead(name, dataset.fitted)}, or say that they are public: "
            "privacy.public_statistics = true."
        )
    return (f"public: {dataset.fitted} of the training rows, with which examples were prepared",)


def _instead(name: str, fitted: str) -> str:
    """What else can be done, with the options that the format has.

    >>> _instead("csv", "means and deviations")
    "Prepare the data beforehand and set standardise = 'none'"
    >>> _instead("huggingface", "means and deviations")
    'Prepare the data beforehand'
    """
    known = {
        "means and deviations": ("standardise", "standardise = 'none'"),
        "missing values": ("missing", "missing = 'zero' or 'drop'"),
        "categories": ("exclude", "exclude to the columns of text"),
        "vocabulary": ("words", "words to a file of them"),
    }
    options = inspect.signature(DATA[name]).parameters if name in DATA else {}
    found = [what for part, (option, what) in known.items() if part in fitted and option in options]
    return f"Prepare the data beforehand{' and set ' if found else ''}{', '.join(found)}"
