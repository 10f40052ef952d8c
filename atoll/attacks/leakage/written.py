"""What an attack leaves behind: attack.json, the pictures, and a page that opens offline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from atoll.attacks.leakage.one_attack import Finding
from atoll.records import replace_text
from atoll.report import attack_page, reconstructions

JSON, PAGE, ARRAYS = "attack.json", "attack.html", "reconstructions.npz"
_KEPT = 256  # pictures in the file of arrays
NAMES = {
    "label_accuracy": "labels found",
    "mse": "MSE",
    "l2": "L2",
    "psnr": "PSNR, dB",
    "ssim": "SSIM",
    "distance": "distance of the updates",
}


def write_finding(finding: Finding, label: str, out: Path) -> Path:
    """All of it into a folder; the page's path."""
    out.mkdir(parents=True, exist_ok=True)
    replace_text(out / JSON, json.dumps(finding.summary, indent=1) + "\n")
    drawn = []
    if finding.originals.ndim == 4:
        np.savez_compressed(
            out / ARRAYS,
            originals=finding.originals[:_KEPT].astype(np.float32),
            reconstructions=finding.found[:_KEPT].astype(np.float32),
            labels=finding.true_labels[:_KEPT],
        )
        drawn = [reconstructions(finding.originals, finding.found)]
    summary = finding.summary
    title = f"{summary['title']} on {label}"
    page = attack_page(title, lead(summary), facts(summary), drawn, knows=knowledge(summary))
    replace_text(out / PAGE, page)
    return out / PAGE


def lead(summary: Mapping[str, Any]) -> str:
    """What it came to, in a sentence."""
    if "property" in summary:
        found = summary["property"]
        return f"{found['property']}: told with an AUC of {found['auc']:.3f} (0.5 is a guess)."
    if "identification" not in summary:
        return f"{summary['scores']['label_accuracy']['mean']:.1%} of the labels were found."
    hit = summary["identification"]
    return (
        f"{hit['rate']:.1%} of the originals are the nearest of {hit['among']:,} candidates to their reconstruction "
        f"(a guess: {hit['chance']:.1%})."
    )


def facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values, for a page or a terminal."""
    rows = [("attack", f"{summary['title']}{', ' + summary['source'] if summary['source'] else ''}")]
    few, many = summary["examples"]["least"], summary["examples"]["most"]
    held = f"{many}" if few == many else f"{few} to {many}"
    seen = "single updates" if summary["clients"] == 1 else f"means of {summary['clients']} clients"
    steps = "1 local step" if summary["steps_of_clients"] == 1 else f"{summary['steps_of_clients']} local steps"
    rows.append(("victims", f"{summary['victims']} {seen}; examples of a client: {held}; {steps}"))
    rows.append(("seen", "what arrives at the server" if summary["view"] == "server" else "what the server releases"))
    rows.append(("round", str(summary["round"])))
    rows += [(NAMES[name], _estimate(found)) for name, found in summary.get("scores", {}).items()]
    if "identification" in summary:
        hit = summary["identification"]
        low, high = hit["interval"]
        rows.append(
            (
                "identified",
                f"{hit['rate']:.3f} [{low:.3f}, {high:.3f}] of {hit['among']:,}; a guess: {hit['chance']:.3g}",
            )
        )
    if "property" in summary:
        found = summary["property"]
        low, high = found["auc_interval"]
        rows.append(("property", found["property"]))
        rows.append(("victims with it, without", f"{found['with']}, {found['without']}"))
        rows.append(("AUC", f"{found['auc']:.3f} [{low:.3f}, {high:.3f}]"))
        rows.append(("accuracy", f"{found['accuracy']:.3f}"))
    seconds = summary["seconds"]
    rows.append(("seconds", f"{seconds['attack']:.3g} for the attack, {seconds['observe']:.3g} for the updates"))
    return rows


def knowledge(summary: Mapping[str, Any]) -> list[str]:
    """The assumptions, said out loud."""
    method, options = summary["method"], summary["options"]
    lines = ["the model that was broadcast, and the update (or mean) as it arrived, after all transforms"]
    if method not in ("fc", "labels", "property"):
        if options["one_step"]:
            lines.append("not that clients make several steps: the update is taken for one")
        lines.append("the algorithm, its rates, batch size, epochs and number of examples; not their order")
        labels = "known" if options["labels"] == "known" else "recovered from the update"
        lines.append("labels: looked for with the examples" if method.startswith("dlg") else f"labels: {labels}")
    if method == "gradinversion":
        sent = options["statistics"] == "sent"
        lines.append(
            f"BatchNorm's statistics: {'as the client sends them' if sent else 'the running ones of the model'}"
        )
    if method == "property":
        lines.append("data like the clients' (the test data), of which shadow clients are made")
    lines.append("the range of the inputs, but no example")
    return lines


def _estimate(found: Mapping[str, Any]) -> str:
    half = found["half"]
    return f"{found['mean']:.4g}" + ("" if half is None else f" ± {half:.2g}")
