"""Fit a table T (V, D) of token vectors by ridge regression; the penalty is on its distance from a prior T0.

    T = T0 + argmin_E |X (T0 + E) - Y|^2 + penalty |E|^2        (X^T X + penalty I) E = X^T (Y - X T0)

X (n, V) are bags of tokens, Y (n, D) the teacher's vectors, centred, T0 a linear map of its vectors of single tokens.
Tokens in no sentence keep T0. Solved by conjugate gradients with Jacobi's preconditioner (Hestenes & Stiefel 1952).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sparse
import torch
from numpy.typing import NDArray

from fastflow.train.distil.teacher import Vectors, measure_following
from fastflow.train.reporter import Reporter

Singles = NDArray[np.float32]
Floats = NDArray[np.float64]

RARE = (3e-3, 1e-4)  # values of a in SIF's weight a / (a + share)
TOLERANCE = 1e-3
MOST_STEPS = 500
COLUMNS = 64  # columns at once, to fit into the processor's cache
FIRM = 0.1  # firmness of the table that estimates lengths
LIMIT = 5.0  # the largest ratio of a length to the mean length


@dataclass
class Sums:
    """The bags X (n, V) float32 of n sentences, blocks of rows in ``parts``; and ``cross``, X^T Y (V, D)."""

    parts: list[sparse.csr_array]
    cross: Floats
    _products: tuple[torch.Tensor, torch.Tensor] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, bags: sparse.csr_array, targets: NDArray[np.float32]) -> Sums:
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
        """Multiply X^T X by ``table`` (V, k)."""
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
        """X^T 1 (V,), the sum of the bags."""
        return np.sum([np.asarray(part.sum(axis=0, dtype=np.float64)) for part in self.parts], axis=0)

    @property
    def mean(self) -> Floats:
        """The vector (D,) that fits Y best if all tokens have it."""
        return np.asarray(self.cross.sum(axis=0) / max(float(self._whole.sum()), 1e-12))

    def centre(self) -> Floats:
        """Compute X^T (Y - X 1 mean), (V, D)."""
        return np.asarray(self.cross - np.outer(self._whole, self.mean))

    @property
    def _whole(self) -> Floats:
        return np.sum([part.T @ part.sum(axis=1, dtype=np.float64) for part in self.parts], axis=0)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return arrays from which ``read`` restores the same ``parts``, bit for bit."""
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


class Prior:
    """The prior T0: a map of ``alone`` (V, D), the teacher's vectors of single tokens, zero for special tokens.

    If ``uniform``, without token weights, the map reads k copies with SIF weights by RARE.
    """

    def __init__(self, alone: NDArray[np.float32], counts: NDArray[np.int64], sums: Sums, uniform: bool) -> None:
        usable = np.any(alone != 0, axis=1)
        centred = np.where(usable[:, None], alone - alone[usable].mean(axis=0, dtype=np.float64), 0.0)
        share = (counts / max(1, counts.sum()))[:, None]
        copies = [centred * (rare / (rare + share)) for rare in RARE] if uniform else [centred]
        self.features = np.hstack(copies)  # (V, kD)
        self._square = self.features.T @ sums.multiply(self.features).astype(np.float64)
        self._right = self.features.T @ sums.centre()

    def __call__(self, firmness: float) -> Floats:
        return np.asarray(self.features @ self.fit_map(firmness))

    def fit_map(self, firmness: float) -> Floats:
        """Fit the map (kD, D). A large ``firmness`` keeps it near c I for the first copy and 0 for others."""
        (width, dim), unit = self._right.shape, float(np.diagonal(self._square).mean()) or 1.0
        size = float(np.trace(self._square[:dim, :dim]))
        plain = np.eye(width, dim) * (float(np.trace(self._right[:dim])) / size if size > 0 else 0.0)
        system = self._square + firmness * unit * np.eye(width)
        return np.asarray(plain + np.linalg.solve(system, self._right - self._square @ plain))


def compute_right_side(sums: Sums, start: Floats) -> Floats:
    """Compute X^T (Y - X T0) (V, D) for centred Y; ``start`` is T0."""
    return np.asarray(sums.centre() - sums.multiply(start))


def solve(
    sums: Sums,
    right: Floats,
    penalty: float,
    start: Singles | None = None,
    tolerance: float = TOLERANCE,
    count: Callable[[int], None] = lambda columns: None,
) -> Singles:
    """Solve (X^T X + ``penalty`` I) E = ``right`` for E (V, D) to the relative ``tolerance``, in float32."""
    out = np.empty(right.shape, np.float32)
    inverse = (1.0 / (sums.diagonal() + penalty)).astype(np.float32)[:, None]
    for first in range(0, right.shape[1], COLUMNS):
        part = slice(first, first + COLUMNS)
        begun = None if start is None else np.ascontiguousarray(start[:, part])
        wanted = np.ascontiguousarray(right[:, part], np.float32)
        out[:, part] = _solve_columns(sums, wanted, np.float32(penalty), inverse, begun, tolerance)
        count(wanted.shape[1])
    return out


def _solve_columns(
    sums: Sums, right: Singles, penalty: np.float32, inverse: Singles, start: Singles | None, tolerance: float
) -> Singles:
    found = np.zeros_like(right) if start is None else start.copy()
    residual = right.copy() if start is None else right - (sums.multiply(found) + penalty * found)
    goal = tolerance * np.linalg.norm(right, axis=0)
    direction = inverse * residual
    size = (residual * direction).sum(axis=0)
    for _ in range(MOST_STEPS):
        open_ = np.linalg.norm(residual, axis=0) > goal
        if not open_.any():
            break
        image = sums.multiply(direction) + penalty * direction
        step = _divide(size, (direction * image).sum(axis=0), open_)
        found += step * direction
        residual -= step * image
        better = inverse * residual
        before, size = size, (residual * better).sum(axis=0)
        direction = better + _divide(size, before, open_) * direction
    return found


