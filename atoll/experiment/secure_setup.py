"""From [secure] to residues, the protocol that sums them, and the round around it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial
from math import floor
from typing import Any

from atoll.core import Algorithm, Chain, Model, Round, Spec, Transform, resolve, transform_name
from atoll.errors import ConfigError, SpecError
from atoll.experiment.experiment import Experiment, SecureTable
from atoll.experiment.registry import build, find_builder
from atoll.experiment.signatures import schema
from atoll.privacy.run import metrics_read
from atoll.protocols import PROTOCOLS, Course, SecureAggregation, rehearse
from atoll.rounds import ProtocolSeconds, ProtocolSummation, Secured, SecureRecord
from atoll.schedules import Schedule
from atoll.schema import mistakes
from atoll.transforms import Compressor, FixedPointFor, SecureSum

INSECURE = (
    "INSECURE: secure.insecure_seed = true draws keys and masks from the run's seed. Whoever knows the file can unmask "
    "every update. For tests only."
)
_WHERE = "secure.protocol"
_WHY_NOT_PACKED = {
    "top_k": "the places of its entries differ from client to client, and the server must not learn them",
    "rand_k": "every client draws its places from a key of its own, so that they are not the places of the others",
}


def secure_clients(table: SecureTable | None) -> SecureTable | None:
    """The table where clients themselves are the protocol's clients, and not edges."""
    return table if table is not None and table.level is None else None


def secure_record(table: SecureTable) -> SecureRecord:
    """Who writes down what the protocol took."""
    return SecureRecord(table.mode, str(table.protocol["name"]), table.insecure_seed, table.level or 0)


def with_secure_sum(chain: Chain, table: SecureTable | None, before: tuple[Transform, ...] = ()) -> Chain:
    """The chain with what [secure] puts at its end: fixed_point and secure_sum, where the file does not have them.

    `before`: what clients of this round do to their updates before they are rounded (`Round.before_sums`).
    """
    if table is None:
        return chain
    if before and _built(table, None).shuffles():
        raise ConfigError(
            f"secure.protocol: with {table.protocol['name']} the server sees every vector, and in this round its size "
            "tells how old the model was that it was made from, and so whose it may be. Use round.staleness = "
            "'constant', or secagg."
        )
    names, options = [transform_name(t) for t in chain.transforms], table.fixed_point
    _check_packing(chain.transforms, options.bits)
    added: list[Transform] = []
    if "fixed_point" not in names:
        added.append(FixedPointFor(options.bits, options.range, _built(table, None).shuffles()))
    elif options.range is not None:
        raise ConfigError(
            "secure.fixed_point.range: the step is that of fixed_point in transform. Leave range out, or fixed_point."
        )
    own = [t for t in chain.transforms if isinstance(t, SecureSum)]
    if own and own[0].bits != options.bits:
        raise ConfigError(
            f"secure.fixed_point.bits: {options.bits}, but transform has secure_sum with bits = {own[0].bits}. "
            "Leave secure_sum out, or give both the same."
        )
    at = names.index("fixed_point") if "fixed_point" in names else len(names)
    transforms = (*chain.transforms[:at], *before, *chain.transforms[at:])
    return Chain((*transforms, *added, *([] if own else [SecureSum(options.bits)])))


def _check_packing(transforms: Sequence[Transform], bits: int) -> None:
    for i, transform in enumerate(transforms):
        if isinstance(transform, Compressor):
            name = transform_name(transform)
            generic = "what it packs must be unpacked before it can be added"
            raise SpecError(
                f"transform.{i}: {name} under [secure] saves nothing: {_WHY_NOT_PACKED.get(name, generic)}. Every "
                f"number travels as a residue of {bits} bits. Use shared_mask, which sends the same entries of all "
                "clients, or fewer secure.fixed_point.bits."
            )


def make_protocol(table: SecureTable, clients: int) -> SecureAggregation:
    """The protocol that a file names, with its options, for cohorts of so many: a share is a number of them."""
    least = table.threshold
    return _built(table, floor(least * clients + 1e-9) + 1 if isinstance(least, float) else least)


