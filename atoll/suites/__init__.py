"""Suites: a table of experiments in; tuned fairly, run at paired seeds, and collected into results.json.

    tables.py         the file, checked             suite.py           a suite, its values, blocks and sizes
    merge_tables.py   experiments in part           expand.py          from a suite to places, the cells of its table
    tuning.py         which settings are tried      experiments.py     from places to experiments, all checked
    run.py            all of it in one call         cleanup.py         what a finished run may lose
    collect.py        from run folders to results   suite_outcome.py   what came of a suite
    skew.py           how unlike the clients are    suite_progress.py  a bar with the time that is left
    terminal.py       tables for a terminal         estimate_steps.py  how many training steps there are to do
    figures.py        leakage and cards, declared   leakage_figure.py  attacks on updates, against what is varied

`atoll.bench.run("sixty-seconds", out="runs/bench/mine", size="smoke").results` is an `atoll.records.Results`.
"""

from atoll.suites.expand import cells_at
from atoll.suites.experiments import folder_name, unique
from atoll.suites.figures import CardFigure, LeakageFigure
from atoll.suites.leakage_figure import LeakageDrawn, draw_leakage, figure_table, planned
from atoll.suites.merge_tables import merged
from atoll.suites.run import Work, command, default_folder, prepare, run
from atoll.suites.skew import skew, skew_of
from atoll.suites.suite import Suite, parse, read, shipped
from atoll.suites.suite_outcome import Bench
from atoll.suites.suite_progress import SuiteBar
from atoll.suites.terminal import describe_suites, plan_table, second_stage

__all__ = [
    "Bench",
    "CardFigure",
    "LeakageDrawn",
    "LeakageFigure",
    "Suite",
    "SuiteBar",
    "Work",
    "cells_at",
    "command",
    "default_folder",
    "describe_suites",
    "draw_leakage",
    "figure_table",
    "folder_name",
    "merged",
    "parse",
    "plan_table",
    "planned",
    "prepare",
    "read",
    "run",
    "second_stage",
    "shipped",
    "skew",
    "skew_of",
    "unique",
]
