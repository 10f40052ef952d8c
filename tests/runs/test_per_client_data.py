"""One set of data for each client, as a list or by name: the same run as of all rows and who holds which."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import atoll
from atoll.errors import ConfigError, DataError

torch.manual_seed(0)
X = torch.randn(30, 6)
Y = (X[:, 0] > 0).long()
PARTS = [slice(0, 12), slice(12, 20), slice(20, 30)]
ROWS = [range(s.start, s.stop) for s in PARTS]
FRAME = pd.DataFrame(X.numpy(), columns=list("abcdef"))


def simulate(data: Any, model: Any = None, **options: Any) -> atoll.Run:
    given = {"algorithm": {"name": "fedavg", "lr": 0.1}, "rounds": 2, "engine": "loop", **options}
    return atoll.simulate(model or (lambda: nn.Linear(6, 2)), data, **given)


def same(a: atoll.Run, b: atoll.Run) -> bool:
    return all(torch.equal(v, b.params[k]) for k, v in a.params.items())


WHOLE = {
    "tensors": (X, Y),
    "arrays": (X.numpy(), Y.numpy()),
    "labels in a list": (X.numpy(), Y.tolist()),
    "a frame and a series": (FRAME, pd.Series(Y.numpy())),
    "sparse": (sparse.csr_matrix(X.numpy()), Y.numpy()),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_a_pair_for_each_client_is_all_rows_and_who_holds_which(kind: str) -> None:
    x, y = WHOLE[kind]
    pairs = [(x[part], y[part]) for part in PARTS]
    assert same(simulate(pairs), simulate((x, y), clients=ROWS))


def test_torch_sets_and_loaders_are_clients_too() -> None:
    sets = [TensorDataset(X[part], Y[part]) for part in PARTS]
    assert same(simulate(sets), simulate((X, Y), clients=ROWS))
    assert same(simulate([*sets[:2], DataLoader(sets[2], 4)]), simulate((X, Y), clients=ROWS))


def test_clients_by_name_keep_their_names() -> None:
    names = ["Bern", "Rom", "Oslo"]
    run = simulate({name: (X[part], Y[part]) for name, part in zip(names, PARTS, strict=True)})
    assert same(run, simulate((X, Y), clients=dict(zip(names, ROWS, strict=True))))
    assert run.info["partition"]["names"] == names


class TwoFields(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        out: Tensor = self.head(left + right)
        return out


def test_inputs_with_names_are_joined_name_by_name() -> None:
    fields = {"left": X[:, :3], "right": X[:, 3:]}
    pairs = [({k: v[part] for k, v in fields.items()}, Y[part]) for part in PARTS]
    assert same(simulate(pairs, TwoFields), simulate((fields, Y), TwoFields, clients=ROWS))


def test_two_clients_are_not_taken_for_inputs_and_targets() -> None:
    two = [(X[:12], Y[:12]), (X[12:], Y[12:])]
    assert same(simulate(two), simulate((X, Y), clients=[range(12), range(12, 30)]))
    nested = ([[0.0] * 6, [1.0] * 6], [0, 1])  # one pair, of lists
    assert simulate(nested, clients=[[0], [1]]).history


def test_what_does_not_fit_together_is_refused_with_the_client() -> None:
    pair = (X.numpy(), Y.numpy())
    with pytest.raises(DataError, match=r"data, x: client 1 has ndarray of float32, rows of shape \(5,\), client 0"):
        simulate([pair, (X.numpy()[:, :5], Y.numpy())])
    with pytest.raises(DataError, match=r"data, x: client 'Rom' has ndarray of uint8"):
        simulate({"Bern": pair, "Rom": (np.zeros((3, 6), np.uint8), Y.numpy()[:3])})
    with pytest.raises(DataError, match=r"data, x: client 1 has \['left'\], client 0 \['left', 'right'\]"):
        simulate([({"left": X[:, :3], "right": X[:, 3:]}, Y), ({"left": X[:, :3]}, Y)], TwoFields)


def test_clients_twice_or_not_at_all_is_refused_with_advice() -> None:
    with pytest.raises(ConfigError, match=r"clients: data has one set for each client already\. Leave clients out"):
        simulate([(X, Y), (X, Y)], clients={"name": "iid", "clients": 3})
    with pytest.raises(ConfigError, match=r"clients: is missing\. Name a partition"):
        simulate((X, Y))
    with pytest.raises(ConfigError, match=r"test: has one set for each client\. .*evaluate=\{'holdout': 0\.2\}"):
        simulate((X, Y), test=[(X, Y), (X, Y)], clients=ROWS)
