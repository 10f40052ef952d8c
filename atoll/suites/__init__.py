"""Suites: a table of experiments in; tuned fairly, run at paired seeds, and collected into results.json.

    tables.py         the file, checked             suite.py           a suite, its values, blocks and sizes
    merge_tables.py   experiments in part           expand.py          from a suite to places, the cells of its table
    tuning.py         which settings are tried      experiments.py     from places to experiments, all checked
    run.py            all of it in one call         cleanup.py         what a finished run may lose
    collect.py        from run folders to results   suite_outcome.py   what came of a suite
    skew.py           how unlike the clients are    suite_progress.py  a bar with the time that is left
    terminal.py       tables for a terminal         estimate_steps.py  how many training steps there are to do

`atoll.bench.run("sixty-seconds", out="runs/bench/mine", size="smoke").results` is an `atoll.records.Results`.
"""

from atoll.suites.experiments import folder_name, unique
from atoll.suites.run import Work, command, default_folder, prepare, run
from atoll.suites.skew import skew, skew_of
from atoll.suites.suite import Suite, parse, read, shipped
from atoll.suites.suite_outcome import Bench
from atoll.suites.suite_progress import SuiteBar
from atoll.suites.terminal import describe_suites, plan_table, second_stage

__all__ = [
    "Bench",
    "Suite",
    "SuiteBar",
    "Work",
    "command",
    "default_folder",
    "describe_suites",
    "folder_name",
    "parse",
    "plan_table",
    "prepare",
    "read",
    "run",
    "second_stage",
    "shipped",
    "skew",
    "skew_of",
    "unique",
]
