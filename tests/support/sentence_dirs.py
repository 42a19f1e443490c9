"""Directories as Sentence Transformers saves them, made without it, and their embeddings computed from its definitions.

``expected`` shares no code with fastflow: transformers in float64, one text at a time, module after module as the
sources of Sentence Transformers 6.2 have them. ``theirs`` are the vectors of Sentence Transformers itself.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

NEW = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
    "Dropout": "sentence_transformers.sentence_transformer.modules.dropout.Dropout",
    "LayerNorm": "sentence_transformers.sentence_transformer.modules.layer_norm.LayerNorm",
    "WordWeights": "sentence_transformers.sentence_transformer.modules.word_weights.WordWeights",
    "WeightedLayerPooling": "sentence_transformers.sentence_transformer.modules.weighted_layer_pooling."
    "WeightedLayerPooling",
}
LEGACY = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
Module = tuple[str, dict[str, Any]]


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def pooling(*modes: str, **settings: Any) -> Module:
    return "Pooling", {"modes": modes, **settings}


def dense(out: int, activation: str = "Tanh", **settings: Any) -> Module:
    return "Dense", {"out": out, "activation": activation, **settings}


NORMALIZE: Module = ("Normalize", {})
PROMPTED = {"prompts": {"query": "a dog: "}, "default_prompt_name": "query"}  # settings of a directory


def make_directory(
    path: Path, encoder: Path, modules: list[Module], *, new: bool = False, folder: str = "", length: int | None = 64,
    lower: bool = False, seed: int = 0, **settings: Any,
) -> Path:  # fmt: skip
    """Save ``encoder`` and ``modules`` in the files of older releases, or of the ``new``er; ``settings``: prompts ...

    ``folder``: of the encoder. Weights are drawn.
    """
    torch.manual_seed(seed)
    shutil.copytree(encoder, path / folder)
    if length is not None or lower:
        write(path / folder / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": lower})
    config = json.loads((path / folder / "config.json").read_text())
    hidden = width = config.get("hidden_size") or config["dim"]
    entries = [{"idx": 0, "name": "0", "path": folder, "type": kind_name("Transformer", new)}]
    for i, (kind, own) in enumerate(modules, 1):
        name = f"{i}_{kind}"
        entries.append({"idx": i, "name": str(i), "path": name, "type": kind_name(kind, new)})
        saved = MAKE[kind](own, width, hidden, new, config)
        if saved is not None:
            write(path / name / "config.json", saved[0])
            if saved[1]:
                save_file(saved[1], path / name / "model.safetensors")
            width = saved[2]
        if kind == "WeightedLayerPooling":
            write(path / folder / "config.json", config | {"output_hidden_states": True})
    write(path / "modules.json", entries)
    write(path / "config_sentence_transformers.json", {"__version__": {"sentence_transformers": "3.0.0"}, **settings})
    return path


def kind_name(kind: str, new: bool) -> str:
    return NEW[kind] if new else f"sentence_transformers.models.{kind}"


def _pooling(own, width, hidden, new, config):
    modes, prompt = own["modes"], {"include_prompt": own.get("include_prompt", True)}
    if new:
        mode = modes[0] if len(modes) == 1 else list(modes)
        return {"embedding_dimension": hidden, "pooling_mode": mode, **prompt}, {}, hidden * len(modes)
    flags = {name: mode in modes for name, mode in LEGACY.items()}
    return {"word_embedding_dimension": hidden, **flags, **prompt}, {}, hidden * len(modes)


def _dense(own, width, hidden, new, config):
    out, bias = own["out"], own.get("bias", True)
    module = "linear" if own["activation"] == "Identity" else "activation"
    tensors = {"linear.weight": torch.randn(out, width) * width**-0.5}
    if bias:
        tensors["linear.bias"] = torch.randn(out) * 0.3
    name = f"torch.nn.modules.{module}.{own['activation']}"
    saved = {"in_features": width, "out_features": out, "bias": bias, "activation_function": name}
    if own.get("residual"):
        saved["use_residual"] = True
        if out != width:
            tensors["residual.weight"] = torch.randn(out, width) * width**-0.5
    return saved, tensors, out


def _layer_norm(own, width, hidden, new, config):
    tensors = {"norm.weight": 1 + 0.2 * torch.randn(width), "norm.bias": 0.2 * torch.randn(width)}
    return {"dimension": width}, tensors, width


def _word_weights(own, width, hidden, new, config):
    return (
        {"vocab": own["vocab"], "word_weights": own["weights"], "unknown_word_weight": own.get("other", 1)},
        {},
        width,
    )


def _layers(own, width, hidden, new, config):
    weights = torch.tensor(own["weights"], dtype=torch.float32)
    start = config["num_hidden_layers"] + 1 - len(weights)
    name = "embedding_dimension" if new else "word_embedding_dimension"
    saved = {name: hidden, "layer_start": start, "num_hidden_layers": config["num_hidden_layers"]}
    return saved, {"layer_weights": weights}, width


MAKE = {
    "Pooling": _pooling,
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "WordWeights": _word_weights,
    "WeightedLayerPooling": _layers,
    "Dropout": lambda own, width, hidden, new, config: ({"dropout": 0.5}, {}, width),
    "Normalize": lambda own, width, hidden, new, config: None,  # the Hub keeps no empty folder
}


def expected(path: Path, texts: list[str], prompt: str = "", **encoder: Any) -> np.ndarray:
    """(B, D') float64 embeddings of the directory; of ``settings`` truncate_dim alone is obeyed."""
    entries = json.loads((path / "modules.json").read_text())
    folder = path / entries[0]["path"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, output_hidden_states=True).double().eval()
    said = folder / "sentence_bert_config.json"
    own = json.loads(said.read_text()) if said.exists() else {}
    limit = own.get("max_seq_length") or min(tokenizer.model_max_length, model.config.max_position_embeddings)

    def tokens(text):
        text = text.lower() if own.get("do_lower_case") else text
        return tokenizer(text, truncation=True, max_length=limit)["input_ids"]

    alone = tokens(prompt) if prompt else []
    skip = len(alone) - (alone[-1] in tokenizer.all_special_ids) if alone else 0
    out = []
    for text in texts:
        ids = tokens(prompt + text)
        with torch.inference_mode():
            states = model(input_ids=torch.tensor([ids])).hidden_states
            features = {"ids": ids, "all": [s[0] for s in states], "tokens": states[-1][0], "skip": skip}
            for entry in entries[1:]:
                RUN[entry["type"].rpartition(".")[2]](features, path / entry["path"])
        out.append(features["text"].numpy())
    keep = json.loads((path / "config_sentence_transformers.json").read_text()).get("truncate_dim")
    return np.array(out)[:, :keep]


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.double() for name, tensor in load_file(folder / "model.safetensors").items()}


