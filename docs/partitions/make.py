"""Make the pictures of these pages, and the line of numbers below each: `python docs/partitions/make.py`."""

import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch

from atoll import rng
from atoll.data import DATA, PARTITIONS, Dataset, Partition, label_skew
from atoll.data.measures import label_counts
from atoll.data.partition import Vertical, noisy
from atoll.experiment import build, toml
from atoll.report import pictures, theme
from atoll.report.plots import Plot

HERE = Path(__file__).parent
START, END = "<!-- made by make.py -->\n", "<!-- end -->"
BLOCK = re.compile(f"{START}.*?{END}", re.DOTALL)
SIZES = {"quantity_dirichlet", "power_law", "lognormal", "poisson", "fixed", "compose"}  # pages with a histogram
PARENTS = [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]

# name -> (data, options)
EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "iid": ("digits", {"clients": 20}),
    "dirichlet": ("digits", {"clients": 20, "alpha": 0.3}),
    "designed": ("digits", {"clients": 20, "emd": 0.6, "minimum": 20}),
    "quantity_dirichlet": ("digits", {"clients": 20, "alpha": 0.5}),
    "classes": ("digits", {"clients": 20, "per_client": 2}),
    "shards": ("digits", {"clients": 20, "per_client": 2}),
    "natural": ("synthetic", {"by": "user"}),
    "power_law": ("digits", {"clients": 100, "exponent": 1.0, "minimum": 3}),
    "lognormal": ("digits", {"clients": 100, "sigma": 1.0, "minimum": 3}),
    "poisson": ("digits", {"mean": 16.0}),
    "fixed": ("digits", {"clients": 20, "points": 50}),
    "user_dirichlet": ("digits", {"clients": 20, "points": 50, "alpha": 0.1}),
    "pachinko": ("digits", {"clients": 20, "points": 50, "alpha": 0.3, "beta": 10.0, "coarse": PARENTS}),
    "niid_mixed": ("digits", {"clients": 10, "alpha": 0.5}),
    "groups": ("digits", {"clients": 20, "groups": 4, "alpha": 0.3, "within": 10.0}),
    "noise": ("digits", {"clients": 10, "level": 0.2}),
    "fcube": ("fcube", {}),
    "compose": (
        "digits",
        {"of": [{"name": "dirichlet", "clients": 20, "alpha": 0.5}, {"name": "power_law", "exponent": 0.7}]},
    ),
}


def main() -> None:
    """Every picture and every line of numbers."""
    (HERE / "vertical-holdings.png").write_bytes(png(vertical()))
    for name, (source, options) in EXAMPLES.items():
        data = build(DATA, source, where="data")
        entry = {"name": name, **options}
        partition = build(PARTITIONS, entry, where="partition")(
            data.labels, data.keys, data.examples, rng.key(0, "partition")
        )
        plots = drawn(name, data, partition)
        for plot in plots:
            (HERE / f"{name}-{plot.name}.png").write_bytes(png(plot))
        page = HERE / f"{name}.md"
        block = told(name, source, entry, data, partition, plots)
        before, after = BLOCK.split(page.read_text())
        page.write_text(f"{before}{START}{block}{END}{after}")


def vertical() -> Plot:
    """Two parties and the columns of breast_cancer; some rows are known to one of them only."""
    v = Vertical(parties=2, overlap=0.8, shares=(2.0, 1.0), shuffle=False)(features=30, examples=569, key=rng.key(0))
    owner = np.full((569, 30), -1, np.int64)
    for party in range(v.parties):
        owner[np.ix_(v.rows.of(party).numpy(), v.columns.of(party).numpy())] = party
    return pictures.holdings(owner, v.parties)


def drawn(name: str, data: Dataset, partition: Partition) -> list[Plot]:
    """The pictures of a page."""
    if name == "noise":
        return [noise(data, partition)]
    counts = label_counts(partition, data.train["y"]).numpy()
    return [pictures.bubbles(counts), *([pictures.sizes(counts)] if name in SIZES else [])]


def noise(data: Dataset, partition: Partition) -> Plot:
    """The first examples of some clients, as they see them, and two of them clean."""
    seen = noisy(data, partition, rng.key(0, "feature noise"))
    clients, levels = [0, 2, 5, 9], (partition.noise if partition.noise is not None else torch.zeros(10)).tolist()
    rows = torch.stack([partition.of(c)[:3] for c in clients])
    images = [seen.decode({k: v[mine] for k, v in seen.train.items()})["x"][:, 0].double().numpy() for mine in rows]
    return pictures.noise(np.stack(images), [levels[c] for c in clients])


def told(name: str, source: str, entry: dict[str, Any], data: Dataset, partition: Partition, plots: list[Plot]) -> str:
    """What was made, and how unlike its clients are."""
    skew, n = label_skew(partition, data.train["y"]), partition.sizes
    shown = "\n".join(f"![{plot.alt}]({name}-{plot.name}.png)" for plot in plots)
    numbers = (
        f"{partition.size} clients of {int(n.min())} to {int(n.max())} examples, {partition.left_out} left out; EMD "
        f"{skew.emd:.2f}, total variation {skew.total_variation:.2f}, Jensen-Shannon {skew.jensen_shannon:.2f}, "
        f"effective classes {skew.effective_classes:.1f}, Gini of sizes {skew.gini:.2f}."
    )
    return f"{shown}\n\n`partition = {toml.inline(entry)}` on {source}: {numbers}\n"


def png(plot: Plot) -> bytes:
    """Small enough for a page."""
    with mpl.rc_context({**theme.RC, "savefig.dpi": 100}):
        return theme.picture(plot.draw(), "png")


if __name__ == "__main__":
    main()
