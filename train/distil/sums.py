"""Add up the sums of a ridge regression over the shards of a corpus.

A sentence is a bag (V,), of sum 1 before ``Lengths`` divides it, and a target (D,).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sparse
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float64]
COLUMNS = 64  # that fit into the processor's cache


@dataclass
class Sums:
    """X (n, V) float32 of n sentences in ``parts``, and ``cross``, X^T Y (V, D)."""

    parts: list[sparse.csr_array]
    cross: Floats
    _products: tuple[torch.Tensor, torch.Tensor] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, bags: sparse.csr_array, targets: NDArray[np.float32]) -> Sums:
        """Make the sums of a shard: ``bags`` (n, V), ``targets`` (n, D)."""
        return cls([sparse.csr_array(bags.astype(np.float32))], np.asarray(bags.T.tocsr() @ targets.astype(np.float64)))

    def merge(self, other: Sums) -> Sums:
        self.parts += other.parts
        self.cross += other.cross
        self._products = None
        return self

    @property
    def count(self) -> int:
        return sum(part.shape[0] for part in self.parts)

    def multiply(self, table: NDArray[np.floating]) -> NDArray[np.float32]:
        """Multiply X^T X by ``table`` (V, k), with PyTorch's threads."""
        if self._products is None:
            whole = sparse.csr_array(sparse.vstack(self.parts, "csr"))
            self._products = _tensor(whole), _tensor(sparse.csr_array(whole.T.tocsr()))
        rows, turned = self._products
        out = np.empty(table.shape, np.float32)
        for first in range(0, table.shape[1], COLUMNS):
            part = torch.from_numpy(np.ascontiguousarray(table[:, first : first + COLUMNS], np.float32))
            out[:, first : first + COLUMNS] = (turned @ (rows @ part)).numpy()
        return out

    def diagonal(self) -> Floats:
        """Compute the diagonal (V,) of X^T X."""
        return np.sum([np.asarray(part.multiply(part).sum(axis=0), np.float64) for part in self.parts], axis=0)

    @property
    def bag(self) -> Floats:
        """X^T 1, (V,)."""
        return np.sum([np.asarray(part.sum(axis=0, dtype=np.float64)) for part in self.parts], axis=0)

    @property
    def mean(self) -> Floats:
        """The vector (D,) that fits best as every token's: the targets' mean if bags sum to 1."""
        return np.asarray(self.cross.sum(axis=0) / max(float(self._whole.sum()), 1e-12))

    def centre(self) -> Floats:
        """Compute X^T (Y - X 1 mean), (V, D)."""
        return np.asarray(self.cross - np.outer(self._whole, self.mean))

    @property
    def _whole(self) -> Floats:
        """X^T X 1, (V,)."""
        return np.sum([part.T @ part.sum(axis=1, dtype=np.float64) for part in self.parts], axis=0)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Give arrays from which ``read`` makes the same bits; so parts stay apart."""
        whole = sparse.vstack(self.parts, "csr")
        rows = np.array([part.shape[0] for part in self.parts], np.int64)
        return {"data": whole.data, "indices": whole.indices, "indptr": whole.indptr, "rows": rows, "cross": self.cross}

    @classmethod
    def read(cls, arrays: dict[str, NDArray[np.generic]]) -> Sums:
        shape = (len(arrays["indptr"]) - 1, len(arrays["cross"]))
        whole = sparse.csr_array((arrays["data"], arrays["indices"], arrays["indptr"]), shape=shape)
        ends = np.cumsum(arrays["rows"])
        parts = [sparse.csr_array(whole[end - rows : end]) for rows, end in zip(arrays["rows"], ends, strict=True)]
        return cls(parts, np.asarray(arrays["cross"], np.float64))


def _tensor(matrix: sparse.csr_array) -> torch.Tensor:
    indptr, indices, data = (torch.from_numpy(a) for a in (matrix.indptr, matrix.indices, matrix.data))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(indptr.int(), indices.int(), data, matrix.shape, check_invariants=False)
