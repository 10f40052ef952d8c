"""Drawing a figure of leakage: every attack on every series at every x; what is done is not done again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from atoll.attacks.leakage import AttackOptions, attack
from atoll.errors import AtollError
from atoll.experiment import Device, Experiment, find_device, override, set_at_path
from atoll.records import replace_text
from atoll.report import LeakageCurve, TextTable, attack_page, leakage_curves, number_columns, row, text_columns
from atoll.runs import hardware
from atoll.suites.experiments import folder_name
from atoll.suites.figures import IMAGES, LeakageFigure
from atoll.suites.merge_tables import merged

JSON, PAGE, PICTURE, POINTS = "leakage.json", "leakage.html", "leakage.png", "points"
Heard = Callable[[str, int, int], None]  # of this point, so many of so many are done


@dataclass(frozen=True)
class LeakagePlanned:
    """One point: an experiment, and how it is attacked."""

    series: str
    way: str
    x: int | float | None
    experiment: Experiment
    options: AttackOptions

    @property
    def name(self) -> str:
        return folder_name([self.series, self.way, *([] if self.x is None else [f"{self.x:g}"])])

    @property
    def asked(self) -> dict[str, Any]:
        """What the point is of, as plain values: the same point has the same."""
        return {"experiment": self.experiment.digest(), "options": dict(vars(self.options))}


@dataclass(frozen=True)
class LeakageDrawn:
    """What came of a figure."""

    rows: list[dict[str, Any]]
    left: int  # points that are not there yet
    page: Path | None


def planned(figure: LeakageFigure, overrides: Sequence[str] = ()) -> list[LeakagePlanned]:
    """Every point of a figure, checked; or one ConfigError."""
    return list(_points(figure, overrides))


def _points(figure: LeakageFigure, overrides: Sequence[str]) -> Iterator[LeakagePlanned]:
    for x in figure.values or (None,):
        for series, changes in figure.series.items():
            raw = override(merged(figure.base, changes), [o.removeprefix("base.") for o in overrides])
            if x is not None and figure.x != IMAGES:
                set_at_path(raw, figure.x.split("."), x, f"leakage.{figure.name}.x")
            experiment = Experiment.parse(raw)
            for way, options in figure.attack.items():
                how = AttackOptions(**options)
                yield LeakagePlanned(
                    series,
                    way,
                    x,
                    experiment,
                    replace(how, images=int(x)) if x is not None and figure.x == IMAGES else how,
                )


def draw_leakage(
    figure: LeakageFigure,
    folder: Path,
    overrides: Sequence[str] = (),
    device: Device = "auto",
    until: float | None = None,
    heard: Heard = lambda name, done, of: None,
) -> LeakageDrawn:
    """Attack what was not attacked yet, until a time; write table, picture and page of what there is."""
    points = planned(figure, overrides)
    found: list[dict[str, Any]] = []
    for number, point in enumerate(points):
        heard(point.name, number, len(points))
        done = _read(folder, point)
        if done is None and (until is None or time.monotonic() < until):
            done = _attacked(point, device)
            _write(folder, point, done)
        if done is not None:
            found.append(done)
    return LeakageDrawn(found, len(points) - len(found), write_figure(figure, found, folder) if found else None)


def _attacked(point: LeakagePlanned, device: Device) -> dict[str, Any]:
    """Scores of one point; or why there are none."""
    where = {"series": point.series, "attack": point.way, "x": point.x}
    machine = {"hardware": hardware(find_device(device))}
    try:
        summary = attack(point.experiment, point.options, device).summary
    except AtollError as e:
        return {**where, **machine, "refused": str(e)}
    scores = dict(summary.get("scores", {}))
    if "identification" in summary:
        hit = summary["identification"]
        scores["identified"] = {"mean": hit["rate"], "half": (hit["interval"][1] - hit["interval"][0]) / 2}
    kept = {k: summary[k] for k in ("victims", "steps_of_clients", "seconds")}
    return {**where, **machine, **kept, "scores": scores}


def _place(folder: Path, point: LeakagePlanned) -> Path:
    return folder / POINTS / f"{point.name}.json"


def _write(folder: Path, point: LeakagePlanned, done: Mapping[str, Any]) -> None:
    place = _place(folder, point)
    place.parent.mkdir(parents=True, exist_ok=True)
    replace_text(place, json.dumps({"asked": point.asked, "done": done}, indent=1) + "\n")


def _read(folder: Path, point: LeakagePlanned) -> dict[str, Any] | None:
    """What an earlier call left, if it was asked for the same."""
    place = _place(folder, point)
    if not place.exists():
        return None
    there = json.loads(place.read_text())
    done: dict[str, Any] = there["done"]
    return done if there["asked"] == point.asked else None


def write_figure(figure: LeakageFigure, found: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    """leakage.json, the picture, and a page."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {"name": figure.name, "title": figure.title, "x": figure.x, "scores": list(figure.scores)}
    replace_text(folder / JSON, json.dumps({**about, "rows": list(found)}, indent=1) + "\n")
    plot = leakage_curves(curves(figure, found), figure.scores, figure.x or "series", figure.title or figure.name)
    (folder / PICTURE).write_bytes(plot.picture("png"))
    lead = f"{len(found)} attacks; each is on updates as the experiment's own algorithm makes them."
    page = attack_page(figure.title or figure.name, lead, [], [plot], [figure_table(figure, found)])
    replace_text(folder / PAGE, page)
    return folder / PAGE


def curves(figure: LeakageFigure, found: Sequence[Mapping[str, Any]]) -> list[LeakageCurve]:
    """A line for each series and attack; without an x, a point for each series."""
    lines: dict[str, dict[str, list[tuple[Any, float, float]]]] = {}
    for one in found:
        if "scores" not in one:
            continue
        line = lines.setdefault(f"{one['attack']}, {one['series']}" if figure.x else one["attack"], {})
        for score in figure.scores:
            if score in one["scores"]:
                value = one["scores"][score]
                at = one["x"] if figure.x else one["series"]
                line.setdefault(score, []).append((at, value["mean"], value["half"] or 0.0))
    return [LeakageCurve(name, scores) for name, scores in lines.items()]


def figure_table(figure: LeakageFigure, found: Sequence[Mapping[str, Any]]) -> TextTable:
    """A row for each point."""
    heads = (*text_columns("series", "attack", *([figure.x] if figure.x else [])), *number_columns(*figure.scores))
    rows = []
    for one in found:
        where = [one["series"], one["attack"], *([f"{one['x']:g}"] if figure.x else [])]
        given = one.get("scores", {})
        rows.append(row(*where, *(f"{given[s]['mean']:.3f}" if s in given else "-" for s in figure.scores)))
    return TextTable(heads, tuple(rows), figure.title or figure.name)
