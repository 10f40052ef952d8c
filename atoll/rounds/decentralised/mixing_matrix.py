"""Mixing as a product with the stack of all nodes: dense for a few nodes, sparse for many."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from atoll import tree
from atoll.rounds.decentralised.topology import Floats, Topology
from atoll.tree import Tree

if TYPE_CHECKING:
    from scipy.sparse import csr_array  # slow to import, and few runs have a graph

DENSE = 128  # nodes up to which the product is a dense one
_EIGEN = 1500  # nodes up to which all eigenvalues are computed
_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class MixingMatrix:
    """W with a row for each node that takes and a column for each that gives; W_ii is what the others leave of 1.

    A product costs E x d operations and no memory beside its result: (N + E) numbers for W itself.
    """

    topology: Topology
    weights: Floats  # (E,)
    by_columns: bool = False  # is it the columns that sum to 1?

    @property
    def nodes(self) -> int:
        return self.topology.nodes

    @cached_property
    def kept(self) -> Floats:
        """(N,) W_ii."""
        whose = self.topology.source if self.by_columns else self.topology.target
        return np.asarray(1.0 - np.bincount(whose, self.weights, minlength=self.nodes), np.float64)

    @cached_property
    def sparse(self) -> csr_array:
        """(N, N) in float64."""
        from scipy.sparse import csr_array, diags_array

        return csr_array(self.topology.matrix(self.weights) + diags_array(self.kept))

    @cached_property
    def dense(self) -> Tensor:
        """(N, N) in float32: what is left of 1 is left by these rounded numbers."""
        off = torch.from_numpy(self.topology.matrix(self.weights).astype(np.float32).toarray())
        return off + torch.diag(1.0 - off.sum(0 if self.by_columns else 1))

    @cached_property
    def digest(self) -> str:
        """Of who takes how much from whom: equal ones mix alike."""
        numbers = (self.topology.source, self.topology.target, self.weights)
        parts = [f"{self.nodes} {self.by_columns}".encode(), *(x.tobytes() for x in numbers)]
        return hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest()

    @cached_property
    def lazy(self) -> MixingMatrix:
        """(I + W) / 2: no eigenvalue is below 0."""
        return self.damped(0.5)

    def damped(self, by: float) -> MixingMatrix:
        """I + by (W - I)."""
        return MixingMatrix(self.topology, self.weights * by, self.by_columns)

    def mix(self, rows: Tree) -> Tree:
        """W x for every leaf x with a row for each node."""
        return tree.map(self._product, rows)  # type: ignore[no-any-return]

    def _product(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return tree.cast_like(self._product(x.double()), x)
        if self.nodes <= DENSE:
            return torch.einsum("ij,j...->i...", self.dense.to(x.device, x.dtype), x)
        flat = x.reshape(self.nodes, -1)
        if x.device.type == "cpu":
            return _host_product(self.sparse, flat).reshape(x.shape)
        return (self._on_device(x) @ flat).reshape(x.shape)

    def _on_device(self, x: Tensor) -> Tensor:
        key = (x.device, x.dtype)
        if key not in self._devices:
            with _without_beta_warning():
                rows, columns = torch.from_numpy(self.sparse.indptr), torch.from_numpy(self.sparse.indices)
                values = torch.from_numpy(self.sparse.data).to(x.dtype)
                csr = torch.sparse_csr_tensor(rows, columns, values, (self.nodes, self.nodes))
            self._devices[key] = csr.to(x.device)
        return self._devices[key]

    @cached_property
    def _devices(self) -> dict[tuple[torch.device, torch.dtype], Tensor]:
        return {}

    @cached_property
    def symmetric(self) -> bool:
        difference = abs(self.sparse - self.sparse.T)
        return bool(difference.max() < _ROUNDING) if difference.nnz else True

    @cached_property
    def doubly_stochastic(self) -> bool:
        """Do all rows and all columns sum to 1? Then the mean over nodes is kept."""
        sums = np.concatenate([self.sparse.sum(0), self.sparse.sum(1)])
        return bool(np.abs(sums - 1).max() < _ROUNDING and self.sparse.min() > -_ROUNDING)

    @cached_property
    def smallest_eigenvalue(self) -> float:
        """Of a symmetric one; of many nodes, the least that it could be: 2 min W_ii - 1 (Gershgorin)."""
        if self.nodes <= _EIGEN:
            return float(np.linalg.eigvalsh(self.sparse.toarray())[0])
        return float(2 * self.kept.min() - 1)

    @cached_property
    def spectral_gap(self) -> float | None:
        """1 - |second largest eigenvalue|: how much nearer a round brings nodes; None where it was not found."""
        if self.nodes == 1:
            return 1.0
        if self.nodes <= _EIGEN:
            matrix = self.sparse.toarray()
            values = np.linalg.eigvalsh(matrix) if self.symmetric else np.linalg.eigvals(matrix)
            return max(0.0, 1.0 - float(np.sort(np.abs(values))[-2]))
        return _gap_by_lanczos(self.sparse) if self.symmetric else None


def _host_product(matrix: csr_array, x: Tensor) -> Tensor:
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    values = wide.detach().contiguous().numpy()
    if values.shape[1] == 0:
        return x.clone()
    return torch.from_numpy(matrix.astype(values.dtype) @ values).to(x.dtype)


def _gap_by_lanczos(matrix: csr_array) -> float | None:
    """The largest eigenvalue of W - 11'/N, by size; None where neighbours of it are too near, as on a long ring."""
    nodes = matrix.shape[0]
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

    deflated = LinearOperator(matrix.shape, lambda v: matrix @ v.ravel() - v.mean(), dtype=np.float64)
    try:
        start = np.sin(np.arange(1, nodes + 1))
        values = eigsh(deflated, 1, which="LM", v0=start, maxiter=60, tol=1e-5, return_eigenvectors=False)
    except ArpackError:
        return None
    return max(0.0, 1.0 - float(np.abs(values).max()))


@contextmanager
def _without_beta_warning() -> Iterator[None]:
    """Torch says of every first CSR tensor that it is in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