def _built(table: SecureTable, threshold: float | None) -> SecureAggregation:
    name = table.protocol["name"]
    given: dict[str, Any] = {"bits": table.fixed_point.bits, "insecure_seed": table.insecure_seed}
    if threshold is not None:
        if "threshold" not in schema(find_builder(PROTOCOLS, name, _WHERE)):
            raise ConfigError(f"secure.threshold: {name} has no threshold. Leave it out.")
        given["threshold"] = threshold
    protocol = build(PROTOCOLS, table.protocol, where=_WHERE, **given)
    if not isinstance(protocol, SecureAggregation):
        raise ConfigError(
            f"{_WHERE}: {name!r} gives a {type(protocol).__name__}. Derive it from atoll.protocols.SecureAggregation."
        )
    _check_installed(protocol, name)
    return protocol.for_bounded_sums()  # secure_sum is refused where a sum may not fit


def _check_installed(protocol: SecureAggregation, name: str) -> None:
    if not protocol.needs:
        return
    try:
        importlib.import_module(protocol.needs)
    except ImportError as e:
        raise ConfigError(f"{_WHERE}: {name} needs {protocol.needs}. Run `pip install 'atoll[secure]'`.") from e


def in_secret(round: Round, experiment: Experiment, algorithm: Algorithm, model: Model, drawn: int | None) -> Round:
    """The round with secure aggregation in it, if the file asks for it; `drawn`: how many clients a cohort has."""
    table = experiment.secure
    if table is None:
        return round
    if (why := round.traits().refuses.get("secure")) is not None:
        raise ConfigError(f"secure: {why}")
    _check_composition(experiment, algorithm, model)
    level = table.level or 0
    clients = round.parties(level, drawn)
    if clients is None:
        raise SpecError(
            f"secure: bounds a sum by how many clients are in it, and cohort.name = {experiment.cohort['name']!r} has "
            "no fixed number of them. Use cohort.name = 'fixed' or 'everyone'."
        )
    if round.traits().sums_differ and isinstance(table.threshold, int):
        raise ConfigError(
            f"secure.threshold: {table.threshold} would be for every sum, and here they have different numbers of "
            "clients. Use a share, such as threshold = 0.7."
        )
    protocol = _built(table, table.threshold) if round.traits().sums_differ else make_protocol(table, clients)
    least = protocol.least(clients)
    if least > clients:
        raise ConfigError(
            f"secure.threshold: {least} clients must stay to the end, and a cohort has {clients}. Use fewer, or a "
            "larger cohort."
        )
    protocol.security(clients)  # refuses what makes no sense among so many
    modelled = table.mode == "cost" or experiment.clock is not None
    course = rehearse(_built(table, None)) if modelled or table.dropout else Course(0, -1)
    small = _among_fewer(table, clients) if modelled else None
    seconds = None if table.seconds is None else ProtocolSeconds(**dict(table.seconds))
    lost = table.dropout, experiment.seed, course
    encoded = partial(with_secure_sum, table=table)
    summation = ProtocolSummation(protocol, table.mode, clients, *lost, small, encoded, seconds)
    return round.summed_by(summation, level) or Secured.around(round, summation)


def _among_fewer(table: SecureTable, clients: int) -> SecureAggregation:
    """The protocol for cohorts that are smaller: a number that must stay is a share of them, where it takes shares."""
    least = table.threshold
    builder = find_builder(PROTOCOLS, table.protocol["name"], _WHERE)
    if least is None or mistakes(schema(builder)["threshold"], 0.5, ""):
        return _built(table, None)
    return _built(table, (least - 0.5) / clients if isinstance(least, int) else least)


