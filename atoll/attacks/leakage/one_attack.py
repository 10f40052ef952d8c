"""One attack on one experiment or run: what is seen, what is made of it, and what that is worth."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll import __version__, rng, tree
from atoll.attacks import clopper_pearson
from atoll.attacks.leakage.assumed_task import BatchNormMode
from atoll.attacks.leakage.batch_norm import Known
from atoll.attacks.leakage.few_examples import with_images
from atoll.attacks.leakage.first_layer import fc_attack, first_dense
from atoll.attacks.leakage.labels import label_accuracy, recovered_labels
from atoll.attacks.leakage.observe import Observed, View, observe
from atoll.attacks.leakage.pixels import Pixels01
from atoll.attacks.leakage.property_inference import ClassShare, property_attack
from atoll.attacks.leakage.recipes import RECIPES
from atoll.attacks.leakage.reconstruct import Inversion, Labels, Told, reconstruct
from atoll.attacks.leakage.similarity import Similarity, compare
from atoll.data import Dataset
from atoll.errors import ConfigError, RecordError
from atoll.experiment import Device, Experiment, Setup, load, set_up, usual_partition
from atoll.records import RunFolder, clean
from atoll.stats import half_width

Method = Literal["fc", "dlg", "dlg_lbfgs", "idlg", "inverting", "gradinversion", "labels", "property"]
METHODS: tuple[str, ...] = ("fc", *RECIPES, "labels", "property")
TITLES = {
    "fc": ("FC attack", "Phong et al. (2018); FedEval (Chai et al., 2020)"),
    "labels": ("label recovery", "Zhao et al. (2020); Wainakh et al. (2022)"),
    "property": ("property inference", "Ateniese et al. (2015); Melis et al. (2019)"),
    **{name: (recipe.title, recipe.source) for name, recipe in RECIPES.items()},
}
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class AttackOptions:
    """How to attack; every default is what a first look needs."""

    method: str = "fc"
    victims: int = 64  # updates, or means, that are attacked
    clients: int | None = None  # in each mean; None: single updates, or the cohort where sums are secret
    images: int | None = None  # that each client holds; None: all that it has
    round: int = 1
    view: View = "server"
    labels: Labels = "recovered"
    statistics: Known = "running"
    batch_norm: BatchNormMode = "training"
    one_step: bool = False  # the attacker does not unroll the client's steps
    steps: int | None = None  # None: the recipe's
    tv: float | None = None  # weight of the total variation; None: the recipe's
    seeds: int | None = None
    among: int = 1000  # candidates of which an original is to be the nearest
    label: int = 0  # of the property
    share: float = 0.5
    shadows: int = 200
    seed: int = 0
    stack: int | None = None  # groups at a time


@dataclass(frozen=True, eq=False)
class Finding:
    """What came of it: `summary` is what attack.json holds; pictures run from 0 to 1, (E, *inputs)."""

    summary: dict[str, Any]
    originals: Floats = field(default_factory=lambda: np.zeros((0, 1)))
    found: Floats = field(default_factory=lambda: np.zeros((0, 1)))
    true_labels: Floats = field(default_factory=lambda: np.zeros(0))


def opened(path: Path | str, device: Device) -> tuple[Experiment, str]:
    """The experiment of a file or of a run's folder, and what it is called."""
    path = Path(path)
    if not path.is_dir():
        return load(path), path.stem
    folder = RunFolder(path)
    experiment = Experiment.parse(folder.info["experiment"])
    digest = folder.info.get("partition", {}).get("digest")
    if digest is not None and set_up(experiment, device).partition.digest() != digest:
        raise RecordError(
            f"{path}: its clients cannot be made again: the data or the program has changed since. "
            "Run the experiment again, then attack that run."
        )
    return experiment, path.name


