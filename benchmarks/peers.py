"""The same eight workloads on Atoll and on other simulators of federated learning, each in its own environment.

    python benchmarks/peers.py [PEER ...] [--workloads a b c d e f g h] [--repeats 1] [--again] [--install-only]

Environments are made once from `benchmarks/peers/<peer>/requirements.txt` (pinned) and kept. Peers run one at a time;
results go to benchmarks/results/peers.json as they come and are kept by later calls while neither the environment nor
the adapter has changed. A peer that does not install or run is in the table with the reason. See docs/peers.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
from common import WORKLOADS
from environment import InstallError, environment, refusal
from process import watch
from result import figures, lines_of_code, load, markdown

HERE = Path(__file__).resolve().parent
TWO = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")


@dataclass(frozen=True)
class Peer:
    title: str
    folder: str  # of the adapter and the requirements; the environment is shared by those who share it
    distribution: str
    framework: str = "torch"
    launch: tuple[str, ...] = ()  # interpreter arguments before the adapter
    fewer: Mapping[str, int] | None = None  # rounds, where a round takes long


PEERS = {
    "atoll": Peer("Atoll", "atoll", "atoll"),
    "pfl": Peer("pfl-research", "pfl", "pfl"),
    "pfl-2": Peer("pfl-research, 2 processes", "pfl", "pfl", launch=TWO),
    "flower": Peer("Flower", "flower", "flwr", fewer={"a": 15}),
    "fedlab": Peer("FedLab", "fedlab", "fedlab"),
    "fluke": Peer("fluke", "fluke", "fluke-fl"),
    "fedjax": Peer("fedjax", "fedjax", "fedjax", framework="jax"),
    "fedml": Peer("FedML", "fedml", "fedml"),
    "appfl": Peer("APPFL", "appfl", "appfl", fewer={"a": 10}),
    "bare": Peer("a bare PyTorch loop", "bare", "torch"),
}
# No adapter: what pip says of them is in the table, or else that they want one.
TRIED = {
    "blazefl": ("BlazeFL", "blazefl==3.0.0"),
    "fedscale": ("FedScale", "fedscale==1.0"),
    "flute": ("FLUTE", "msrflute"),
}
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "WANDB_MODE": "disabled",
    "PYTHONPATH": str(HERE / "peers"),
}


def prepare(name: str, cache: Path) -> dict[str, Any]:
    """What is known of a peer before it runs; with an `error` if it cannot be installed."""
    peer = PEERS[name]
    source = (HERE / "peers" / peer.folder / "run.py").read_text()
    known: dict[str, Any] = {"title": peer.title, "lines": lines_of_code(source)}
    try:
        made = environment(peer.folder, HERE / "peers" / peer.folder / "requirements.txt", cache)
    except InstallError as error:
        return {**known, "error": str(error)}
    key = hashlib.sha256(f"{made['digest']}{source}{peer.launch}".encode()).hexdigest()[:16]
    versions = made["versions"]
    return {
        **known,
        "version": versions[peer.distribution],
        "framework": f"{peer.framework} {versions[peer.framework]}",
        "megabytes": made["megabytes"],
        "distributions": made["distributions"],
        "python": str(made["python"]),
        "key": key,
    }


def measure(name: str, workload: str, known: Mapping[str, Any], rounds: int, options: Options) -> dict[str, Any]:
    """Run a peer once on a workload, and check what it learned."""
    peer, data = PEERS[name], options.cache / "data"
    home = options.cache / "home"  # not the user's: some peers write into it
    home.mkdir(exist_ok=True)
    adapter = HERE / "peers" / peer.folder / "run.py"
    with tempfile.TemporaryDirectory(prefix="peers-") as scratch:
        learned = Path(scratch) / "learned.npz"
        command = [known["python"], *peer.launch, adapter, workload]
        command += ["--rounds", str(rounds), "--data", data, "--out", learned]
        env = os.environ | QUIET | {"HOME": str(home)}
        log = options.cache / f"{name}-{workload}.log"
        outcome = watch([str(part) for part in command], env, options.limit, log, Path(scratch))
        found = figures(outcome, rounds, options.limit)
        if "error" not in found:
            found |= json.loads(reference(options, "check", str(data), workload, str(rounds), str(learned)))
    return found


def reference(options: Options, *arguments: str) -> str:
    """Run reference.py where torch is: in Atoll's environment."""
    made = environment("atoll", HERE / "peers" / "atoll" / "requirements.txt", options.cache)
    command = [made["python"], HERE / "peers" / "reference.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | QUIET)
    if done.returncode:
        sys.exit(f"benchmarks/peers/reference.py {arguments[0]}: {done.stderr}")
    return done.stdout


@dataclass(frozen=True)
class Options:
    peers: list[str]
    workloads: list[str]
    cache: Path
    out: Path
    repeats: int
    rounds: int | None
    limit: float
    again: bool
    install_only: bool


def main() -> None:
    options = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # a peer's processes go with us
    options.cache.mkdir(parents=True, exist_ok=True)
    results = load(options.out)
    results |= {"machine": machine(), "workloads": {name: work.words for name, work in WORKLOADS.items()}}
    kept = results["peers"]
    reference(options, "make", str(options.cache / "data"))
    for name in options.peers:
        known = prepare(name, options.cache)
        same = kept.get(name, {}).get("key") == known.get("key")
        kept[name] = {**known, "runs": kept[name]["runs"] if same and "runs" in kept.get(name, {}) else {}}
        say(f"{known['title']}: {known.get('error') or known['version']}")
        tried = options.cache / PEERS[name].folder / f"tried-{name}"
        if "error" not in known and not tried.exists():  # a first start also fills the peer's own caches
            first = measure(name, "a", known, 2, options)
            say(f"{known['title']}: first start, {first.get('error') or 'runs'}")
            tried.touch()
    for name, (title, requirement) in TRIED.items():
        why = refusal(requirement) or f"{requirement} installs, but has no adapter here (docs/peers.md)"
        kept[name] = {"title": title, "lines": "-", "error": why}
    results["peers"] = {name: kept[name] for name in (*PEERS, *TRIED) if name in kept}
    save(results, options.out)
    for workload in [] if options.install_only else options.workloads:
        for name in options.peers:
            run_pair(name, workload, results, options)
    print(markdown(results))


def run_pair(name: str, workload: str, results: dict[str, Any], options: Options) -> None:
    """Measure a peer on a workload, unless that is done already; of several repeats the fastest counts."""
    known = results["peers"][name]
    rounds = (PEERS[name].fewer or {}).get(workload, WORKLOADS[workload].rounds)
    rounds = min(rounds, options.rounds or rounds)
    done = known["runs"].get(workload, {}).get("rounds") == rounds  # a failure has no rounds, and is tried again
    if "error" in known or (done and not options.again):
        return
    tries = [measure(name, workload, known, rounds, options) for _ in range(options.repeats)]
    best = min(tries, key=lambda found: found.get("seconds", float("inf")))
    known["runs"][workload] = best
    say(f"({workload}) {known['title']}: {best.get('error') or format(best['seconds'], '.4f') + ' s per round'}")
    save(results, options.out)


def save(results: Mapping[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = {name: {k: v for k, v in peer.items() if k != "python"} for name, peer in results["peers"].items()}
    path.write_text(json.dumps({**results, "peers": hidden}, indent=1) + "\n")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} cores of {names[0] if names else platform.machine()}, {platform.system()}, {date.today()}"


def parsed() -> Options:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"of {', '.join(PEERS)} (all)")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "atoll" / "peers"
    parser.add_argument("--cache", type=Path, default=base, help="where environments and data are kept (%(default)s)")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "peers.json")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each pair; the fastest counts")
    parser.add_argument("--rounds", type=int, help="at most so many, to see whether all is well (2 or more)")
    parser.add_argument("--limit", type=float, default=240, help="seconds for one run")
    parser.add_argument("--again", action="store_true", help="measure also what is done already")
    parser.add_argument("--install-only", action="store_true", help="make the environments and try every peer once")
    given = parser.parse_args()
    if unknown := [name for name in given.peers if name not in PEERS]:
        parser.error(f"no such peer: {', '.join(unknown)}; there are {', '.join(PEERS)}")
    return Options(**{**vars(given), "peers": given.peers or list(PEERS)})


if __name__ == "__main__":
    main()
