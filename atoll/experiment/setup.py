"""From a checked experiment to the things it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from atoll import rng, tree
from atoll.algorithms import Snapshot
from atoll.core import (
    Algorithm,
    Chain,
    Info,
    Model,
    Participation,
    Reducer,
    Round,
    Spec,
    Transform,
    resolve,
    schedules_in,
)
from atoll.data import (
    DATA,
    PARTITIONS,
    Dataset,
    Everyone,
    FixedWithReplacement,
    Partition,
    Population,
    make_clients,
)
from atoll.engines import Choice
from atoll.errors import ConfigError
from atoll.experiment.attack_setup import AttackPlan, attack_notes, bounded, check_sent, defence_notes, plan_attack
from atoll.experiment.clock_setup import in_virtual_time, make_sampler, reports_wanted
from atoll.experiment.data_notes import data_notes
from atoll.experiment.defaults import usual_model, usual_partition
from atoll.experiment.defence_setup import (
    WithoutServer,
    certified,
    check_cohort,
    in_trust,
    make_reducer,
    root_share,
)
from atoll.experiment.device import Device, find_device
from atoll.experiment.experiment import Experiment
from atoll.experiment.learned import HeldData, Learned, held_data, learn_by
from atoll.experiment.memory import fits_in_memory
from atoll.experiment.module import make_module
from atoll.experiment.registry import build
from atoll.experiment.round_setup import around, check_told
from atoll.experiment.secure_setup import (
    check_bounded,
    check_seen,
    crowd_of,
    in_secret,
    secure_clients,
    secure_notes,
    secure_record,
    with_secure_sum,
)
from atoll.experiment.watched import TRAIN_LOSS, Watched, check_watched, choose_watched, recorded
from atoll.privacy.run import Account, ExamplePrivacy, RunPrivacy, make_example_privacy, plan_privacy
from atoll.rounds import ROUNDS, KnowledgeTransfer, SecureRecord, SentByGroup
from atoll.schedules import Schedule
from atoll.tasks import Loss, Metric, PrivateTask, Supervised
from atoll.transforms import TRANSFORMS
from atoll.tree import Tree


@dataclass(frozen=True)
class Setup:
    """Everything a run needs, built and checked together; nothing has been trained or written yet."""

    experiment: Experiment
    dataset: Dataset
    partition: Partition  # who holds what, before anything was held out
    training: Partition  # what clients train on
    held: Partition | None  # what is kept for per-client metrics
    population: Population  # as the algorithm sees it (one client, if all data is pooled)
    sampler: Any
    task: Supervised
    model: Model
    algorithm: Algorithm
    chain: Chain  # as written: schedules unresolved, not bound
    reducer: Reducer[Any]  # that engines use
    round: Round
    choice: Choice
    device: torch.device
    snapshot: Snapshot
    notes: list[str] = field(default_factory=list)
    example_privacy: ExamplePrivacy | None = None  # what each example is promised, with [local.privacy]
    second_models: tuple[Supervised, ...] = ()  # that the algorithm owns beside the one it learns
    metrics: dict[str, Metric] = field(default_factory=dict)  # by name
    metric: str = TRAIN_LOSS  # the one that leads
    watched: Watched | None = None  # what ends the run and chooses its best model; None: nothing may
    privacy: RunPrivacy = RunPrivacy()  # what the run promises, and what that asks of the rest of it
    attack: AttackPlan | None = None  # who means harm, and how; None: nobody

    def listeners(self, chain_of: Callable[[int], tuple[Chain, Spec]]) -> list[Account | SecureRecord]:
        """Who hears what the rounds did. `chain_of` a round: the transforms that its clients go through."""
        account = Account.of(self, self.privacy, chain_of)
        table = self.experiment.secure
        secure = None if table is None else secure_record(table)
        return [listener for listener in (account, secure) if listener is not None]

    def server_chain(self, chain: Chain, number: int, participation: Participation) -> Transform:
        """A round's chain as the server has it: with what goes around it."""
        canaries = self.privacy.canaries
        return chain if canaries is None else canaries.around(chain, number, participation)

    def visible(self, entry: dict[str, Any]) -> dict[str, Any]:
        """What schedules and stopping may see of a line of the record."""
        visible = self.privacy.visible
        return entry if visible is None else {k: v for k, v in entry.items() if k in visible}

    def spec(self) -> Spec:
        """What is certain about an update before the first transform."""
        return replace(self.reducer.spec(), **self._counts)

    def schedules(self) -> list[Schedule]:
        """Every schedule of the experiment."""
        return schedules_in(self.algorithm) + schedules_in(self.chain)

    def update_like(self) -> Tree:
        """Zeros in the shape of one client's update."""
        now = resolve(self.algorithm, 0, [])
        sent, own = now.send(now.init(self.model, self.server_key)), now.client_state(self.model)
        one = torch.ones((), device=self.device)
        info = Info(torch.zeros((), dtype=torch.int64, device=self.device), one, one, 0 * one)
        return tree.zeros_like(now.finish(now.start(sent, own), sent, own, info)[0].value)

    @property
    def clients(self) -> int:
        """Those who train, without the server that holds examples of its own."""
        return self.training.size - (root_share(self.experiment) is not None)

    @property
    def training_task(self) -> Supervised | PrivateTask:
        """The task as clients train on it."""
        return self.task if self.example_privacy is None else self.example_privacy.task

    @property
    def server_key(self) -> Tensor:
        """What the server's first state is drawn from."""
        return rng.key(self.experiment.seed, "server")

    @property
    def crowd(self) -> int | None:
        """The least number of reports among which each is hidden; None where whoever reads one knows whose it is."""
        return crowd_of(self.experiment, self.spec().cohort)

    @cached_property
    def participation(self) -> Participation:
        """How cohorts are drawn, as the first one is."""
        found: Participation = self.sampler.sample(self.population.size, 0, rng.key(self.experiment.seed, "cohort"))[1]
        return found

    @cached_property
    def _counts(self) -> dict[str, Any]:
        """What is fixed for the run: the clients of a cohort, the numbers in an update, rounds, and their distance."""
        participation = self.participation
        size, rounds = tree.count(self.update_like()), self.experiment.rounds
        wanted = reports_wanted(self.experiment, self.population.size)
        cohort, expected = (participation.size, participation.expected) if wanted is None else (wanted, wanted)
        if secure_clients(self.experiment.secure) is not None:
            cohort = self.round.parties(0, cohort)
        counts = {"cohort": cohort, "expected": expected, "size": size, "rounds": rounds}
        return {**counts, "min_separation": participation.min_separation or 1}


