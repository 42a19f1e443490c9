"""Forks while another thread makes what a Runtime needs late: each child must end, with its parent's numbers.

A round is a process with one kind of model, opened anew for each fork: a thread encodes long texts, cuts vectors,
asks for densities, tokens or the fingerprint; some milliseconds later the process forks, and the child does the same.
tests/test_late.py forks inside each late thing.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import Finding

from support.builders import make_encoder, make_model, make_sentences, unigram
from support.static_dirs import model2vec_dir, static_embedding_dir

FORKS = 8  # of a round
HUNG = 120  # seconds after which a child waits for ever, however busy the machine is
SLOWEST = 0.03  # seconds before a fork, at most: what is late is made sooner
KINDS = [
    ("static", {}), ("model2vec", {}), ("unigram", {}), ("embedding", {}), ("xlm-roberta", {}), ("default", {}),
    ("flow", {}), ("flow", {"dtype": "int8"}), ("flow", {"backend": "reference"}), ("flow", {"backend": "torch"}),
]  # fmt: skip

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


@contextmanager
def prepare(folder: Path) -> Iterator[Callable[..., None]]:
    make_model(folder / "flow", make_encoder(folder / "bert"), make_sentences(96))
    make_encoder(folder / "xlm-roberta", "xlm-roberta")
    model2vec_dir(folder / "model2vec", seq_length=64)
    model2vec_dir(folder / "unigram", unigram(), seq_length=64)
    static_embedding_dir(folder / "embedding", [("Dense", {"out_features": 8})], tokenizer=unigram())

    def one(place: Path, rng: random.Random, number: int, counts: Counter[str]) -> None:
        name, options = KINDS[number % len(KINDS)]
        model = name if name in ("static", "default") else str(folder / name)
        waits = [rng.random() * SLOWEST for _ in range(FORKS)]
        command = [sys.executable, "-c", ROUND, json.dumps([model, options, waits, HUNG]), str(place / "vectors.npy")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        counts["forks"] += FORKS
        counts[name] += 1
        if done.returncode:
            raise Finding(f"{name} {options}: {done.stderr.strip()}")

    yield one
