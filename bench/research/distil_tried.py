"""Changes of the regression that were tried, by held-out sentences alone; no scored set is read.

python -m fastflow.bench.research.distil_tried TEACHER CORPUS.txt VECTORS.npy

CORPUS has a sentence a line, VECTORS.npy (n, D) the teacher's vectors of its first n, each of length 1.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import scipy.linalg
import scipy.sparse as sparse
from scipy.stats import spearmanr

from fastflow.train.data.sharded import key_of
from fastflow.train.distil import ridge
from fastflow.train.distil.bags import Bags, add_words, special_ids, split_words
from fastflow.train.distil.lengths import first_lengths
from fastflow.train.distil.run import _pieces
from fastflow.train.distil.sums import Sums
from fastflow.train.distil.teacher import Teacher, unit

FIRM, PENALTY, NEAR = 1e-2, 0.05, 10
teacher, vectors = Teacher(sys.argv[1]), np.load(sys.argv[3])
texts = Path(sys.argv[2]).read_text(encoding="utf-8").split("\n")[: len(vectors)]
held = np.array([key_of(text, 0)[0] % 16 == 0 for text in texts])
seen, unseen = ([text for text, h in zip(texts, held, strict=True) if h == side] for side in (False, True))
y, wanted = vectors[~held], vectors[held]
tokenizer = teacher.tokenizer()
bags = Bags(tokenizer)
alone = teacher.alone([[i] for i in range(bags.size)])["vectors"]
alone[special_ids(tokenizer)] = 0
ids = bags.ids(seen)
counts, x, tested = np.bincount(np.concatenate(ids), minlength=bags.size), bags.of(ids), bags(unseen)

likeness = wanted @ wanted.T  # pairs: the NEAR most alike of each held-out sentence, and as many at random
np.fill_diagonal(likeness, -2)
others = np.hstack(
    [np.argsort(-likeness, axis=1)[:, :NEAR], np.random.default_rng(0).integers(0, len(wanted), (len(wanted), NEAR))]
)
pairs = np.stack([np.repeat(np.arange(len(wanted)), 2 * NEAR), others.ravel()])
pairs = pairs[:, pairs[0] != pairs[1]]


def judge(name, found):
    """Print the mean cosine to the teacher, and the rank correlation of the pairs' cosines with the teacher's."""
    found = unit(found)
    cosines = [(v[pairs[0]] * v[pairs[1]]).sum(axis=1) for v in (found, wanted)]
    print(
        f"{name}: {(found * wanted).sum(axis=1).mean():.4f} {spearmanr(*cosines)[0]:.4f}, {time.process_time():.0f} s",
        flush=True,
    )


def ridged(sums, start, penalty=PENALTY):
    return ridge.solve(sums, ridge.right_side(sums, start), penalty, None, 1e-2)


divided = first_lengths(alone, counts, x[:8192], y[:8192]).divide(x)
sums = Sums.of(divided, y)
start = ridge.Prior(alone, counts, sums, True)(FIRM)
change = ridged(sums, start)
table = start + change + sums.mean
judge("prior", tested @ (start + sums.mean))
judge("as it is", tested @ table)

lengths = np.linalg.norm(x @ table, axis=1)
again = Sums.of(sparse.csr_array(sparse.diags_array(1 / np.clip(lengths / lengths.mean(), 0.2, 5)) @ x), y)
begin = ridge.Prior(alone, counts, again, True)(FIRM)
judge("lengths of the whole table", tested @ (begin + ridged(again, begin) + again.mean))

noise = np.cov((wanted - tested @ table).T) + 1e-6 * np.eye(y.shape[1])
sizes, basis = scipy.linalg.eigh(change.T.astype(float) @ change / np.count_nonzero(counts), noise)
right = ridge.right_side(sums, start) @ basis
for power in (0.5, 1.0):
    penalties, turned = (
        PENALTY * (sizes / np.exp(np.log(np.maximum(sizes, 1e-9)).mean())) ** -power,
        np.empty_like(change),
    )
    for part in np.array_split(np.argsort(-sizes), 6):
        mean = float(np.exp(np.log(penalties[part]).mean()))
        turned[:, part] = ridge.solve(sums, np.ascontiguousarray(right[:, part]), mean, None, 1e-2)
    judge(f"a penalty for each direction, {power}", tested @ (start + turned @ np.linalg.inv(basis) + sums.mean))

piece = np.array([tokenizer.id_to_token(i).startswith("##") for i in range(bags.size)])
scales = {"pieces of words 1.5": np.where(piece, 1.5, 1.0), "rare tokens looser": (1 + counts) ** -0.15,
          "rare tokens firmer": (1 + counts) ** 0.15}  # fmt: skip
for name, scale in scales.items():
    scale = scale / np.exp(np.average(np.log(scale), weights=counts))
    scaled = Sums.of(sparse.csr_array(divided @ sparse.diags_array(scale)), y)
    found = ridge.solve(scaled, scale[:, None] * ridge.right_side(sums, start), PENALTY, None, 1e-2)
    judge(f"a penalty for each token, {name}", tested @ (start + scale[:, None] * found + sums.mean))

larger = teacher.tokenizer()
words = split_words(larger, seen, 4000)
add_words(larger, words)
worded = Bags(larger)
own = np.concatenate([alone, teacher.alone(_pieces(teacher, words))["vectors"]])
ids = worded.ids(seen)
rows, number = worded.of(ids), np.bincount(np.concatenate(ids), minlength=worded.size)
more = Sums.of(first_lengths(own, number, rows[:8192], y[:8192]).divide(rows), y)
begin = ridge.Prior(own, number, more, True)(FIRM)
judge(f"{len(words)} words", worded(unseen) @ (begin + ridged(more, begin) + more.mean))


class Joined(ridge.Prior):
    """A prior that also has the mean vector of the sentences that hold each token, drawn to zero by ``firm`` sentences."""

    def __init__(self, firm):
        super().__init__(alone, counts, sums, True)
        self.features = np.hstack([self.features, sums.centred() / (sums.bag[:, None] + firm)])
        self._square = self.features.T @ sums.square(self.features).astype(np.float64)
        self._right = self.features.T @ sums.centred()


for firm in (1.0, 10.0):
    begin = Joined(firm)(1e-3)
    judge(f"the mean of a token's sentences in the prior, {firm}: prior", tested @ (begin + sums.mean))
    judge(f"the mean of a token's sentences in the prior, {firm}", tested @ (begin + ridged(sums, begin) + sums.mean))
