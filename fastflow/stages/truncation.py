"""The leading directions of a basis, which ``truncate_dim`` keeps of an embedding whose dimensions are in no order.

A flow's dimensions are interchangeable, so the first k are any k. A model may therefore carry an orthogonal
basis, fitted without labels, whose columns are ordered by how much of the pooled vectors' variation they hold. All D'
columns together keep every cosine, so the basis only runs if something is cut, folded into the plan: the whole
embedding costs nothing more, and k dimensions some k x D products.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.stages.calibration import Stage, apply, output_dim

if TYPE_CHECKING:
    from fastflow.stages.rows import Rows

SAMPLE = 16384  # texts that embeddings are measured on, evenly spaced
BLOCK = 2048
ORTHOGONAL = 1e-4  # float32 columns are orthonormal to within this


class Truncation(NamedTuple):
    """``basis`` (D', D'): orthonormal columns, leading first; ``deviation`` (D',): of the embedding along each."""

    basis: NDArray[Any]
    deviation: NDArray[Any]

    def stage(self, k: int) -> Stage:
        """The linear map (B, D') -> (B, k) on the first k columns, as a stage to be folded after the others."""
        return Stage("whiten", {}, {"mean": np.zeros_like(self.basis[:, 0]), "matrix": self.basis[:, :k]})


def fit_truncation(stages: Sequence[Stage], pooled: Rows) -> Truncation | None:
    """The basis for embeddings ``stages`` makes of pooled vectors (n, D); None unless a flow comes last.

    Whitening and recolour end in this order already, and the other calibrations and raw vectors gained nothing by a
    rotation on the sets that decided (bench/results/verdicts.md).
    """
    return leading_directions(stages, pooled) if stages and stages[-1].kind == "flow" else None


def leading_directions(stages: Sequence[Stage], pooled: Rows) -> Truncation:
    """The left singular vectors of the covariance (D', D) of embedding and pooled vector, over SAMPLE of (n, D).

    The first k are the directions of the embedding that hold most of the pooled vector. Those in which the embedding
    itself varies most would do for a flow, but not for one after a whitening, which varies equally in all.
    """
    dims = output_dim(stages, pooled.shape[1])
    count, x_sum, z_sum = 0, np.zeros(pooled.shape[1]), np.zeros(dims)
    cross, square = np.zeros((dims, pooled.shape[1])), np.zeros((dims, dims))
    for x, z in sampled(stages, pooled):
        count, x_sum, z_sum = count + len(x), x_sum + x.sum(axis=0), z_sum + z.sum(axis=0)
        cross, square = cross + z.T @ x, square + z.T @ z
    basis = np.linalg.svd(cross / count - np.outer(z_sum, x_sum) / count**2)[0]
    largest = np.abs(basis).argmax(axis=0)
    basis = basis * np.sign(basis[largest, np.arange(len(basis))])  # a singular vector's sign is arbitrary
    deviation = np.sqrt(np.maximum(np.einsum("ij,ik,kj->j", basis, square / count, basis, optimize=True), 0))
    return Truncation(basis.astype(np.float32), deviation.astype(np.float32))


def sampled(stages: Sequence[Stage], pooled: Rows) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Blocks of pooled vectors (b, D) and their embeddings (b, D'), both float64, over at most SAMPLE of (n, D)."""
    wide = [stage.astype(np.float64) for stage in stages]
    rows = pooled[:: -(-len(pooled) // SAMPLE)]
    for start in range(0, len(rows), BLOCK):
        x = np.asarray(rows[start : start + BLOCK], np.float64)
        yield x, np.asarray(apply(wide, x))


def write_truncation(truncation: Truncation) -> dict[str, NDArray[Any]]:
    """The arrays that a model's calibration.safetensors holds for the order."""
    return {f"truncation.{name}": np.ascontiguousarray(getattr(truncation, name)) for name in ("basis", "deviation")}


def read_truncation(arrays: Mapping[str, NDArray[Any]], dim: int, where: str) -> Truncation | None:
    """The order of directions among a model's ``arrays``; None for a model saved without one.

    Raises a FastflowError that names the file ``where`` and the array that cannot belong to ``dim`` dimensions.
    """
    shapes = {"truncation.basis": (dim, dim), "truncation.deviation": (dim,)}
    if not any(name in arrays for name in shapes):
        return None
    for name, shape in shapes.items():
        if name not in arrays:
            raise FastflowError(f"{where}: array {name} is missing; copy or train the model again")
        array = arrays[name]
        if array.shape != shape or array.dtype != np.float32 or not np.isfinite(array).all():
            raise FastflowError(f"{where}, array {name}: must be finite float32 of shape {shape}")
    deviation = arrays["truncation.deviation"]
    if (deviation < 0).any() or not deviation[0] > 0:  # int8 divides by the largest
        raise FastflowError(f"{where}, array truncation.deviation: must be at least 0, and above it at first")
    found = Truncation(arrays["truncation.basis"], arrays["truncation.deviation"])
    wide = found.basis.astype(np.float64)
    if not np.abs(wide.T @ wide - np.eye(dim)).max(initial=0) <= ORTHOGONAL:
        raise FastflowError(f"{where}, array truncation.basis: its columns are not orthonormal; train the model again")
    return found