def _divide(over: Singles, under: Singles, where: NDArray[np.bool_]) -> Singles:
    return np.divide(over, under, out=np.zeros_like(over), where=where & (under > 0))


def find_principal(sums: Sums, table: Floats, dim: int) -> Floats:
    """Find the ``dim`` directions (D, dim) of the largest variance of the vectors X ``table``."""
    mean = sums.bag @ table / sums.count
    scatter = table.T @ sums.multiply(table) / sums.count - np.outer(mean, mean)
    return np.ascontiguousarray(np.linalg.eigh((scatter + scatter.T) / 2)[1][:, ::-1][:, :dim])


@dataclass(frozen=True)
class Lengths:
    """Divides each bag by the estimated length of its vector, so that the regression fits directions.

    A bag times ``table`` (V, D) has the estimated length, which is 1 on average.
    """

    table: Singles

    def divide(self, bags: sparse.csr_array) -> sparse.csr_array:
        lengths = np.clip(_measure_lengths(bags, self.table), 1 / LIMIT, LIMIT)
        return sparse.csr_array(sparse.diags_array(1 / lengths) @ bags)


def fit_lengths(alone: Singles, counts: NDArray[np.int64], bags: sparse.csr_array, targets: Singles) -> Lengths:
    """Fit Lengths to ``bags`` (n, V) and the teacher's vectors ``targets`` (n, D)."""
    sums = Sums.of(bags, targets)
    table = Prior(alone, counts, sums, uniform=True)(FIRM) + sums.mean
    found = _measure_lengths(bags, table)
    return Lengths(np.asarray(table / (found[found > 0].mean() if found.any() else 1.0), np.float32))


def _measure_lengths(bags: sparse.csr_array, table: NDArray[np.floating]) -> NDArray[np.float64]:
    return np.asarray(np.linalg.norm(bags @ table, axis=1), np.float64)


PENALTIES = (5.0, 1.5, 0.5, 0.15, 0.05, 0.015, 0.005, 0.0015)
FIRST = 4
FIRMNESS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e2)  # values tried for the prior
SEARCH = 1e-2  # tolerance that suffices to compare penalties


@dataclass(frozen=True)
class TokenTable:
    """Token ``vectors`` (V, D), their held-out mean cosine, and the prior's; ``penalty`` None: the prior is kept."""

    target: str
    vectors: Floats
    penalty: float | None
    cosine: float
    prior: float
    tried: dict[float, float]  # penalty -> held-out cosine


@dataclass(frozen=True)
class HeldOut:
    """HeldOut-out ``bags`` (m, V), the teacher's ``vectors`` (m, D'); ``finish`` calibrates a table's vectors."""

    bags: sparse.csr_array
    vectors: Vectors
    finish: Callable[[NDArray[np.float32]], Vectors]

    def measure(self, table: Floats) -> float:
        return self.measure_vectors(self.bags @ table)

    def measure_vectors(self, found: Floats) -> float:
        return measure_following(self.finish(found.astype(np.float32)), self.vectors)


def choose_prior(prior: Prior, sums: Sums, held: HeldOut) -> Floats:
    """Return the prior (V, D) of the best FIRMNESS by held-out cosine."""
    seen, middle = held.bags @ prior.features, np.outer(held.bags.sum(axis=1), sums.mean)
    return prior(max(FIRMNESS, key=lambda firmness: held.measure_vectors(seen @ prior.fit_map(firmness) + middle)))


def fit_table(
    target: str, sums: Sums, start: Floats, held: HeldOut, penalty: float | None, reporter: Reporter
) -> TokenTable:
    """Fit a table near the prior ``start`` (V, D); ``penalty`` None: the best of PENALTIES, or the prior."""
    right, tried = compute_right_side(sums, start), dict[float, float]()
    state: Singles | None = None

    def add_start(found: Singles) -> Floats:
        return np.asarray(start + found + sums.mean)

    def solve_by(chosen: float, tolerance: float) -> Singles:
        with reporter.progress(f"penalty {chosen:g}", right.shape[1], "numbers") as progress:
            return solve(sums, right, chosen, state, tolerance, progress.advance)

    def measure(at: int) -> float:
        nonlocal state
        chosen = PENALTIES[at]
        if chosen not in tried:
            state = solve_by(chosen, SEARCH)
            tried[chosen] = held.measure(add_start(state))
            reporter.write(f"table of the {target}: penalty {chosen:g}, held-out cosine {tried[chosen]:.4f}")
        return tried[chosen]

    reporter.write(f"table of the {target}: solving for {right.shape[0]:,} tokens of {right.shape[1]} numbers")
    best = penalty if penalty is not None else PENALTIES[climb(measure, FIRST, len(PENALTIES))]
    found = add_start(solve_by(best, TOLERANCE))
    cosine, prior = held.measure(found), held.measure(start + sums.mean)
    if penalty is None and prior >= cosine:
        reporter.write(f"table of the {target}: kept the prior, held-out cosine {prior:.4f}")
        return TokenTable(target, start + sums.mean, None, prior, prior, tried)
    reporter.write(f"table of the {target}: kept penalty {best:g}, held-out cosine {cosine:.4f}")
    return TokenTable(target, found, best, cosine, prior, tried)


def climb(height: Callable[[int], float], at: int, count: int) -> int:
    """Step from the index ``at`` to a local maximum of ``height``, among 0 to ``count`` - 1."""
    for way in (1, -1):
        moved = False
        while 0 <= at + way < count and height(at + way) > height(at):
            at, moved = at + way, True
        if moved:
            break
    return at
