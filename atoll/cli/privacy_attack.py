"""The `atoll attack` command: what do clients' updates give away?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from atoll.cli.audit import audit
from atoll.cli.common import Overrides, Where, console, errors, imports, print_facts, say
from atoll.cli.remembered import load
from atoll.errors import ConfigError

if TYPE_CHECKING:
    from atoll.attacks.leakage import AttackOptions
    from atoll.experiment import Experiment

MEMBERSHIP = ("loss", "lira")


def attack(
    target: Annotated[Path, typer.Argument(help="An experiment in TOML, or the folder of a run.")],
    method: Annotated[
        Literal["fc", "dlg", "dlg_lbfgs", "idlg", "inverting", "gradinversion", "labels", "property", "loss", "lira"],
        typer.Option(help="fc: closed form. dlg to gradinversion: by optimisation. loss, lira: membership, of a run."),
    ] = "fc",
    set_: Overrides = None,
    victims: Annotated[int, typer.Option(help="Updates (or means) that are attacked, all at once.")] = 64,
    images: Annotated[int | None, typer.Option(help="Examples that each client holds; default: all.")] = None,
    clients: Annotated[int | None, typer.Option(help="See only means of so many clients.")] = None,
    round_: Annotated[int, typer.Option("--round", help="Whose updates; those before it are played first.")] = 1,
    view: Annotated[
        Literal["server", "released"], typer.Option(help="What arrives at the server, or what it releases.")
    ] = "server",
    labels: Annotated[Literal["recovered", "known"], typer.Option(help="Where labels come from.")] = "recovered",
    statistics: Annotated[
        Literal["running", "sent"], typer.Option(help="gradinversion: BatchNorm's, of the model or of the client.")
    ] = "running",
    batch_norm: Annotated[
        Literal["training", "frozen"], typer.Option(help="How the attacker takes clients' BatchNorm to work.")
    ] = "training",
    one_step: Annotated[bool, typer.Option("--one-step", help="Do not unroll clients' epochs, as FedEval.")] = False,
    tv: Annotated[float | None, typer.Option(help="Weight of the total variation; default: the recipe's.")] = None,
    steps: Annotated[int | None, typer.Option(help="Of the optimisation; default: the recipe's.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Dummies to start from; the best match is kept.")] = None,
    label: Annotated[int, typer.Option("--property", metavar="CLASS", help="property: which class.")] = 0,
    share: Annotated[float, typer.Option(help="property: how much of a client's examples, at least.")] = 0.5,
    among: Annotated[int, typer.Option(help="Candidates that an original must be the nearest of.")] = 1000,
    stack: Annotated[int | None, typer.Option(help="Victims at a time; default: as many as fit.")] = None,
    seed: Annotated[int, typer.Option(help="Of the attacker's own draws.")] = 0,
    defences: Annotated[bool, typer.Option("--defences", help="Under several defences, beside utility.")] = False,
    device: Where = "auto",
    out: Annotated[Path | None, typer.Option(help="Where attack.json and the page go.")] = None,
) -> None:
    """Attack clients' privacy: what do updates give away?

    The updates are those that the experiment's own algorithm and transforms make. Prints a table; writes attack.json
    and a page with pictures.
    """
    if method in MEMBERSHIP:
        _membership(target, method, set_, device, out)
        return
    experiment, name = _experiment(target, set_ or [], device)
    with imports():
        from atoll.attacks.leakage import AttackOptions

    options = AttackOptions(
        method=method,
        victims=victims,
        clients=clients,
        images=images,
        round=round_,
        view=view,
        labels=labels,
        statistics=statistics,
        batch_norm=batch_norm,
        one_step=one_step,
        steps=steps,
        tv=tv,
        seeds=seeds,
        among=among,
        label=label,
        share=share,
        seed=seed,
        stack=stack,
    )
    kind = f"{name}-defences" if defences else f"{name}-{method}"
    place = out or (target / f"attack-{method}" if target.is_dir() else Path("attacks") / kind)
    try:
        (_compare if defences else _attack)(experiment, name, options, device, place)
    except KeyboardInterrupt:
        errors.print("Stopped: nothing was written. Fewer --victims or --steps are quicker.")
        sys.exit(130)


def _experiment(target: Path, overrides: list[str], device: Where) -> tuple[Experiment, str]:
    if not target.is_dir():
        return load(target, overrides), target.stem
    with imports():
        from atoll.attacks.leakage import opened
        from atoll.experiment import Experiment, override

    experiment, name = opened(target, device)
    return (Experiment.parse(override(experiment.complete(), overrides)) if overrides else experiment), name


def _membership(target: Path, method: Any, overrides: list[str] | None, device: Where, out: Path | None) -> None:
    if overrides:
        raise ConfigError("--set: membership is of a finished run. Run the experiment with --set, then attack it.")
    if not target.is_dir():
        raise ConfigError(f"--method: {method!r} attacks the model of a finished run. Name its folder.")
    audit(target, attack=method, device=device, out=out)


def _attack(experiment: Experiment, name: str, options: AttackOptions, device: Where, place: Path) -> None:
    from atoll.attacks.leakage import attack as attack_
    from atoll.attacks.leakage import facts, knowledge, lead, write_finding

    with _bar() as bar:
        task = bar.add_task("steps of the attack", total=None)
        finding = attack_(experiment, options, device, lambda n, of: bar.update(task, completed=n, total=of))
    print_facts(f"{finding.summary['title']} on {name}", facts(finding.summary))
    say(lead(finding.summary))
    say(f"The attacker knows: {'; '.join(knowledge(finding.summary))}.")
    say(f"Page: {write_finding(finding, name, place)}")


def _compare(experiment: Experiment, name: str, options: AttackOptions, device: Where, place: Path) -> None:
    from atoll.attacks.leakage import compare_defences, defence_table, usual_defences, write_defences
    from atoll.report import rich_table

    if options.method in ("labels", "property"):
        raise ConfigError("--defences: compares reconstructions. Use --method fc, inverting, dlg or idlg.")
    with _bar() as bar:
        task = bar.add_task("defences", total=None)
        found = compare_defences(
            experiment,
            options,
            usual_defences(experiment, options, device),
            place,
            device,
            lambda what, n, of: bar.update(task, completed=n, total=of, description=what or "defences"),
        )
    console.print(rich_table(defence_table(found)))
    for one in found:
        if one.refused:
            say(f"Not done: {one.name}: {one.refused}")
    say(f"Page: {write_defences(found, name, place)}")


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console, transient=True)
