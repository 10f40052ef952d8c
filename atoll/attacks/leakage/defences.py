"""What lowers leakage: the same attack under several defences, beside what the same experiment learns under them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from atoll import tree
from atoll.attacks.leakage.observe import observe
from atoll.attacks.leakage.one_attack import AttackOptions, attack, attacked_setup
from atoll.errors import AtollError, ConfigError
from atoll.experiment import Device, Experiment
from atoll.records import replace_text
from atoll.report import LeakagePoint, TextTable, attack_page, leakage_plot, number_columns, row, text_columns
from atoll.runs import run

Heard = Callable[[str, int, int], None]  # of this defence, so many of so many are done
EPSILONS = (1000.0, 100.0, 10.0, 1.0)  # of local noise, each report
CENTRAL = (8.0, 1.0)  # of central noise, the whole run
DELTA = 1e-4
JSON, PAGE, PICTURE = "defences.json", "defences.html", "defences.png"


@dataclass(frozen=True)
class Countermeasure:
    """A change of the experiment, of what the attacker sees, or of both."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Defended:
    """What came of one: leakage and utility, or why it could not be."""

    name: str
    summary: dict[str, Any] | None = None
    metric: str = ""
    utility: float = math.nan
    refused: str = ""


def usual_defences(experiment: Experiment, options: AttackOptions, device: Device) -> list[Countermeasure]:
    """None, a clip, noise of clients and of the server, top-k, secret sums, more examples.

    Updates are clipped to the median length of the victims' own.
    """
    if experiment.transform or experiment.secure is not None:
        raise ConfigError(
            "--defences: the experiment has transforms or [secure] already. Give the one without, or attack it alone."
        )
    seen = observe(attacked_setup(experiment, options, device), min(options.victims, 64), 1, options.round)
    lengths = sum((leaf.flatten(1) ** 2).sum(1) for leaf in tree.leaves(seen.target)) ** 0.5
    clip = [{"name": "equal_weights"}, {"name": "clip_l2", "max_norm": float(f"{float(lengths.median()):.3g}")}]
    images = options.images or int(seen.victims.examples.double().mean())
    most_held = int(attacked_setup(experiment, replace(options, images=None), device).training.sizes.max())
    more = [images * k for k in (2, 4) if images * k <= most_held]
    local = [_noisy(f"clip, local noise, epsilon {e:g}", clip, "local_gaussian", e) for e in EPSILONS]
    central = [
        one
        for e in CENTRAL
        for one in (
            _noisy(f"central noise, epsilon {e:g}, seen by the server", clip, "gaussian_noise", e),
            _noisy(f"central noise, epsilon {e:g}, as released", clip, "gaussian_noise", e, {"view": "released"}),
        )
    ]
    return [
        Countermeasure("none"),
        Countermeasure("clip", {"transform": clip}),
        *local,
        *central,
        *(
            Countermeasure(f"top-k, {share:.0%}", {"transform": [{"name": "top_k", "share": share}]})
            for share in (0.1, 0.01)
        ),
        Countermeasure("secure sum", {"transform": clip, "secure": {"protocol": "secagg", "mode": "cost"}}),
        *(Countermeasure(f"{n} examples a client", {}, {"images": n}) for n in more),
    ]


def _noisy(
    name: str, clip: list[Any], noise: str, epsilon: float, options: Mapping[str, Any] | None = None
) -> Countermeasure:
    return Countermeasure(
        name, {"transform": [*clip, {"name": noise, "epsilon": epsilon, "delta": DELTA}]}, options or {}
    )


def compare_defences(
    experiment: Experiment,
    options: AttackOptions,
    defences: Sequence[Countermeasure],
    out: Path,
    device: Device = "auto",
    heard: Heard = lambda name, done, of: None,
) -> list[Defended]:
    """Attack under each, and run each to its end in `out`; runs that are done are not done again."""
    found = []
    for number, defence in enumerate(defences):
        heard(defence.name, number, len(defences))
        try:
            found.append(_defended(experiment, options, defence, out, device))
        except AtollError as e:
            found.append(Defended(defence.name, refused=str(e)))
    heard("", len(defences), len(defences))
    if not any(one.summary for one in found):
        raise ConfigError(f"--defences: {found[0].refused}")
    return found


def _defended(
    experiment: Experiment, options: AttackOptions, defence: Countermeasure, out: Path, device: Device
) -> Defended:
    changed = Experiment.parse({**experiment.complete(), **defence.changes, "label": defence.name})
    how = replace(options, **defence.options)
    summary = attack(changed, how, device).summary
    name = "".join(c if c.isalnum() else "-" for c in defence.name)
    utility = attacked_setup(changed, how, device).experiment
    ran = run(utility, out / "runs" / name, resume=True, device=device, progress=False)
    metric = ran.info["metric"]
    return Defended(defence.name, summary, metric, float(ran.final[metric]))


def defence_table(found: Sequence[Defended]) -> TextTable:
    """A row for each."""
    scores = ("identified", "a guess", "SSIM", "MSE", "labels")
    metric = next((one.metric for one in found if one.metric), "utility")
    rows = []
    for one in found:
        if one.summary is None:
            rows.append(row(one.name, *["-"] * 6, one.refused))
            continue
        given = one.summary["scores"]
        hit = one.summary["identification"]
        cells = [f"{hit['rate']:.3f}", f"{hit['chance']:.3f}"]
        cells += [_mean(given, name) for name in ("ssim", "mse", "label_accuracy")]
        seen = "1" if one.summary["clients"] == 1 else f"a mean of {one.summary['clients']}"
        rows.append(row(one.name, *cells, f"{one.utility:.3f}", seen))
    heads = (*text_columns("defence"), *number_columns(*scores, metric), *text_columns("updates seen"))
    return TextTable(heads, tuple(rows), "Leakage against utility")


def _mean(scores: Mapping[str, Any], name: str) -> str:
    return f"{scores[name]['mean']:.3f}" if name in scores else "-"


def write_defences(found: Sequence[Defended], label: str, out: Path) -> Path:
    """The table and the picture as one page, the picture as a file, and everything as JSON."""
    points = [
        LeakagePoint(one.name, hit["rate"], tuple(hit["interval"]), one.utility)
        for one in found
        if one.summary is not None and (hit := one.summary["identification"])
    ]
    metric = next(one.metric for one in found if one.metric)
    plot = leakage_plot(points, "share of examples identified", metric)
    kept = [{**vars(one), "utility": None if math.isnan(one.utility) else one.utility} for one in found]
    first = next(one.summary for one in found if one.summary is not None)
    lead = f"{first['title']} on {first['victims']} victims, round {first['round']}, under each defence."
    out.mkdir(parents=True, exist_ok=True)
    replace_text(out / JSON, json.dumps(kept, indent=1) + "\n")
    replace_text(out / PAGE, attack_page(f"What lowers leakage: {label}", lead, [], [plot], [defence_table(found)]))
    (out / PICTURE).write_bytes(plot.picture("png"))
    return out / PAGE
