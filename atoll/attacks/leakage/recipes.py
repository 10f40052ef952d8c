"""Attacks by optimisation, each as a recipe: what is matched, how, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Distance = Literal["l2", "cosine"]
Descent = Literal["adam", "signed_adam", "lbfgs"]


@dataclass(frozen=True)
class InversionRecipe:
    """Find x (and y) so that the simulated update is the one that was seen."""

    title: str
    source: str
    distance: Distance
    joint_labels: bool = False  # labels are found with the examples, as chances from free numbers
    tv: float = 0.0  # of the total variation
    norm: float = 0.0  # of the mean square of pixels
    batch_norm: float = 0.0  # of the distance from BatchNorm's statistics
    consistency: float = 0.0  # of the distance from the mean of all seeds
    descent: Descent = "adam"
    lr: float = 0.1
    decay: tuple[float, int] | None = None  # the rate times this, every so many steps
    drops: tuple[float, ...] = ()  # shares of the steps after which the rate is a tenth
    boxed: bool = False  # after every step, back into the range of pictures
    seeds: int = 1  # dummies to start from; the one that matches best is kept
    steps: int = 1000

    def rate(self, step: int, steps: int) -> float:
        """Of a step, counted from 0."""
        lr = self.lr if self.decay is None else self.lr * self.decay[0] ** (step // self.decay[1])
        return lr * 0.1 ** sum(step >= share * steps for share in self.drops)  # type: ignore[no-any-return]


RECIPES: dict[str, InversionRecipe] = {
    "dlg": InversionRecipe(
        "DLG",
        "Zhu, Liu and Han (2019); settings of FedEval (Chai et al., 2020)",
        "l2",
        joint_labels=True,
        decay=(0.98, 100),
    ),
    "dlg_lbfgs": InversionRecipe(
        "DLG with L-BFGS", "Zhu, Liu and Han (2019)", "l2", joint_labels=True, descent="lbfgs", lr=1.0, steps=300
    ),
    "idlg": InversionRecipe("iDLG", "Zhao, Mopuri and Bilen (2020)", "l2", decay=(0.98, 100)),
    "inverting": InversionRecipe(
        "inverting gradients",
        "Geiping et al. (2020)",
        "cosine",
        tv=1e-4,
        descent="signed_adam",
        drops=(3 / 8, 5 / 8, 7 / 8),
        boxed=True,
    ),
    "gradinversion": InversionRecipe(
        "GradInversion, the part without a generator",
        "Yin et al. (2021)",
        "l2",
        tv=1e-3,
        norm=1e-4,
        batch_norm=1e-2,
        consistency=1e-2,
        drops=(3 / 8, 5 / 8, 7 / 8),
        boxed=True,
        seeds=3,
    ),
}