def attack(
    experiment: Experiment, options: AttackOptions, device: Device = "auto", told: Told = lambda n, of: None
) -> Finding:
    """Attack the updates that this experiment's clients would send."""
    check_options(options)
    setup = attacked_setup(experiment, options, device)
    check_data(setup.dataset, options)
    if options.method == "fc":
        first_dense(setup)  # refuse before the rounds that come before
    began = time.perf_counter()
    seen = observe(setup, options.victims, options.clients, options.round, options.view, options.seed)
    at = time.perf_counter()
    finding = _carried_out(seen, options, told)
    seconds = {"observe": round(at - began, 3), "attack": round(time.perf_counter() - at, 3)}
    return replace(finding, summary=clean({**_facts(seen, options), **finding.summary, "seconds": seconds}))


def attacked_setup(experiment: Experiment, options: AttackOptions, device: Device) -> Setup:
    """The experiment as it is attacked."""
    if options.images is None:
        return set_up(experiment, device)
    whole = set_up(experiment, device)
    named = experiment.partition or usual_partition(whole.dataset.name, whole.dataset.keys)
    plain = whole.dataset if whole.partition.noise is None else None
    return set_up(with_images(experiment, named, options.images), device, plain)


def check_options(options: AttackOptions) -> None:
    """Mistakes, before anything is done."""
    if options.method not in METHODS:
        raise ConfigError(f"--method: there is no {options.method!r}. Use {', '.join(METHODS)}; or loss, lira.")
    for name in ("victims", "among"):
        if getattr(options, name) < 1:
            raise ConfigError(f"--{name}: must be 1 or more (got {getattr(options, name)}).")
    for name in ("clients", "images", "steps", "seeds", "stack"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name}: must be 1 or more (got {value}). Leave it out for the usual one.")
    if options.tv is not None and options.tv < 0:
        raise ConfigError(f"--tv: must be 0 or more (got {options.tv}).")
    if not 0 < options.share <= 1:
        raise ConfigError(f"--share: must be above 0 and at most 1 (got {options.share}).")


def check_data(dataset: Dataset, options: AttackOptions) -> None:
    """What the method cannot read from these data, whatever the updates are."""
    x, method, classes = dataset.train["x"], options.method, dataset.kind == "classification"
    if dataset.kind == "next_token":
        raise ConfigError(
            f"--method: {method} looks for inputs or classes of examples, and {dataset.name} is text whose next token "
            "is learned. Use --method loss or lira, of a finished run."
        )
    if method != "fc" and not classes:
        raise ConfigError(f"--method: {method} needs classes, and {dataset.name} has none. Use --method fc.")
    if method == "property":
        if not 0 <= options.label < dataset.outputs:
            raise ConfigError(f"--property: there is no class {options.label}. Classes are 0 to {dataset.outputs - 1}.")
        return
    if isinstance(x, dict) or dataset.vocabulary is not None:
        raise ConfigError(
            f"--method: {method} looks for real numbers, and an example of {dataset.name} is text, or several inputs. "
            f"Use --method {'property, ' if classes else ''}loss or lira."
        )


def _carried_out(seen: Observed, options: AttackOptions, told: Told) -> Finding:
    if options.method == "property":
        wanted = ClassShare(options.label, options.share)
        return Finding({"property": property_attack(seen, wanted, options.shadows, options.seed)})
    if options.method == "labels":
        labels = recovered_labels(seen, Pixels01.of(seen.setup), options.seed).reshape(len(seen.victims), -1)
        return Finding({"scores": {"label_accuracy": estimate(_label_scores(seen, labels))}})
    pixels = Pixels01.of(seen.setup)
    if options.method == "fc":
        x, distance = fc_attack(seen, pixels), None
        labels = recovered_labels(seen, pixels, options.seed) if _classes(seen) else torch.zeros_like(seen.victims.y)
        labels = labels.reshape(len(x), -1)
    else:
        recipe = RECIPES[options.method]
        recipe = replace(
            recipe, seeds=options.seeds or recipe.seeds, tv=recipe.tv if options.tv is None else options.tv
        )
        seen = seen.in_one_step() if options.one_step else seen
        steps, known = options.steps or recipe.steps, (options.labels, options.statistics, options.batch_norm)
        how = Inversion(recipe, steps, *known, options.seed, options.stack)
        x, labels, distance = reconstruct(seen, how, pixels, told)
    return _scored(seen, x, labels, distance, pixels, options)