@fits_in_memory()
def set_up(
    experiment: Experiment, device: Device = "auto", dataset: Dataset | None = None, partition: Partition | None = None
) -> Setup:
    """Build what a file names, but for what is here already."""
    dataset = dataset or load_dataset(experiment)
    partition = partition or make_partition(experiment, dataset)
    entry = experiment.task.model or usual_model(dataset.kind, dataset.inputs, dataset.vocabulary)
    module = make_module(entry, dataset, "task.model", rng.key(experiment.seed, "init"))
    return assemble(experiment, dataset, partition, module, device)


def load_dataset(experiment: Experiment) -> Dataset:
    """The data that the experiment names."""
    found: Dataset = build(DATA, experiment.data, where="data").check()
    return found


@fits_in_memory()
def assemble(
    experiment: Experiment,
    dataset: Dataset,
    partition: Partition,
    module: nn.Module,
    device: Device = "auto",
    loss: Loss | None = None,
    functions: Mapping[str, Any] | None = None,
) -> Setup:
    """Put data, clients and a model together with what the experiment says of the rest."""
    where, local = find_device(device), experiment.local
    held = held_data(experiment, dataset, partition)
    learned = learn_by(experiment, held, module, where, loss, functions or {})
    chain = Chain(tuple(build(TRANSFORMS, t, where=f"transform.{i}") for i, t in enumerate(experiment.transform)))
    topology = _topology(experiment, held, learned, chain)
    population, sampler = _clients(experiment, held.training, learned.algorithm.traits().pooled, topology)
    if local.privacy is not None and (why := topology.traits().refuses.get("local.privacy")) is not None:
        raise ConfigError(f"local.privacy: {why}")
    participation = sampler.sample(population.size, 0, rng.key(experiment.seed, "cohort"))[1]
    private = make_example_privacy(
        local, experiment.rounds, held.dataset, learned.task, learned.model, population,
        participation.min_separation or 1, learned.algorithm_for,
    )  # fmt: skip
    algorithm = learned.algorithm_for(private.task) if private else learned.algorithm
    _check_repeats(experiment, algorithm, sampler)
    wanted = reports_wanted(experiment, population.size) or participation.size
    if wanted is not None:
        topology.check_cohort(wanted)
    written, chain = chain, with_secure_sum(chain, secure_clients(experiment.secure), topology.before_sums())
    check_told(topology, chain, private is not None)
    grouped = SentByGroup.around(topology, algorithm, learned.model, written, held.clients, experiment.seed)
    surrounded = around(experiment, grouped, learned.task, learned.model, algorithm)
    round = in_secret(surrounded, experiment, algorithm, learned.model, wanted)
    round = in_virtual_time(round, experiment, population, held.training, held.dataset.labels)
    reducer = round.reducer(make_reducer(experiment.reducer, "reducer", **held.named))
    check_cohort(reducer, wanted)
    round = certified(in_trust(round, experiment, reducer, algorithm, held.clients), experiment, algorithm)
    attack = plan_attack(experiment, held.dataset, held.training, held.clients, algorithm, round)
    if attack is not None:
        round, reducer, population = attack.around(round), attack.reducing(reducer), attack.reading(population)
    notes = data_notes(held.dataset, held.training, local.batch, experiment.evaluate.rows, learned.metrics)
    measured = tuple(learned.second.tasks.values()), learned.metrics, learned.metric
    who = (experiment, held.dataset, held.partition, held.training, held.for_metrics, population, sampler)
    return _planned(Setup(
        *who, learned.task, learned.model, algorithm, chain, reducer, round, learned.choice, where, Snapshot(algorithm),
        [*notes, *learned.notes], private, *measured, attack=attack,
    ))  # fmt: skip


