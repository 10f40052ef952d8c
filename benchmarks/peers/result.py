"""From what an adapter said to figures, and from figures to a Markdown table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from common import MARK
from process import Outcome, last_word

BEGIN, END = "# user code", "# end of user code"


def lines_of_code(source: str) -> int:
    """Lines between the markers of an adapter that are neither blank nor only a comment."""
    inside, count = False, 0
    for line in map(str.strip, source.splitlines()):
        if line in (BEGIN, END):
            inside = line == BEGIN
        elif inside and line and not line.startswith("#"):
            count += 1
    if not count:
        raise ValueError(f"no lines between {BEGIN!r} and {END!r}")
    return count


def spoken(output: str) -> dict[str, Any] | None:
    """What an adapter printed last under its mark; None if it did not get that far."""
    said = [line.partition(MARK)[2] for line in output.splitlines() if MARK + "{" in line]
    return json.loads(said[-1]) if said else None


def figures(outcome: Outcome, rounds: int, limit_seconds: float) -> dict[str, Any]:
    """Seconds per round, start-up and memory of a run, or an `error`.

    `seconds` is the median time between the ends of two rounds, so the first round does not count. `startup` is the
    time from the start of the process to the end of its first round, less one steady round.
    """
    if outcome.code is None:
        return {"error": f"not done after {limit_seconds:.0f} s"}
    said = spoken(outcome.output)
    if outcome.code or said is None:
        return {"error": last_word(outcome.output)}
    ends = said["ends"]
    if len(ends) != rounds or rounds < 2:
        return {"error": f"{len(ends)} rounds were seen to end, not {rounds}"}
    steady = median(after - before for before, after in pairwise(ends))
    return {
        "rounds": rounds,
        "seconds": steady,
        "startup": ends[0] - outcome.started - steady,
        "wall": outcome.wall_seconds,
        "peak_mb": round(outcome.peak_bytes / 1e6),
        "processes": outcome.processes,
        "norm": said["norm"],
    }


def markdown(results: Mapping[str, Any]) -> str:
    """All results as Markdown: a table for each workload, then one of what has to be installed and written."""
    peers = results["peers"]
    parts = [results["machine"]]
    for name, words in results["workloads"].items():
        ours = peers.get("atoll", {}).get("runs", {}).get(name, {}).get("seconds")
        head = ["", "s per round", "ratio to Atoll", "peak MB", "processes", "start-up s", "remark"]
        rows = [[peer["title"], *_run(peer, name, ours)] for peer in peers.values()]
        if any(name in peer.get("runs", {}) or "error" in peer for peer in peers.values()):
            parts.append(f"({name}) {words}\n\n" + table(head, rows))
    head = ["", "version", "torch or jax", "installed MB", "distributions", "lines of user code"]
    parts.append(table(head, [[peer["title"], *_installed(peer)] for peer in peers.values()]))
    return "\n\n".join(parts)


def _run(peer: Mapping[str, Any], workload: str, ours: float | None) -> list[str]:
    run = peer.get("runs", {}).get(workload, {})
    if "error" in peer:
        return ["-"] * 5 + [f"does not install: {peer['error']}"]
    if not run:
        return ["-"] * 5 + ["not run"]
    if "error" in run:
        return ["-"] * 5 + [f"does not run: {run['error']}"]
    ratio = f"{run['seconds'] / ours:.2f}" if ours else "-"
    remark = f"learned something else: {run['wrong']}" if run.get("wrong") else ""
    return [_short(run["seconds"]), ratio, str(run["peak_mb"]), str(run["processes"]), f"{run['startup']:.1f}", remark]


def _installed(peer: Mapping[str, Any]) -> list[str]:
    if "error" in peer:
        return ["-"] * 4 + [str(peer["lines"])]
    found = [peer["version"], peer["framework"], peer["megabytes"], peer["distributions"], peer["lines"]]
    return [str(value) for value in found]


def _short(seconds: float) -> str:
    return f"{seconds:.4f}" if seconds < 0.1 else f"{seconds:.3f}" if seconds < 1 else f"{seconds:.2f}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    escaped = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *escaped]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def load(path: Path) -> dict[str, Any]:
    """The results of earlier calls."""
    return json.loads(path.read_text()) if path.exists() else {"peers": {}}
