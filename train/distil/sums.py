"""The sums over sentences that a ridge regression needs; they add up over the shards of a corpus.

Sentence s is a bag x_s, (V,), and a target y_s, (D,). A bag sums to 1, or to the factor by which ``Scale`` multiplied it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass
class Sums:
    """Of n sentences, X (n, V) and Y (n, D): ``gram`` X^T X, ``cross`` X^T Y, ``bag`` X^T 1."""

    count: int
    gram: sparse.csr_array  # (V, V) float64
    cross: Floats  # (V, D)
    bag: Floats  # (V,)

    @classmethod
    def of(cls, bags: sparse.csr_array, targets: NDArray[np.float32]) -> Sums:
        """Those of a shard: ``bags`` (n, V) float64, ``targets`` (n, D)."""
        wide, turned = targets.astype(np.float64), bags.T.tocsr()
        return cls(len(wide), (turned @ bags).tocsr(), turned @ wide, np.asarray(bags.sum(axis=0)))

    def merge(self, other: Sums) -> Sums:
        """Take in the sums of other sentences; returns self."""
        self.count += other.count
        self.gram = self.gram + other.gram
        self.cross += other.cross
        self.bag += other.bag
        return self

    @property
    def mean(self) -> Floats:
        """(D,) the vector that follows the targets best if every token has it: their mean, of bags that sum to 1."""
        return np.asarray(self.cross.sum(axis=0) / max(float(self.gram.sum()), 1e-12))

    def centred(self) -> Floats:
        """(V, D) X^T (Y - X 1 mean), the targets without what ``mean`` gives for each token."""
        return np.asarray(self.cross - np.outer(self.gram.sum(axis=1), self.mean))

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Everything as arrays, for ``read`` to make the same sums of, to the bit."""
        gram = {"data": self.gram.data, "indices": self.gram.indices, "indptr": self.gram.indptr}
        return {**gram, "cross": self.cross, "bag": self.bag, "count": np.array([self.count])}

    @classmethod
    def read(cls, arrays: dict[str, NDArray[np.generic]]) -> Sums:
        """The sums of ``arrays()``."""
        size = len(arrays["bag"])
        gram = sparse.csr_array((arrays["data"], arrays["indices"], arrays["indptr"]), shape=(size, size))
        rest = (np.asarray(arrays[name], np.float64) for name in ("cross", "bag"))
        return cls(int(arrays["count"][0]), gram, *rest)