def _topology(experiment: Experiment, held: HeldData, learned: Learned, chain: Chain) -> Round:
    """The round that is named, for these clients and this model; nothing stands around it yet."""
    counted: dict[str, Any] = {"client_groups": held.partition.groups, "numbers": tree.count(learned.model)}
    topology: Round = build(ROUNDS, experiment.round, where="round", **held.named, **counted)
    topology.check(learned.algorithm)
    topology.check_population(held.clients)
    topology = topology.for_task(learned.task, learned.model)
    reading = held.training.sizes, experiment.local.batch, experiment.local.max_steps
    return KnowledgeTransfer.around(topology, learned.algorithm, chain, *reading)


def _planned(setup: Setup) -> Setup:
    """What the run promises, what it watches and what bounds its updates, once all of it is there."""
    experiment = setup.experiment
    better = {name: one.better for name, one in setup.metrics.items()}
    central = {} if setup.dataset.test is None else better
    names = recorded(central, better, experiment, setup.algorithm.traits().pooled)
    check_watched(names, experiment.stop, setup.schedules(), setup.metric)
    resolve(setup.algorithm, experiment.rounds - 1, [])  # what a schedule ends at may be refused
    watched = choose_watched(experiment.stop, names, setup.metric)
    check_seen(experiment, setup.schedules(), [*central])
    chain, privacy, advice = plan_privacy(replace(setup, watched=watched), [*central])
    seen = watched if privacy.visible is None or watched.metric in privacy.visible else None
    spec = setup.spec()
    check_bounded(experiment, chain, spec)
    check_sent(setup.attack, setup.update_like(), experiment.algorithm["name"])
    reducer = bounded(setup.reducer, setup.attack, chain, spec)
    held = defence_notes(setup.attack, reducer, str(experiment.reducer["name"]), spec.cohort)
    bounds = [*held, *attack_notes(setup.attack, chain, spec), *secure_notes(experiment, chain, spec, setup.round)]
    notes = [*setup.notes, *advice, *bounds, *setup.round.traits().cautions]
    return replace(setup, chain=chain, privacy=privacy, watched=seen, notes=notes, reducer=reducer)


def _clients(experiment: Experiment, training: Partition, pooled: bool, topology: Round) -> tuple[Population, Any]:
    """The population as the algorithm sees it, and who draws cohorts from it."""
    local = experiment.local
    sampling = local.privacy.sampling if local.privacy else "shuffled"
    clients = training.pool() if pooled else training
    population = Population(clients, local.batch, local.epochs, local.shuffle, local.max_steps, sampling)
    if pooled:
        return population, Everyone()
    root = root_share(experiment) is not None
    drawing = make_sampler(experiment, population.size - root)
    sampler = topology.sampler(WithoutServer(drawing) if root else drawing)
    sampler.check(population.size)
    return population, sampler


def _check_repeats(experiment: Experiment, algorithm: Algorithm, sampler: Any) -> None:
    """A client that comes twice would count twice in the server's mean and once in its own state."""
    if isinstance(sampler, FixedWithReplacement) and algorithm.traits().counts_clients:
        raise ConfigError(
            f"cohort.name: {experiment.algorithm['name']} keeps the mean of all clients' states on the server, which a "
            "client that is drawn twice would put out of step. Use cohort.name = 'fixed'."
        )


def make_partition(experiment: Experiment, dataset: Dataset) -> Partition:
    """The clients that the experiment names, or the natural ones."""
    entry = experiment.partition or usual_partition(dataset.name, dataset.keys)
    partitioner = build(PARTITIONS, entry, where="partition")
    return make_clients(dataset, partitioner, rng.key(experiment.seed, "partition"))
