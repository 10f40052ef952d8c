"""The names of all files in the folders of runs, sweeps and suites, and the format that each kind is written in."""

# A run.
RUN = "run.json"  # the experiment, what it ran with and on, and how it ended
RECORD = "record.jsonl"  # a line for each round
CLOCK = "clock.jsonl"  # in virtual time: a line for each round, with the timestamps of each client
CLIENTS = "clients.json"  # the latest evaluation, client by client
CHECKPOINT = "checkpoint.pt"
CLIENT_STATE = "memory-{rounds}.rows"  # beside a checkpoint: the states of the clients, which may be many
PREPROCESSING = "preprocessing.json"  # what its model takes: shapes, classes, and what is done to a file's columns
MODEL = "model.pt"  # after the last round
OTHER_MODEL = "{name}.pt"  # of several: a moving average is ema.pt
BEST = "best.pt"  # after the round that run.json names as the best
CERTIFICATE = "certificate.json"  # what noisy models certify
AUDIT = "audit.json"  # attacks on the model
PROFILE = "profile"  # a folder, with these:
PHASES, PROFILE_PAGE, TRACE = "phases.json", "profile.html", "trace.json"
REPORT = "report.html"

# A sweep: its table, and a run folder for each cell.
SWEEP = "sweep.json"
SWEEP_LOCK = "sweep.lock"
CELLS = "cells"
ERRORS = "errors"  # tracebacks, by the names of cells

# A suite: a sweep, and what was collected from it.
RESULTS = "results.json"

# Raised when a reader of the old files would misunderstand the new ones.
RUN_FORMAT = 1
SWEEP_FORMAT = 1
RESULTS_FORMAT = 1