def _check_composition(experiment: Experiment, algorithm: Algorithm, model: Model) -> None:
    """What cannot hold where the server learns a sum and nothing else."""
    name, of_clients = experiment.reducer["name"], secure_clients(experiment.secure) is not None
    if name != "mean" and of_clients:
        raise SpecError(
            f"reducer.name: {name!r} looks at every update, and with [secure] the server learns only their sum. "
            "Use 'mean', or leave [secure] out."
        )
    if algorithm.traits().pooled:
        raise ConfigError(
            f"secure: {experiment.algorithm['name']} pools all data in one client, so that there is nothing to sum. "
            "Leave [secure] out."
        )
    if algorithm.traits().places_by_client:
        raise ConfigError(
            f"secure: what {experiment.algorithm['name']} sends has places of each client's own "
            "(Traits.places_by_client), where the server would read it by name in any sum. Use algorithm.name = "
            "'qffl', which adds up what clients with a large loss send, or leave [secure] out."
        )
    if model["buffers"] and experiment.task.batch_norm == "recompute":
        raise ConfigError(
            "task.batch_norm: 'recompute' reads statistics from every client past the protocol. Use 'average', "
            "'local', 'group' or 'freeze'."
        )
    if experiment.cohort["name"] == "fixed_with_replacement" and of_clients:
        raise ConfigError(
            "cohort.name: a client that is drawn twice would be two parties of one protocol. Use cohort.name = 'fixed'."
        )


def check_seen(experiment: Experiment, schedules: Sequence[Schedule], metrics: Sequence[str]) -> None:
    """Nothing may follow what is measured at single clients; `metrics` are those of the test data."""
    if experiment.secure is None:
        return
    stop = experiment.stop.metric if experiment.stop else None
    read = [("stop.metric", stop)] if stop else []
    read += [("a schedule", name) for s in schedules for name in sorted(metrics_read(s))]
    for where, name in read:
        if name.partition(".")[0] in ("clients", "after", "train_loss"):
            raise SpecError(
                f"{where}: {name!r} is measured at single clients, and with [secure] the server learns only a sum. "
                f"Use a metric of the test data{': ' + metrics[0] if metrics else ''}."
            )


def check_bounded(experiment: Experiment, chain: Chain, spec: Any) -> None:
    """The sum is one of residues, and fits: whatever the transforms are. Of edges their round has seen to it."""
    if secure_clients(experiment.secure) is None or experiment.secure is None:
        return
    bound, after = resolve(chain, 0, []).bind(spec)
    if after.domain != "modular":
        raise SpecError("secure: what arrives at the server are no residues. Let secure_sum be the last transform.")
    seen = make_protocol(experiment.secure, spec.cohort).more_than_the_sum()
    shared = [m for m in bound.mechanisms() if after.randomised is None or m.has_server_side()]  # no client's own
    if seen and shared:
        noise = transform_name(shared[0])
        raise SpecError(
            f"secure.protocol: with {experiment.secure.protocol['name']} {seen}, and the noise of {noise} is measured "
            "for the sum alone. Use secagg, secagg_plus or additive."
        )


def crowd_of(experiment: Experiment, clients: int | None) -> int | None:
    """The least number of reports among which the protocol hides each; None where it does not hide whose one is.

    Whoever knows the seed that keys and order are drawn from can undo the shuffle: then there is no crowd.
    """
    table = secure_clients(experiment.secure)
    if table is None or clients is None or table.insecure_seed:
        return None
    protocol = make_protocol(table, clients)
    return protocol.least(clients) if protocol.shuffles() else None


def secure_notes(experiment: Experiment, chain: Chain, spec: Spec, round: Round) -> list[str]:
    """What whoever reads the figures must know."""
    table = experiment.secure
    clients = None if table is None else round.parties(table.level or 0, spec.cohort)
    if table is None or clients is None:
        return []
    notes = list(make_protocol(table, clients).cautions(clients))
    after = resolve(chain, 0, []).bind(spec)[1]
    if after.randomised is not None and table.level is None:
        notes.append(
            f"secure.fixed_point.range = {table.fixed_point.range:g}: numbers that noise takes beyond it are cut. "
            "That costs no privacy, but a mean of cut numbers is no longer right on average."
        )
    if table.insecure_seed:
        notes.insert(0, INSECURE)
    if round.traits().selects_by_time and table.seconds is None:
        notes.append(
            "secure.seconds: what the protocol takes on the clock is measured on this machine when the run begins, and "
            "time decides who is in which sum: another run of this file may have other clients in a sum. For a run "
            "that repeats itself, say seconds = { client = 0.01, server = 0.01 }."
        )
    if table.mode == "cost":
        notes.append(
            "secure.mode = 'cost': the sum is the protocol's, but no message was sent. Its bytes and seconds are those "
            "of a model fitted to small real runs on this machine."
        )
    return notes
