"""Make the sound model directories that targets spoil: python tests/fuzz/bases.py FOLDER."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import harness  # noqa: F401 - the path of support

TEXTS = [
    "the dog sleeps near it.",
    "",
    "\u00dcn\u00efcode 42 [MASK] </s> \u4e2d\u6587 xyzzy \U0001f600",
    "a dog " * 200,
]


def make() -> list[Path]:
    """Return the directories, made once for all targets of a run of run.py, else once for a process."""
    kept = os.environ.get("FASTFLOW_BASES")
    folder = Path(kept) if kept else Path(tempfile.gettempdir()) / f"fastflow-bases-{os.getpid()}"
    if not folder.is_dir():
        making = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        subprocess.run([sys.executable, __file__, making], check=True)
        making.rename(folder)
        if not kept:
            atexit.register(shutil.rmtree, folder)
    return sorted(folder.iterdir())


def write(out: Path) -> None:
    """Write every directory; this process imports torch."""
    import numpy as np
    from safetensors.torch import load_file, save_file

    from support.builders import VOCABULARY, make_encoder, make_model, make_sentences
    from support.sentence_dirs import NORMALIZE, dense, make_directory, pooling
    from support.static_dirs import model2vec_dir, static_embedding_dir

    texts = make_sentences(96)
    small = {"num_hidden_layers": 2, "max_position_embeddings": 66}
    bert = make_encoder(out / "bert", **small)
    roberta = make_encoder(out / "roberta", "roberta", **small)
    make_encoder(out / "xlm-roberta", "xlm-roberta", **small)
    make_encoder(out / "mpnet", "mpnet", **small)
    make_encoder(out / "modernbert", "modernbert", **small)
    vocab = make_encoder(out / "vocab", **small)
    (vocab / "tokenizer.json").unlink()
    (vocab / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
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
    words = {"vocab": VOCABULARY, "weights": dict.fromkeys(VOCABULARY[6:30], 0.5)}
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


if __name__ == "__main__":
    write(Path(sys.argv[1]))
