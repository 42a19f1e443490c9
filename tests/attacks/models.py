"""Spoil model directories in thousands of ways: each must give one sentence or finite vectors, on which backends agree.

    python tests/attacks/models.py --count 2000 --seconds 600 --seed 0
    python tests/attacks/models.py --seed 0 --only 1234        one case again, with its traceback

A case runs in a process of its own, with a limit on memory and on time. Exit code 1: something else came out, which is
printed with the number that repeats it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np  # after the environment, on which it depends what they all start
from mutations import mutate

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.kernels.encoder import cpu as cpu_encoder  # noqa: F401 - imported once, before the forks
from fastflow.stages.vectors import paired_cosine

TEXTS = [
    "the dog sleeps near it.",
    "",
    "\u00dcn\u00efcode 42 [MASK] </s> \u4e2d\u6587 xyzzy \U0001f600",
    "a dog " * 200,
]
BACKENDS = ("cpu", "reference")
SECONDS = 10  # for one case
MEMORY = 2 << 30  # bytes of address space for one case
AGREE, CONDITIONED = 0.999, 0.9999
LONGEST = 1200  # characters of a message

BUILD = """
import json, sys
from pathlib import Path
from support.builders import VOCABULARY, make_encoder, make_model, make_sentences
from safetensors.torch import load_file, save_file
from support.sentence_dirs import NORMALIZE, dense, make_directory, pooling
out, texts = Path(sys.argv[1]), make_sentences(96)
small = {"num_hidden_layers": 2, "max_position_embeddings": 66}
bert = make_encoder(out / "bert", **small)
roberta = make_encoder(out / "roberta", "roberta", **small)
make_encoder(out / "xlm-roberta", "xlm-roberta", **small)
make_encoder(out / "mpnet", "mpnet", **small)
make_encoder(out / "modernbert", "modernbert", **small)
vocab = make_encoder(out / "vocab", **small)
(vocab / "tokenizer.json").unlink()
(vocab / "vocab.txt").write_text("\\n".join(VOCABULARY) + "\\n")
(vocab / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "strip_accents": None}))
sharded = make_encoder(out / "sharded", **small)
tensors = load_file(sharded / "model.safetensors")
(sharded / "model.safetensors").unlink()
where = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(sorted(tensors))}
for shard in set(where.values()):
    save_file({n: t for n, t in tensors.items() if where[n] == shard}, sharded / shard, {"format": "pt"})
(sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
make_model(out / "flow", bert, texts, weighted=True, ordered=True)
make_model(out / "recolour", bert, texts, "flow,recolour")
make_model(out / "affine", roberta, texts, coupling="affine", permutation="lu")
make_model(out / "whiten", bert, texts, "whiten:16,flow", pooling="cls")
make_model(out / "nullspace", bert, texts, "standardize,nullspace:2", ordered=True, pooling="pooler")
words = {"vocab": VOCABULARY, "weights": {word: 0.5 for word in VOCABULARY[6:30]}}
before = [("WeightedLayerPooling", {"weights": [0.2, 1.0]}), ("WordWeights", words)]
both = pooling("mean", "weightedmean", include_prompt=False)
make_directory(out / "st-many", bert, [*before, both, dense(24), ("LayerNorm", {}), NORMALIZE], new=True)
prompts = {"prompts": {"query": "the dog: "}, "default_prompt_name": "query", "truncate_dim": 16}
make_directory(out / "st-prompts", bert, [pooling("cls", "max"), NORMALIZE], lower=True, **prompts)
residual = dense(8, "GELU", residual=True)
make_directory(out / "st-mpnet", out / "mpnet", [pooling("mean"), residual], folder="0_Transformer")
"""


@dataclass
class Case:
    """A case that runs: its number, process, the pipe it answers on, and when it has to be done."""

    number: int
    pid: int
    pipe: int
    until: float
    answer: bytes = b""


def run(directory: Path, backend: str, dtype: str = "float32") -> Any:
    """The vectors of TEXTS, or the sentence with which they are refused."""
    try:
        with Runtime(directory, "cpu", dtype, 1, backend=backend) as runtime:
            return runtime.encode(TEXTS)
    except FastflowError as error:
        return str(error)


def judge(directory: Path) -> tuple[str, str]:
    """(outcome, details) of a spoilt directory; outcomes that are findings begin with a capital."""
    found = {backend: run(directory, backend) for backend in BACKENDS}
    for backend, got in found.items():
        if isinstance(got, str) and (not got or "\n" in got or len(got) > LONGEST):
            return "Not a sentence", f"{backend}: {got[:400]!r}"
        if not isinstance(got, str) and not np.isfinite(got).all():
            return "NaN in silence", backend
    refused = [got for got in found.values() if isinstance(got, str)]
    if len(refused) == 2:
        return "refused", refused[0]
    if refused:
        return "refused by one backend", f"{next(b for b in found if isinstance(found[b], str))}: {refused[0]}"
    ours, theirs = found.values()
    if ours.shape != theirs.shape:
        return "Disagreement", f"shapes {ours.shape} and {theirs.shape}"
    if agreement(ours, theirs) >= AGREE:
        return "vectors", ""
    exact = run(directory, "reference", "float64")
    if isinstance(exact, str) or agreement(theirs, exact) < CONDITIONED:
        return "vectors beyond float32's rounding", ""
    return "Disagreement", f"cosine {agreement(ours, theirs)}"


def agreement(a: np.ndarray, b: np.ndarray) -> float:
    """The least cosine of two embeddings of a text; 1 if both are zero, or there are no dimensions."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    scale = max(np.abs(a).max(initial=0), np.abs(b).max(initial=0), 1e-300)
    zero = (np.abs(a).max(axis=1, initial=0) == 0) & (np.abs(b).max(axis=1, initial=0) == 0)
    return float(np.where(zero, 1, paired_cosine(a / scale, b / scale)).min(initial=1))


def prepare(bases: Path, work: Path, seed: int, number: int) -> tuple[Path, str]:
    """The spoilt directory of case ``number``, and what was done to it."""
    rng = random.Random(f"{seed}:{number}")
    base = rng.choice(sorted(bases.iterdir()))
    directory = work / f"case{number}"
    shutil.copytree(base, directory)
    return directory, f"{base.name}: {mutate(directory, rng)}"


def start(bases: Path, work: Path, seed: int, number: int) -> Case:
    """Fork the process of a case."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return Case(number, pid, reading, time.monotonic() + SECONDS)
    try:
        os.dup2(os.open(work / f"stderr{number}", os.O_WRONLY | os.O_CREAT), 2)  # Rust writes its panics there
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        warnings.simplefilter("ignore")
        try:
            directory, done = prepare(bases, work, seed, number)
            os.write(writing, json.dumps(["did", done]).encode() + b"\n")
            outcome, details = judge(directory)
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            outcome = f"{type(error).__name__} instead of a sentence"
            details = f"{str(error)[:200]!r} at {Path(where.filename).name}:{where.lineno}"
        os.write(writing, json.dumps([outcome, details[:1500]]).encode() + b"\n")
    finally:
        os._exit(0)


def collect(case: Case, work: Path, late: bool) -> tuple[str, str, str]:
    """(what was done, outcome, details) of a case that has ended, or is ended now because it is ``late``."""
    if late:
        os.kill(case.pid, signal.SIGKILL)
    status = os.waitpid(case.pid, 0)[1]
    os.close(case.pipe)
    lines = [json.loads(line) for line in case.answer.splitlines()]  # what was done, and what came of it
    did = lines[0][1] if lines else "nothing: the spoiling itself failed"
    said = (work / f"stderr{case.number}").read_text(errors="replace")[:300] if not late else ""
    for path in (work / f"case{case.number}", work / f"stderr{case.number}"):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    if late:
        return did, "Hang", f"over {SECONDS} s"
    if len(lines) < 2:
        return did, "Crash", f"status {status}: {said}"
    return did, lines[1][0], lines[1][1]


def attack(bases: Path, work: Path, seed: int, count: int, seconds: float, jobs: int) -> tuple[Counter[str], int]:
    """Run the cases, print findings as they come; (how often each outcome was seen, findings)."""
    counts: Counter[str] = Counter()
    running: dict[int, Case] = {}
    findings, number, stop = 0, 0, time.monotonic() + seconds
    while running or (number < count and time.monotonic() < stop):
        while len(running) < jobs and number < count and time.monotonic() < stop:
            case = start(bases, work, seed, number)
            running[case.pipe], number = case, number + 1
        ready = select.select(list(running), [], [], 0.5)[0]
        for pipe in list(running):
            case = running[pipe]
            if pipe in ready and (data := os.read(pipe, 65536)):
                case.answer += data
            elif pipe in ready or time.monotonic() > case.until:
                did, outcome, details = collect(running.pop(pipe), work, pipe not in ready)
                counts[outcome] += 1
                if outcome[0].isupper():
                    findings += 1
                    print(f"--seed {seed} --only {case.number}: {outcome}: {details}\n    {did}", flush=True)
    return counts, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=int, help="run the case of this number here, with its traceback")
    parser.add_argument("--bases", type=Path, help="keep the directories that are spoilt here, and take them from here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work, bases = Path(folder), options.bases or Path(folder) / "bases"
        if not bases.is_dir():
            bases.mkdir()
            subprocess.run([sys.executable, "-c", BUILD, bases], check=True, cwd=Path(__file__).parent.parent)
        if options.only is not None:
            directory, done = prepare(bases, work, options.seed, options.only)
            print(done)
            print(*judge(directory), sep=": ")
            return 0
        begun = time.monotonic()
        counts, findings = attack(bases, work, options.seed, options.count, options.seconds, options.jobs)
    for outcome, count in counts.most_common():
        print(f"{count:7}  {outcome}")
    print(f"{counts.total():7}  in all, {findings} of them findings, {time.monotonic() - begun:.0f} s")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
