"""Forks while another thread makes what a Runtime needs late: each child must end, with the numbers of its parent.

    python tests/attacks/forks.py --rounds 400 --seconds 600 --seed 0

A round is a process with one kind of model, opened anew for each fork: a thread encodes long texts, cuts vectors,
asks for densities, tokens or the fingerprint; some milliseconds later the process forks, and the child does the same.
Exit code 1 for a child that hangs, dies or has other numbers. tests/test_late.py forks inside each late thing.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path

from boxed import rounds

TESTS = Path(__file__).parent.parent
FORKS = 8  # of a round
HUNG = 120  # seconds after which a child waits for ever, however busy the machine is
SLOWEST = 0.03  # seconds before a fork, at most: what is late is made sooner
KINDS = [
    ("static", {}), ("model2vec", {}), ("unigram", {}), ("embedding", {}), ("xlm-roberta", {}), ("default", {}),
    ("flow", {}), ("flow", {"dtype": "int8"}), ("flow", {"backend": "reference"}), ("flow", {"backend": "torch"}),
]  # fmt: skip

BUILD = """
import sys
from pathlib import Path
from support.builders import make_encoder, make_model, make_sentences, unigram
from support.static_dirs import model2vec_dir, static_embedding_dir
out = Path(sys.argv[1])
make_model(out / "flow", make_encoder(out / "bert"), make_sentences(96))
make_encoder(out / "xlm-roberta", "xlm-roberta")
model2vec_dir(out / "model2vec", seq_length=64)
model2vec_dir(out / "unigram", unigram(), seq_length=64)
static_embedding_dir(out / "embedding", [("Dense", {"out_features": 8})], tokenizer=unigram())
"""

ROUND = """
import json, os, signal, sys, threading, time, warnings
import numpy as np
import fastflow
warnings.simplefilter("ignore")
model, options, waits, hung = json.loads(sys.argv[1])

def use(rt, of):
    out = [rt.encode(["word " * 200, "a dog"]), rt.encode("a cat", truncate_dim=5)]
    if "flow" in rt.info()["calibration"]:
        out.append(rt.log_prob(["a dog", "a cat"]))
    out.append([piece.id for piece in rt.tokenizer.describe(["a dog"])[0]])
    out.append([int(rt.fingerprint[:8], 16)])
    return np.concatenate([np.ravel(part) for part in out[::of]])

for number, wait in enumerate(waits):
    rt, found = fastflow.Runtime(model, threads=1, **options), []
    of = (1, -1)[number % 2]
    thread = threading.Thread(target=lambda: found.append(use(rt, of)))
    thread.start()
    time.sleep(wait)
    if (pid := os.fork()) == 0:
        signal.alarm(hung)
        np.save(sys.argv[2], use(rt, of))
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    thread.join()
    if status:
        sys.exit(f"fork {number}: the child ended with {status}" + " (it hung)" * (status == -signal.SIGALRM))
    if np.abs(np.load(sys.argv[2]) - found[0]).max() > 1e-5 * np.abs(found[0]).max():
        sys.exit(f"fork {number}: the child has other numbers")
"""


@cache
def models() -> Path:
    """A folder with the models, removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="fastflow-forks-"))
    atexit.register(shutil.rmtree, folder)
    subprocess.run([sys.executable, "-c", BUILD, folder], check=True, env=os.environ | {"PYTHONPATH": str(TESTS)})
    return folder


def one(folder: Path, rng: random.Random, number: int, counts: Counter[str]) -> list[str]:
    """The kinds take turns; returns the fault, if any."""
    name, options = KINDS[number % len(KINDS)]
    model = name if name in ("static", "default") else str(models() / name)
    waits = [rng.random() * SLOWEST for _ in range(FORKS)]
    command = [sys.executable, "-c", ROUND, json.dumps([model, options, waits, HUNG]), str(folder / "vectors.npy")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    counts["forks"] += FORKS
    counts[name] += 1
    return [f"{name} {options}: {done.stderr.strip()}"] if done.returncode else []


if __name__ == "__main__":
    sys.exit(rounds(__doc__, 400, one))
