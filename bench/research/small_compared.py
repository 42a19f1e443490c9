"""Score small and another student: small_compared.py DATA DIR."""

import sys
from pathlib import Path

import numpy as np

from fastflow.evaluation.evaluate import SEVEN, find_tasks, measure
from fastflow.runtime import Runtime

D = Path(sys.argv[1])
ms = {"small": "small", "new": sys.argv[2]}
ts = find_tasks(
    [D / "sts" / f"{n}.tsv" for n in SEVEN]
    + [D / "tasks/classes" / f"{n}.tsv" for n in ("banking77", "trec")]
    + [D / "tasks/pairs/msrp.tsv"]
    + [D / "tasks/retrieval" / n for n in ("npl", "scifact")]
)
R = {k: Runtime(v, dtype="float32") for k, v in ms.items()}
acc = {k: {} for k in ms}
for t in ts:
    for k, r in R.items():
        acc[k][t.name] = round(float(next(iter(measure(t, r.encode(t.texts)).values()))), 2)
    print(t.name, {k: acc[k][t.name] for k in ms}, flush=True)
print({k: round(np.mean([acc[k][n] for n in SEVEN]), 2) for k in ms})