def _scored(
    seen: Observed, x: Tensor, labels: Tensor, distance: Tensor | None, pixels: Pixels01, options: AttackOptions
) -> Finding:
    v, G = seen.victims, len(seen.victims)
    held = v.held.reshape(G, -1)
    originals, found = (pixels.unit(a.reshape(G, held.shape[1], *v.x.shape[3:])) for a in (v.x, x))
    candidates = _candidates(seen, pixels, options)
    like = compare(originals, found, held, candidates)
    scores = {name: estimate(by_group(getattr(like, name), like.group)) for name in ("mse", "l2", "psnr")}
    if like.ssim is not None:
        scores["ssim"] = estimate(by_group(like.ssim, like.group))
    if _classes(seen):
        scores["label_accuracy"] = estimate(_label_scores(seen, labels))
    if distance is not None:
        scores["distance"] = estimate(distance.cpu().double().numpy())
    identified = _identified(like, len(candidates), held.shape[1])
    at = like.group.astype(np.int64), like.place.astype(np.int64)
    order = torch.arange(held.numel(), device=held.device).reshape(held.shape)[held]
    shown = originals.reshape(-1, *originals.shape[2:])[order].cpu().double().numpy()
    made = found.cpu().double().numpy()[at]
    y = v.y.reshape(-1)[order].cpu().double().numpy() if _classes(seen) else np.zeros(len(shown))
    return Finding({"scores": scores, "identification": identified}, shown, made, y)


def _candidates(seen: Observed, pixels: Pixels01, options: AttackOptions) -> Tensor:
    """The victims' own examples, and others of the training data up to so many: (P, *inputs)."""
    own = torch.unique(seen.victims.rows[seen.victims.held.cpu()])
    rows = rng.permutation(rng.key(options.seed, "candidates"), seen.setup.dataset.examples)
    others = rows[~torch.isin(rows, own)][: max(0, options.among - len(own))]
    train = tree.to(tree.rows(seen.setup.dataset.train, torch.cat([own, others])), seen.device)
    key = torch.zeros(2, dtype=torch.int64, device=seen.device)
    return pixels.unit(seen.setup.dataset.decode({**train, "key": key})["x"])


def _identified(like: Similarity, among: int, together: int) -> dict[str, Any]:
    """Of one reconstruction the chance is 1 in `among`; of several, an original may be near any of them."""
    hits, tries = int(like.identified.sum()), len(like.identified)
    interval = clopper_pearson(hits, tries)
    return {"rate": hits / tries, "interval": interval, "among": among, "chance": min(1.0, together / among)}


def _label_scores(seen: Observed, labels: Tensor) -> Floats:
    G = len(labels)
    each = label_accuracy(labels, seen.victims.y.reshape(G, -1), seen.victims.held.reshape(G, -1))
    found: Floats = each.cpu().double().numpy()
    return found


def by_group(values: Floats, group: Floats) -> Floats:
    """The mean of every group."""
    at = group.astype(np.int64)
    found: Floats = np.bincount(at, values) / np.bincount(at)
    return found


def estimate(values: Floats) -> dict[str, float | None]:
    """The mean over victims, and half of its 95 % t interval."""
    half = half_width(values)
    return {"mean": float(values.mean()), "half": None if half is None else float(half)}


def _classes(seen: Observed) -> bool:
    return seen.setup.dataset.kind == "classification"


def _facts(seen: Observed, options: AttackOptions) -> dict[str, Any]:
    title, source = TITLES[options.method]
    G, m, n = seen.victims.held.shape
    return {
        "atoll": __version__,
        "method": options.method,
        "title": title,
        "source": source,
        "experiment": seen.setup.experiment.complete(),
        "round": seen.round,
        "view": seen.view,
        "victims": G,
        "clients": m,
        "examples": {"least": int(seen.victims.examples.min()), "most": n},
        "steps_of_clients": int(seen.victims.steps.max()),
        "options": asdict(options),
        "device": str(seen.device),
    }
