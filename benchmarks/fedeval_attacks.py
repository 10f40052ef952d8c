"""FedEval's Figures 6 to 8: FC and DLG by number of images, by local epochs, and FedSGD against FedAvg, on MNIST.

    python -m benchmarks.fedeval_attacks [--victims 8] [--steps 300] [--unrolled 10] [--only 6,7,8] [--data mnist]
                                         [--device cuda] [--json FILE]

Settings of the paper (Chai et al., 2020): an MLP of 512 and 512, 100 clients, rate 0.5, DLG by Adam at 0.1 x 0.98 every
100 steps. Clients are IID: with one class each there would be no labels to find. Dropout is off: the attacker does not
know a client's masks. FedAvg takes the whole client as one batch (figures 6 and 7) or single images (figure 8: B = 1,
E = 20). `dlg` takes an update for one step, as FedEval's does; `dlg, unrolled` simulates all of them, up to so many
epochs (figures 7 and 8). Labels of FC are recovered from the update (FedEval asks a trained CNN). L2 is of pictures
from 0 to 1.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from atoll.attacks.leakage import AttackOptions, attack
from atoll.experiment import Experiment, find_device
from atoll.runs import hardware

IMAGES, EPOCHS, FEW = (1, 2, 5, 10, 20, 50), (1, 5, 10, 20, 50, 100), 10
SGD, AVG = ({"name": name, "lr": 0.5} for name in ("fedsgd", "fedavg"))
Point = tuple[str, str, int, int, dict[str, Any], dict[str, Any]]  # figure, algorithm, images, epochs, entry, local


def experiment(data: str, algorithm: dict[str, Any], local: dict[str, Any]) -> Experiment:
    partition = {"name": "iid", "clients": 100}
    model = {"name": "mlp", "widths": [512, 512]}
    return Experiment.parse(
        {
            "rounds": 1,
            "data": data,
            "partition": partition,
            "task": {"model": model},
            "local": local,
            "algorithm": algorithm,
        }
    )


def points(figures: set[str]) -> Iterator[Point]:
    if "6" in figures:
        for n in IMAGES:
            yield "6", "fedsgd", n, 1, SGD, {"batch": 0}
            yield "6", "fedavg", n, 5, AVG, {"batch": 0, "epochs": 5}
    if "7" in figures:
        for e in EPOCHS:
            yield "7", "fedavg", FEW, e, AVG, {"batch": 0, "epochs": e}
    if "8" in figures:
        yield "8", "fedsgd", FEW, 1, SGD, {"batch": 0}
        yield "8", "fedavg", FEW, 20, AVG, {"batch": 1, "epochs": 20}


def ways(
    figure: str, victims: int, images: int, epochs: int, steps: int, unrolled: int
) -> Iterator[tuple[str, AttackOptions]]:
    yield "fc", AttackOptions("fc", 32, images=images)
    yield "dlg", AttackOptions("dlg", victims, images=images, steps=steps, one_step=True)
    if figure != "6" and 1 < epochs <= unrolled:
        yield "dlg, unrolled", AttackOptions("dlg", victims, images=images, steps=steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--victims", type=int, default=8)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--unrolled", type=int, default=5)
    parser.add_argument("--only", default="6,7,8")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    print("| figure | algorithm | images | epochs | attack | labels | L2 | SSIM | identified | seconds |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for figure, name, images, epochs, algorithm, local in points(set(given.only.split(","))):
        whole = experiment(given.data, algorithm, local)
        for way, options in ways(figure, given.victims, images, epochs, given.steps, given.unrolled):
            found = attack(whole, options, given.device).summary
            score = {k: found["scores"][k]["mean"] for k in ("label_accuracy", "l2", "ssim")}
            rows.append(
                {"figure": figure, "algorithm": name, "images": images, "epochs": epochs, "attack": way, **found}
            )
            cells = (figure, name, images, epochs, way, *(f"{x:.3f}" for x in score.values()))
            hit, seconds = found["identification"]["rate"], found["seconds"]["attack"]
            print(f"| {' | '.join(map(str, cells))} | {hit:.3f} | {seconds:.1f} |", flush=True)
    if given.json:
        about = {"date": str(date.today()), "hardware": hardware(find_device(given.device)), "rows": rows}
        given.json.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
