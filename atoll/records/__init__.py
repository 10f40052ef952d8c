"""Runs, sweeps and suites on disk: one reader and one writer of their folders. Never torch, but to load tensors.

    layout.py            the names and formats of all files      atomic.py           whole files, strict JSON
    run_folder.py        a run: `RunFolder`                      lock.py             who is at work on a folder
    record_lines.py      the lines of its record                 run_record.py       all of a run, read at once
    status.py            how runs stand, in words                audit_file.py       attacks on a run's model
    sweep_folder.py      a sweep: `SweepFolder`                  locate.py           what stands at a path
    suite_folder.py      a suite: `SuiteFolder`                  nested.py           values in nested tables
    cells.py             a suite's results as values             results_file.py     the same as a file
    privacy_claims.py    what a run says of its privacy          privacy_labels.py   two such claims side by side
    audits.py            what attacks say against it             published.py        what papers report
    versus_published.py  ours and theirs, with a verdict     traffic.py          bytes per round and until an aim
    security_level.py    what was seen of its clients            round_seconds.py    virtual seconds of a round
    attack_outcome.py    what attackers made of its model        worst_case.py       the worst over an axis of a suite

>>> run = Trace(0, "digest", rounds=(1, 2, 3), values=(0.5, 0.8, 0.7), bytes=(9, 18, 27), seconds=(1.0, 2.0, 3.0))
>>> run.last, run.best(higher=True)
(0.7, 0.8)
"""

from atoll.records.atomic import as_json, clean, replace_bytes, replace_text
from atoll.records.attack_outcome import AttackOutcome, attack_for_results, attack_outcome, attacks_side_by_side
from atoll.records.audit_file import audit_path, read_audit, write_audit
from atoll.records.audits import AttackBound, alarm, attack_bounds, audit_for_results, contradicted
from atoll.records.cells import Cell, Results, Trace, Trial, Tuning, When
from atoll.records.certificate_file import certificate_path, read_certificate, write_certificate
from atoll.records.layout import REPORT
from atoll.records.locate import all_runs_at, is_results, is_run, is_sweep, results_below, runs_at
from atoll.records.nested import find, has, number_or_nan
from atoll.records.privacy_claims import (
    CLAIM_KINDS,
    EPSILON_KEYS,
    SIMULATION,
    Claim,
    ClaimKind,
    cell_claims,
    claims,
    claims_for_results,
    finite_or_none,
    round_up,
    shown_delta,
    shown_upper,
    weakest_claims,
)
from atoll.records.privacy_labels import promised, promises_side_by_side, same_promises
from atoll.records.published import Published, published_figure, published_table, published_tables
from atoll.records.record_lines import RecordLine
from atoll.records.results_file import read_results, write_results
from atoll.records.round_seconds import RoundSeconds, overhead_versus_published, round_seconds
from atoll.records.run_folder import Info, RunFolder
from atoll.records.run_record import Clients, Floats, Record, Series, read_inputs, read_runs
from atoll.records.security_level import (
    LEVELS,
    SecurityLevel,
    levels_side_by_side,
    security_for_results,
    security_level,
    weakest_level,
)
from atoll.records.status import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    RUNNING,
    WAITING,
    ended,
    failed,
    reached_end,
    stopped_early,
    why_failed,
)
from atoll.records.suite_folder import SuiteFolder
from atoll.records.sweep_folder import SweepFolder, keep_traceback
from atoll.records.traffic import CellTraffic, Spent, aim, baseline_of, traffic, traffic_versus_published
from atoll.records.upgrade import experiment_digest, renamed_option
from atoll.records.versus_published import MeanOverSeeds, VersusPublished, compare_with_published
from atoll.records.worst_case import (
    BestSetting,
    ScoreGrid,
    WorstCase,
    best_settings,
    grids,
    worst_by_method,
    worst_case,
)

__all__ = [
    "CLAIM_KINDS",
    "EPSILON_KEYS",
    "FAILED",
    "FINISHED",
    "INTERRUPTED",
    "LEVELS",
    "REPORT",
    "RUNNING",
    "SIMULATION",
    "WAITING",
    "AttackBound",
    "AttackOutcome",
    "BestSetting",
    "Cell",
    "CellTraffic",
    "Claim",
    "ClaimKind",
    "Clients",
    "Floats",
    "Info",
    "MeanOverSeeds",
    "Published",
    "Record",
    "RecordLine",
    "Results",
    "RoundSeconds",
    "RunFolder",
    "ScoreGrid",
    "SecurityLevel",
    "Series",
    "Spent",
    "SuiteFolder",
    "SweepFolder",
    "Trace",
    "Trial",
    "Tuning",
    "VersusPublished",
    "When",
    "WorstCase",
    "aim",
    "alarm",
    "all_runs_at",
    "as_json",
    "attack_bounds",
    "attack_for_results",
    "attack_outcome",
    "attacks_side_by_side",
    "audit_for_results",
    "audit_path",
    "baseline_of",
    "best_settings",
    "cell_claims",
    "certificate_path",
    "claims",
    "claims_for_results",
    "clean",
    "compare_with_published",
    "contradicted",
    "ended",
    "experiment_digest",
    "failed",
    "find",
    "finite_or_none",
    "grids",
    "has",
    "is_results",
    "is_run",
    "is_sweep",
    "keep_traceback",
    "levels_side_by_side",
    "number_or_nan",
    "overhead_versus_published",
    "promised",
    "promises_side_by_side",
    "published_figure",
    "published_table",
    "published_tables",
    "reached_end",
    "read_audit",
    "read_certificate",
    "read_inputs",
    "read_results",
    "read_runs",
    "renamed_option",
    "replace_bytes",
    "replace_text",
    "results_below",
    "round_seconds",
    "round_up",
    "runs_at",
    "same_promises",
    "security_for_results",
    "security_level",
    "shown_delta",
    "shown_upper",
    "stopped_early",
    "traffic",
    "traffic_versus_published",
    "weakest_claims",
    "weakest_level",
    "why_failed",
    "worst_by_method",
    "worst_case",
    "write_audit",
    "write_certificate",
    "write_results",
]
