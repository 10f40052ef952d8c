"""The quickstart with several compressors: accuracy, bytes, and bytes until 90 %. The table of docs/communication.md.

python examples/communication.py [rounds]
"""

import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import atoll

CHAINS: dict[str, dict[str, list[Any]]] = {
    "plain": {},
    "`top_k` 5 %": {"transform": [{"name": "top_k", "share": 0.05}]},
    "`top_k` 5 %, `half`": {"transform": [{"name": "top_k", "share": 0.05}, "half"]},
    "`qsgd` 4 levels, `entropy`": {"transform": [{"name": "qsgd", "levels": 4}, "entropy"]},
    "`drive`": {"transform": ["drive"]},
    "`low_rank` 2": {"transform": [{"name": "low_rank", "rank": 2}]},
    "`sign`, feedback 1": {"transform": [{"name": "sign", "feedback": 1.0}]},
    "`ternary` 5 % both ways": {
        "transform": [{"name": "ternary", "share": 0.05}],
        "broadcast": [{"name": "ternary", "share": 0.05}],
    },
    "`qsgd` both ways": {"transform": ["qsgd"], "broadcast": ["qsgd"]},
}


def row(run: atoll.Run) -> str:
    accuracy = [line["accuracy"] for line in run.history]
    up, down = ([line["bytes"][way] / 1e6 for line in run.history] for way in ("up", "down"))
    first = next((i + 1 for i, x in enumerate(accuracy) if x >= 0.9), None)
    until = "never | -" if first is None else f"{first} | {sum(up[:first]):.2f}"
    return f"{100 * accuracy[-1]:.1f} | {sum(up):.3g} | {sum(down):.3g} | {until}"


def main() -> None:
    quickstart = tomllib.loads(files("atoll.experiment").joinpath("quickstart.toml").read_text())
    quickstart["rounds"] = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    print("| | accuracy | MB up | MB down | 90 % in round | MB up by then |\n|---|---|---|---|---|---|")
    for name, more in CHAINS.items():
        with TemporaryDirectory() as folder:
            print(f"| {name} | {row(atoll.run({**quickstart, **more}, Path(folder) / 'run'))} |", flush=True)


if __name__ == "__main__":
    main()
