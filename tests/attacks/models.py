"""Spoil model directories in thousands of ways: each must give one sentence or finite vectors, on which backends agree.

    python tests/attacks/models.py --count 2000 --seconds 600 --seed 0
    python tests/attacks/models.py --seed 0 --only 1234        one case again, with its traceback

A case runs in a process of its own, with a limit on memory and on time. Exit code 1: something else came out, which is
printed with the number that repeats it.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np  # after the environment, on which it depends what they all start
from boxed import Judge, attack, sentence
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
MEMORY = 2 << 30  # bytes that a case may take beyond what its process holds at its start
AGREE, CONDITIONED = 0.999, 0.9999

BUILD = """
import json, sys
from pathlib import Path
from support.builders import VOCABULARY, make_encoder, make_model, make_sentences
from safetensors.torch import load_file, save_file
from support.sentence_dirs import NORMALIZE, dense, make_directory, pooling
from support.static_dirs import model2vec_dir, static_embedding_dir
import numpy as np
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
model2vec_dir(out / "table", width=16, clusters=30, weights=np.float32, normalize=True)
table = model2vec_dir(out / "table-int8", width=16, dtype=np.int8, weights=np.float32)
make_model(out / "table-flow", table, texts, pooling="words", max_length=None, weighted=True, ordered=True)
bag = {"out_features": 8, "activation_function": "torch.nn.modules.activation.Tanh"}
static_embedding_dir(out / "table-bag", [("Dense", bag), ("Normalize", {})], width=16, dtype=np.float16)
"""


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
        if isinstance(got, str) and (judged := sentence(got, False))[1]:
            return judged
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


def bases() -> list[Path]:
    """The sound directories, which the first case makes for all."""
    kept = os.environ.get("FASTFLOW_BASES")  # a folder in which the fuzzer's targets share them
    folder = Path(kept) if kept else Path(tempfile.gettempdir()) / f"fastflow-bases-{os.getpid()}"
    if not folder.is_dir():
        making = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        subprocess.run([sys.executable, "-c", BUILD, making], check=True, cwd=Path(__file__).parent.parent)
        making.rename(folder)
        if not kept:
            atexit.register(shutil.rmtree, folder)
    return sorted(folder.iterdir())


def case(number: int, seed: int, folder: Path) -> Judge:
    """The judge of a case, whose details say what was done to the directory."""
    rng = random.Random(f"{seed}:{number}")
    base = rng.choice(bases())
    directory = Path(shutil.copytree(base, folder / "case"))
    done = mutate(directory, rng)

    def judged() -> tuple[str, str]:
        outcome, details = judge(directory)
        return outcome, f"{details} ({base.name}: {done})"

    return judged


if __name__ == "__main__":
    sys.exit(attack(__doc__, case, MEMORY))
