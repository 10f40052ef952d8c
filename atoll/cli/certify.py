"""The `atoll certify` command: what a run with server.crfl certifies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.common import Where, imports, say


def certify(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run with server.crfl.")],
    votes: Annotated[int | None, typer.Option(help="Noisy models that vote; default: as the file says.")] = None,
    seed: Annotated[int, typer.Option(help="Of the noise of the votes.")] = 0,
    device: Where = "auto",
) -> None:
    """Certify a CRFL run: how large must a backdoor be?

    Lets noisy models vote on the test data and writes certificate.json; `atoll report` shows it.
    """
    with imports():
        from atoll.analysis.certificate import certify as certify_
        from atoll.records import certificate_path

    found = certify_(run, votes, device, seed)
    right = f"{found['accuracy']:.1%} of {found['examples']:,} examples"
    say(f"The vote of {found['votes']:,} noisy models is right on {right}.")
    who = f"at most {found['attackers']} attacker{'' if found['attackers'] == 1 else 's'}"
    say(
        f"It takes for granted {who} in round {found['attacked_round']}, each of rate {found['rate']:g}, and a "
        f"Lipschitz constant of {found['lipschitz']:g}: nobody can measure these for you."
    )
    for note in found["notes"]:
        say(note, "yellow")
    curve = found["curve"]
    for radius, share in (curve[0], curve[len(curve) // 2], curve[-1]):
        say(f"  {share:.1%} are certified against backdoors up to {radius:.3g}")
    say(f"Certificate: {certificate_path(run)}")
