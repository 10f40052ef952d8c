"""What people bring along: tokens, bytes, sparse matrices, frames, torch's data sets, and clients in three forms."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import Dataset as TorchDataset

import atoll
from atoll.data import Dataset
from atoll.errors import ConfigError, DataError, PartitionError
from atoll.runs.python_data import make_dataset

torch.manual_seed(0)
X = torch.randn(40, 6)
Y = (X[:, 0] > 0).long()


def simulate(model: Any = None, data: Any = (X, Y), **options: Any) -> atoll.Run:
    given: dict[str, Any] = {"clients": {"name": "iid", "clients": 4}, "rounds": 1, "engine": "loop", **options}
    return atoll.simulate(model or (lambda: nn.Linear(6, 2)), data, algorithm={"name": "fedavg", "lr": 0.1}, **given)


def same(a: atoll.Run, b: atoll.Run) -> bool:
    return all(torch.equal(v, b.params[k]) for k, v in a.params.items())


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.words(x).mean(1))
        return out


@pytest.mark.parametrize("engine", ["loop", "vector"])
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_whole_numbers_that_go_into_an_embedding_stay_whole(dtype: str, engine: str) -> None:
    tokens = np.random.default_rng(0).integers(0, 50, (40, 12)).astype(dtype)
    run = simulate(Bag, (tokens, Y), engine=engine)
    assert run.info["engine"]["name"] == engine
    assert same(run, simulate(Bag, (tokens, Y), kind="tokens", engine=engine))
    assert make_dataset((tokens, Y), None, "tokens").train["x"].dtype == torch.int64


def test_bytes_of_a_table_are_taken_as_they_are_and_a_note_says_so() -> None:
    ages = np.arange(40 * 6).reshape(40, 6).astype("uint8")
    run = simulate(data=(ages, Y))
    assert same(run, simulate(data=(ages.astype("float32"), Y)))
    assert any("If they are pixels: kind = 'pixels'" in note for note in run.info["notes"])
    scaled = ages.astype("float32") * np.float32(1 / 255)
    assert same(simulate(data=(ages, Y), kind="pixels"), simulate(data=(scaled, Y)))
    images = Dataset.from_arrays(np.full((4, 5, 5), 255, "uint8"), Y[:4])
    assert float(images.decode(images.train)["x"].max()) == 1
    assert not images.notes


def test_kinds_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match="tokens are whole numbers"):
        simulate(kind="tokens")
    with pytest.raises(DataError, match="kind = 'pixels' is for bytes"):
        simulate(kind="pixels")
    with pytest.raises(DataError, match=r"kind: 'numbers' is not known\. Known: 'classification', .*'features'"):
        simulate(kind="numbers")


class Items(TorchDataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return X[i], int(Y[i])


@pytest.mark.parametrize(
    "data",
    [Items(), TensorDataset(X, Y), DataLoader(Items(), 7, shuffle=True)],
    ids=["Dataset", "TensorDataset", "DataLoader"],
)
def test_torch_s_data_sets_are_their_rows_in_order(data: Any) -> None:
    assert same(simulate(data=data), simulate())


def test_a_data_set_of_ours_is_taken_as_it_is() -> None:
    run = simulate(data=Dataset.from_arrays(X, Y, test=(X, Y)))
    assert same(run, simulate())
    assert run.final["accuracy"] > 0
    with pytest.raises(ConfigError, match="is a Dataset, which says its test data and its kind itself"):
        simulate(data=Dataset.from_arrays(X, Y), test=(X, Y))


def test_sparse_matrices_are_written_out_where_they_fit() -> None:
    assert same(simulate(data=(sparse.csr_matrix(X.numpy()), Y)), simulate())
    assert same(simulate(data=(X.to_sparse(), Y)), simulate())
    with pytest.raises(DataError, match=r"is sparse, and 4000\.0 GB when written out"):
        simulate(data=(sparse.csr_matrix((1_000_000, 1_000_000)), Y))


def test_clients_may_be_ids_of_rows_or_named() -> None:
    ids = np.array(["b", "a", "c", "a"] * 10)
    rows = [np.flatnonzero(ids == name) for name in "abc"]
    lists = simulate(clients=rows)
    assert same(simulate(clients=ids), lists)
    assert same(simulate(clients=ids.tolist()), lists)
    assert same(simulate(clients=torch.tensor([1, 0, 2, 0] * 10)), lists)
    assert same(simulate(clients=dict(zip("abc", rows, strict=True))), lists)
    ranges = [range(10), range(10, 40)]
    named = simulate(clients={"Bern": ranges[0], "Ulm": pd.Series(ranges[1])})
    assert same(named, simulate(clients=ranges))
    assert named.info["partition"]["names"] == ["Bern", "Ulm"]
    with pytest.raises(ConfigError, match=r"partition\.name: is missing"):
        simulate(clients={"clients": 4})
    with pytest.raises(PartitionError, match=r"has 3 ids for 40 examples\. Give one for each row"):
        simulate(clients=[0, 1, 2])


def test_augmentation_changes_training_alone() -> None:
    run = simulate(data=(X, Y), test=(X, Y), augment=lambda batch: {**batch, "x": batch["x"] * 0})
    assert not run.params["weight"].equal(simulate(test=(X, Y)).params["weight"])
    torch_start = simulate(rounds=1, augment=lambda batch: batch)
    assert same(torch_start, simulate())


@pytest.mark.parametrize(
    ("augment", "found"),
    [
        (lambda x: x + 0.1, "failed on two rows with TypeError"),
        (lambda batch: batch["x"] + 0.1, "gave Tensor"),
        (lambda batch: {"x": batch["x"]}, r"gave \['x'\]"),
    ],
    ids=["of x", "gives x", "loses y"],
)
def test_what_is_no_augmentation_of_a_batch_is_refused_with_an_example(augment: Any, found: str) -> None:
    with pytest.raises(ConfigError, match=rf"augment: must take a batch.*{found}.*Such as lambda batch"):
        simulate(augment=augment)


@pytest.mark.parametrize("kind", ["str", "category", "object"])
def test_categories_of_a_frame_are_one_hot_and_remembered(kind: str) -> None:
    train = pd.DataFrame({"age": [1.0, 2.0, 3.0], "ward": pd.Series(["b", "a", "b"], dtype=kind)})
    test = pd.DataFrame({"age": [4.0], "ward": pd.Series(["z"], dtype=kind)})
    dataset = make_dataset((train, [0, 1, 0]), (test, [1]))
    assert dataset.train["x"].tolist() == [[1, 0, 1], [2, 1, 0], [3, 0, 1]]
    assert dataset.test is not None
    assert dataset.test["x"].tolist() == [[4, 0, 0]]
    with pytest.raises(DataError, match="test x: lacks 'ward'"):
        make_dataset((train, [0, 1, 0]), (pd.DataFrame({"age": [1.0]}), [1]))


class Masked(Bag):
    """As Hugging Face's models are: inputs by name, logits in a dict."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        words = self.words(input_ids) * attention_mask[..., None]
        return {"logits": self.head(words.sum(1) / attention_mask.sum(1, keepdim=True))}


@pytest.mark.parametrize("engine", ["loop", "vector", "threads"])
def test_named_inputs_reach_the_model_by_name(engine: str) -> None:
    tokens, mask = torch.randint(0, 50, (40, 12)), torch.ones(40, 12, dtype=torch.int64)
    named = {"input_ids": tokens, "attention_mask": mask}
    run = simulate(Masked, (named, Y), test=(named, Y), engine=engine)
    plain = simulate(Bag, (tokens, Y), test=(tokens, Y), engine=engine)
    assert run.info["engine"]["name"] == engine
    assert run.final["loss"] == pytest.approx(plain.final["loss"], rel=1e-6)
    assert torch.allclose(run.params["words.weight"], plain.params["words.weight"], atol=1e-7)
    items = [{"input_ids": t, "attention_mask": m, "labels": y} for t, m, y in zip(tokens, mask, Y, strict=True)]
    assert same(simulate(Masked, DataLoader(items, 8), engine=engine), simulate(Masked, (named, Y), engine=engine))


def test_named_inputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match="must have as many rows in each, all whole numbers or all floats"):
        simulate(data=({"input_ids": X, "attention_mask": X[:3]}, Y))