def run_layers(f, folder):
    weights, start = weights_of(folder)["layer_weights"], config_of(folder)["layer_start"]
    f["tokens"] = sum(w * state for w, state in zip(weights, f["all"][start:], strict=True)) / weights.sum()


def run_word_weights(f, folder):
    c = config_of(folder)
    by_id = [c["word_weights"].get(w, c["word_weights"].get(w.lower(), c["unknown_word_weight"])) for w in c["vocab"]]
    weights = torch.tensor(by_id).double()[f["ids"]]
    f["tokens"], f["sum"] = f["tokens"] * weights[:, None], weights.sum()


def run_pooling(f, folder):
    c, x = config_of(folder), f["tokens"]
    given = c.get("pooling_mode", [mode for name, mode in LEGACY.items() if c.get(name)])
    kept = torch.arange(len(x)) >= (0 if c.get("include_prompt", True) else f["skip"])
    place = torch.arange(1, len(x) + 1).double()
    parts = []
    for mode in [given] if isinstance(given, str) else given:
        if mode == "cls":
            parts.append(x[int(kept.int().argmax())])
        elif mode == "lasttoken":
            parts.append(x[-1] if kept.any() else torch.zeros_like(x[0]))
        elif mode == "max":
            parts.append(x[kept].max(dim=0).values)
        else:
            by = place if mode == "weightedmean" else torch.ones_like(place)
            total, divisor = (x * (by * kept)[:, None]).sum(0), f.get("sum", (by * kept).sum()).clamp(min=1e-9)
            parts.append(total / (divisor.sqrt() if mode == "mean_sqrt_len_tokens" else divisor))
    f["text"] = torch.cat(parts)


def run_dense(f, folder):
    c, w, x = config_of(folder), weights_of(folder), f["text"]
    y = w["linear.weight"] @ x + w.get("linear.bias", 0)
    y = getattr(torch.nn, c["activation_function"].rpartition(".")[2])()(y)
    if c.get("use_residual"):
        y = y + (w["residual.weight"] @ x if "residual.weight" in w else x)
    f["text"] = y


def run_layer_norm(f, folder):
    w, x = weights_of(folder), f["text"]
    f["text"] = torch.nn.functional.layer_norm(x, x.shape, w["norm.weight"], w["norm.bias"])


def run_normalize(f, folder):
    f["text"] = torch.nn.functional.normalize(f["text"], dim=0)


RUN = {
    "Pooling": run_pooling,
    "Dense": run_dense,
    "LayerNorm": run_layer_norm,
    "Normalize": run_normalize,
    "Dropout": lambda f, folder: None,
    "WordWeights": run_word_weights,
    "WeightedLayerPooling": run_layers,
}


def theirs(path: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(path), device="cpu", local_files_only=True, model_kwargs={"dtype": "float32"})


def apart(found: np.ndarray, want: np.ndarray) -> float:
    """The largest difference of vectors, relative to the longest if the directory does not normalise them."""
    assert found.shape == want.shape
    assert np.isfinite(found).all()
    return float(np.abs(found - want).max() / max(1, np.linalg.norm(want, axis=1).max()))


def least_cosine(found: np.ndarray, want: np.ndarray) -> float:
    return float(((found * want).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(want, axis=1)).min())
