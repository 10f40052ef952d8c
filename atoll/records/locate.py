"""What stands at a path that somebody named: a run, a sweep, a folder of runs, or the results of a suite."""

from __future__ import annotations

from pathlib import Path

from atoll.records import layout
from atoll.records.run_folder import RunFolder
from atoll.records.sweep_folder import SweepFolder


def is_run(path: Path) -> bool:
    return RunFolder(path).exists()


def is_results(path: Path) -> bool:
    """Is it the folder of a suite that has results, or a file with such?"""
    return (path / layout.RESULTS).is_file() or (path.is_file() and path.suffix == ".json")


def runs_at(place: Path) -> list[Path]:
    """The run folders that a path stands for: itself, the cells of a sweep, or the runs below it."""
    if is_run(place):
        return [place]
    sweep = SweepFolder(place)
    if sweep.exists():
        return [folder for cell in sweep.info()["cells"] if is_run(folder := place / str(cell["folder"]))]
    inside = sweep.cells if sweep.cells.is_dir() else place
    return sorted(path.parent for path in inside.glob(f"*/{layout.RUN}"))


def results_below(path: Path) -> list[Path]:
    """Every results.json of a folder, however deep; a file stands for itself."""
    return sorted(path.rglob(layout.RESULTS)) if path.is_dir() else [path]
