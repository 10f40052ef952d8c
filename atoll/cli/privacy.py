"""The `atoll privacy` command: epsilon, noise and budgets, without a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from typer.core import TyperCommand

from atoll.cli.common import console, print_facts
from atoll.cli.privacy_output import counted, rounded_up, shown, warn, write
from atoll.errors import ConfigError

if TYPE_CHECKING:
    from atoll.privacy import Accountant, PrivacyPlan, SamplingScheme

app = typer.Typer(
    help="What noise costs in epsilon, and what a budget affords.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_RENAMED = {"--noise": "--noise-multiplier", "--separation": "--min-separation"}  # since the first version


class _Command(TyperCommand):
    """Refuses options of the first version with what they are called now."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for option in (word.partition("=")[0] for word in args):
            if option in _RENAMED:
                raise ConfigError(f"{option}: is called {_RENAMED[option]} now.")
        return super().parse_args(ctx, args)


NoiseMultiplier = Annotated[
    float, typer.Option(help="Noise over the most that one unit adds: std (L2), or scale for laplace.")
]
Delta = Annotated[float, typer.Option(help="Below 1 / population.")]
Rounds = Annotated[int, typer.Option(help="Rounds of the run.")]
Population = Annotated[int, typer.Option(help="Units in all: clients, or examples.")]
CohortSize = Annotated[float | None, typer.Option(help="Units in a round; with poisson the expected number.")]
Sampling = Annotated[
    Literal["poisson", "fixed", "with-replacement", "cyclic", "cyclic-poisson", "everyone"] | None,
    typer.Option(help="How a cohort is drawn. Default: everyone, if no cohort is given."),
]
AccountantName = Annotated[
    Literal["auto", "pld", "prv", "rdp", "analytic"], typer.Option(help="auto: the tightest that knows this.")
]
MechanismName = Annotated[Literal["gaussian", "laplace", "banded", "tree"], typer.Option(help="Where the noise goes.")]
MinSeparation = Annotated[
    int, typer.Option(help="Rounds from one turn of a unit to its next, kept by cyclic sampling.")
]
Bands = Annotated[int | None, typer.Option(help="Bands of banded. Default: as many as --min-separation.")]
Restart = Annotated[int | None, typer.Option(help="A new tree every so many rounds.")]
Unit = Annotated[Literal["client", "example"], typer.Option(help="Whose data is protected.")]


@app.command(cls=_Command)
def epsilon(
    noise_multiplier: NoiseMultiplier,
    delta: Delta,
    rounds: Rounds,
    population: Population,
    cohort: CohortSize = None,
    sampling: Sampling = None,
    accountant: AccountantName = "auto",
    mechanism: MechanismName = "gaussian",
    min_separation: MinSeparation = 1,
    bands: Bands = None,
    restart: Restart = None,
    unit: Unit = "client",
) -> None:
    """What a run with this noise costs: epsilon at delta."""
    _check(delta, noise_multiplier=noise_multiplier)
    plan = _plan(rounds, population, cohort, sampling, mechanism, min_separation, bands, restart)
    chosen = _accountant(plan, accountant, noise_multiplier)
    facts = [("noise multiplier", f"{noise_multiplier:g}"), *_said(plan, noise_multiplier, delta, chosen, unit)]
    print_facts("Privacy of the run", facts)
    warn(delta, population)


@app.command(cls=_Command)
def calibrate(
    epsilon: Annotated[float, typer.Option(help="The budget.")],
    delta: Delta,
    rounds: Rounds,
    population: Population,
    cohort: CohortSize = None,
    sampling: Sampling = None,
    accountant: AccountantName = "auto",
    mechanism: MechanismName = "gaussian",
    min_separation: MinSeparation = 1,
    bands: Bands = None,
    restart: Restart = None,
    unit: Unit = "client",
) -> None:
    """The least noise that keeps a run within epsilon at delta."""
    from atoll.privacy import noise_for

    _check(delta, epsilon=epsilon)
    plan = _plan(rounds, population, cohort, sampling, mechanism, min_separation, bands, restart)
    chosen = _accountant(plan, accountant)
    noise_multiplier = rounded_up(noise_for(plan.event, epsilon, delta, chosen))
    facts = [("noise multiplier", f"{noise_multiplier:.6g}"), ("budget", f"{epsilon:g}")]
    print_facts("Noise for the budget", facts + _said(plan, noise_multiplier, delta, chosen, unit))
    warn(delta, population)


