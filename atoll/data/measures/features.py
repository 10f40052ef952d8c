"""Feature skew by a classifier two-sample test: can the inputs of a client be told from those of the others?"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from atoll.data.partition.partition import Partition
from atoll.errors import DataError
from atoll.rng import host

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FEWEST = 10  # rows of a client, below which a classifier says nothing
_MOST = 500  # rows of a client that are looked at


@dataclass(frozen=True)
class FeatureShift:
    """How well a classifier tells each client from the rest: AUROC 0.5 not at all, 1 always."""

    auroc: Floats  # (N,), nan for clients that were not looked at

    @property
    def score(self) -> float:
        """The mean over clients of 2 AUROC - 1, at least 0: 0 for inputs alike, 1 for clients apart."""
        auroc = self.auroc[~np.isnan(self.auroc)]
        return float(np.maximum(2 * auroc - 1, 0.0).mean())


def feature_shift(inputs: Tensor, partition: Partition, key: Tensor, clients: int = 20) -> FeatureShift:
    """A logistic regression for each of (at most) `clients` clients, its rows against as many rows of the others.

    `inputs` are decoded, (n, ...). The AUROC is of rows held out (the mean of two folds), at most 500 of a client.
    Clients with fewer than 10 rows are passed over. Lopez-Paz and Oquab (2017), https://arxiv.org/abs/1610.06545.
    """
    flat = inputs.reshape(len(inputs), -1).double().numpy()
    sizes, held = partition.sizes.numpy(), partition.indices.numpy()
    outside = len(held) - sizes
    fit = np.flatnonzero(np.minimum(sizes, outside) >= _FEWEST)
    if not len(fit):
        raise DataError(
            f"feature_shift: no client has {_FEWEST} rows and {_FEWEST} beside it. Use a coarser partition."
        )
    auroc = np.full(partition.size, np.nan)
    for c in fit[np.linspace(0, len(fit) - 1, min(clients, len(fit))).astype(np.int64)]:
        own, key_c = partition.of(int(c)).numpy(), host.fold(key, int(c))
        others = np.setdiff1d(held, own)
        n = min(len(own), len(others), _MOST)
        ours = own[host.distinct(host.fold(key_c, 0), len(own), n)]
        theirs = others[host.distinct(host.fold(key_c, 1), len(others), n)]
        auroc[c] = _cross_fitted_auroc(flat[ours], flat[theirs])
    return FeatureShift(auroc)


def _cross_fitted_auroc(ours: Floats, theirs: Floats) -> float:
    """The AUROC of a logistic regression, each half of the rows judged by what was learned on the other."""
    from sklearn.linear_model import LogisticRegression  # half a second, and nothing else here needs it
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = np.concatenate([ours, theirs]), np.repeat([1, 0], [len(ours), len(theirs)])
    fold = np.arange(len(x)) % 2
    scores = np.empty(len(x))
    for part in (0, 1):
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))
        model.fit(x[fold != part], y[fold != part])
        scores[fold == part] = model.decision_function(x[fold == part])
    return float(np.mean([roc_auc_score(y[fold == part], scores[fold == part]) for part in (0, 1)]))