@app.command(cls=_Command)
def curve(
    noise_multiplier: NoiseMultiplier,
    delta: Delta,
    rounds: Rounds,
    population: Population,
    cohort: CohortSize = None,
    epsilon: Annotated[float | None, typer.Option(help="A budget: also say how many rounds it affords.")] = None,
    sampling: Sampling = None,
    accountant: AccountantName = "auto",
    mechanism: MechanismName = "gaussian",
    min_separation: MinSeparation = 1,
    bands: Bands = None,
    restart: Restart = None,
    unit: Unit = "client",
    points: Annotated[int, typer.Option(min=2, help="Rounds to print.")] = 10,
    out: Annotated[Path | None, typer.Option(help="Write the curve: a .csv or .svg file.")] = None,
) -> None:
    """Epsilon round by round; with a budget, when it is spent."""
    from atoll.privacy import rounds_for

    if out is not None and out.suffix not in (".csv", ".svg"):
        raise ConfigError(f"--out: {out.name!r} must end in .csv or .svg.")
    _check(delta, noise_multiplier, epsilon)
    plan = _plan(rounds, population, cohort, sampling, mechanism, min_separation, bands, restart)
    chosen = _accountant(plan, accountant, noise_multiplier)
    at = sorted({max(1, round(i * rounds / points)) for i in range(1, points + 1)})
    found = [(r, chosen.epsilon(plan.event(noise_multiplier, r), delta)) for r in at]
    table = Table("round", "epsilon")
    for r, spent in found:
        table.add_row(str(r), shown(spent))
    console.print(table)
    facts = _said(plan, noise_multiplier, delta, chosen, unit)
    if epsilon is not None:
        most = rounds_for(lambda r: plan.event(noise_multiplier, r), epsilon, delta, chosen, rounds)
        facts.append((f"rounds within {epsilon:g}", f"{most} of {rounds}"))
    print_facts("The whole run", facts)
    warn(delta, population)
    if out is not None:
        write(out, found, facts)


def _check(delta: float, noise_multiplier: float | None = None, epsilon: float | None = None) -> None:
    """Refuse what was typed before anything is computed, by the names it was typed with."""
    from atoll.privacy import check_delta, check_epsilon, check_noise

    check_delta("--delta", delta)
    if noise_multiplier is not None:
        check_noise("--noise-multiplier", noise_multiplier)
    if epsilon is not None:
        check_epsilon("--epsilon", epsilon)


def _plan(
    rounds: int,
    population: int,
    cohort: float | None,
    sampling: str | None,
    mechanism: Literal["gaussian", "laplace", "banded", "tree"],
    min_separation: int,
    bands: int | None,
    restart: int | None,
) -> PrivacyPlan:
    from atoll.privacy import PrivacyPlan

    if cohort is not None and not cohort > 0:
        raise ConfigError(f"--cohort: must be above 0 (got {cohort:g}). For everyone leave --cohort out.")
    if cohort is not None and cohort > population and sampling not in ("everyone", "with-replacement"):
        raise ConfigError(
            f"--cohort: {cohort:g} is more than --population {population}. Use a smaller one; for all of them "
            "--sampling everyone, and no --cohort."
        )
    if sampling is None and cohort is not None and cohort < population:
        raise ConfigError(
            "--sampling: is missing, and epsilon depends on it. "
            "Use poisson, fixed, with-replacement, cyclic or cyclic-poisson."
        )
    names: dict[str | None, SamplingScheme] = {
        None: "everyone",
        "everyone": "everyone",
        "poisson": "poisson",
        "fixed": "without_replacement",
        "with-replacement": "with_replacement",
        "cyclic": "cyclic",
        "cyclic-poisson": "cyclic_poisson",
    }
    if sampling == "everyone" and cohort is not None and cohort != population:
        raise ConfigError(f"--cohort: everyone is {population} units (got {cohort:g}). Leave --cohort out.")
    return PrivacyPlan(rounds, population, cohort, names[sampling], mechanism, min_separation, bands, restart)


def _accountant(plan: PrivacyPlan, name: str, noise: float = 1.0) -> Accountant:
    from atoll.privacy import ACCOUNTANTS, accountant_for, supported_terms

    event = plan.event(noise)
    chosen = accountant_for(event, ACCOUNTANTS, name)
    supported_terms(chosen, event)
    return chosen


def _said(plan: PrivacyPlan, noise: float, delta: float, accountant: Accountant, unit: str) -> list[tuple[str, str]]:
    """Everything without which an epsilon means nothing."""
    from atoll.privacy import flatten

    event = plan.event(noise)
    account = flatten(event)
    if account.broken:
        return [("epsilon", f"not private: {account.broken}")]
    cohort = f", {plan.cohort:g} of {plan.population}" if plan.cohort else f", {plan.population}"
    return [
        ("epsilon", shown(accountant.epsilon(event, delta))),
        ("delta", f"{delta:g}"),
        ("unit", unit),
        ("adjacency", account.adjacency),
        ("sampler", plan.sampling.replace("_", " ") + cohort),
        ("mechanism", f"{plan.mechanism}, {counted(plan.rounds)}"),
        ("accountant", accountant.name),
        ("assumed", "; ".join(account.notes)),
    ]
