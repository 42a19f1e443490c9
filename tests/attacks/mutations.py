"""Ways to spoil a model directory. Each takes the directory and a random generator, and says what it did."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from model.test_refusals_encoder import CONFIGS, OF_PYTORCH
from model.test_refusals_model import OF_TEXTS
from model.test_refusals_tokenizer import with_one_more_word, with_template_beyond, with_token_beyond, without_unknown
from safetensors.numpy import load_file, save_file

from support.refusals import spoil

HOSTILE = [
    None, True, False, 0, -1, 1, 2, 3, 7, 4.0, 4.9, 0.5, -1e-3, 1e308, 1e-320, "", "4", "abc", [], {}, [[]], [1],
    {"a": 1}, 10**6, 10**7, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64, 10**30, float("nan"), float("inf"),
    float("-inf"), "\ud800", "a\0b", "../../x", "x" * 5000,
]  # fmt: skip
DEEP = "[" * 20_000 + "]" * 20_000
NUMBERS = [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e30, 1e20, 1e10, 1e5, 1e-30, 1e-42, 0.0]
SIZES = [2**31, 2**31 - 1, 10**7, 10**6, 1000, 5, 0, -1, 4.0, 4.9, True, "3", None, float("nan"), 1e300]
MODULE = {
    "pooling_mode": ["mean", ["mean", "cls"], ["mean", "mean"], [], "x", 3], "pooling_mode_cls_token": [True, "x", 1],
    "pooling_mode_lasttoken": [True], "include_prompt": [True, False, None, 3], "embedding_dimension": SIZES,
    "word_embedding_dimension": SIZES, "in_features": SIZES, "out_features": SIZES, "bias": [True, False, None],
    "use_residual": [True, False, 3], "activation_function": ["torch.nn.modules.activation.ReLU", "os.system", 3, ""],
    "dimension": SIZES, "vocab": [[], ["a"] * 10**5, None], "word_weights": [{}, {"the": 1e-300}, {"the": "x"}, []],
    "unknown_word_weight": SIZES, "layer_start": SIZES, "num_hidden_layers": SIZES, "max_seq_length": [*SIZES, 1, 2, 3],
    "do_lower_case": [True, False, None, 3], "prompts": [{}, {"a": "x" * 5000}, {"a": 3}, []], "truncate_dim": SIZES,
    "default_prompt_name": ["query", "x", 3], "similarity_fn_name": ["dot", "x", None, []], "path": ["", "..", "x", 3],
    "type": ["sentence_transformers.models.Normalize", "os.system", 3], "idx": SIZES,
}  # fmt: skip
Random = random.Random


def files(directory: Path, *suffixes: str) -> list[Path]:
    """The files of a model with one of ``suffixes``, or all, in a fixed order."""
    return sorted(p for p in directory.rglob("*") if p.is_file() and (not suffixes or p.suffix in suffixes))


def repair(directory: Path) -> None:
    """Make hashes and fingerprint of a manifest agree again, so that the checks after them are reached."""
    path = directory / "fastflow.json"
    try:
        manifest = json.loads(path.read_text() if path.is_file() else "")
        manifest["files"] = {
            name: hashlib.sha256((directory / name).read_bytes()).hexdigest()
            if (directory / name).is_file() else mark for name, mark in manifest["files"].items()
        }  # fmt: skip
        rest = {name: value for name, value in manifest.items() if name != "fingerprint"}
        manifest["fingerprint"] = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
        path.write_text(json.dumps(manifest))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass  # there is no manifest, or none that can agree with anything


def change_bytes(directory: Path, rng: Random) -> str:
    path = rng.choice(files(directory))
    data = bytearray(path.read_bytes())
    how = rng.choice(["flip", "flip", "flip", "head", "cut", "append", "empty", "delete", "folder", "overwrite"])
    if how in ("flip", "head") and data:
        for _ in range(rng.choice([1, 1, 3, 20])):
            data[rng.randrange(min(len(data), 400) if how == "head" else len(data))] ^= 1 << rng.randrange(8)
    elif how == "cut":
        del data[rng.randrange(len(data) + 1) :]
    elif how == "append":
        data += rng.randbytes(rng.choice([1, 8, 500]))
    elif how == "overwrite" and data:
        at = rng.randrange(len(data))
        data[at : at + 8] = rng.randbytes(8)
    path.write_bytes(b"" if how == "empty" else data)
    if how in ("delete", "folder"):
        path.unlink()
    if how == "folder":
        path.mkdir()
    return f"{path.name}: bytes, {how}"


def places(value: Any, most: int = 40) -> list[tuple[Any, Any]]:
    """(container, key) of the values inside, at most ``most`` in each container: a vocabulary has thousands."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    found = [(value, key) for key in keys[:most]]
    return found + [place for key in keys[:most] for place in places(value[key], most)]


def change_json(directory: Path, rng: Random) -> str:
    path = rng.choice(files(directory, ".json"))
    tree = json.loads(path.read_text())
    how = rng.choice(["value", "value", "value", "value", "drop", "scale", "deep", "root", "swap"])
    container, key = rng.choice(places(tree))
    if how == "drop":
        del container[key]
    elif how == "scale" and type(container[key]) in (int, float):
        container[key] = rng.choice([container[key] + 1, container[key] - 1, -container[key], container[key] * 10**6])
    elif how == "swap":
        other, place = rng.choice(places(tree))
        container[key] = json.loads(json.dumps(other[place]))
    elif how == "root":
        tree = rng.choice(HOSTILE)
    else:
        container[key] = "<deep>" if how == "deep" else rng.choice(HOSTILE)
    path.write_text(json.dumps(tree).replace('"<deep>"', DEEP))
    return f"{path.name}: JSON, {how} at {key!s:.40}"


def change_field(directory: Path, rng: Random) -> str:
    """A field that the loader is known to read, by a value of the tables of refusals."""
    if (directory / "modules.json").is_file() and rng.random() < 0.7:
        return change_module(directory, rng)
    file, fault, _ = rng.choice([*CONFIGS, *OF_PYTORCH])
    encoder = directory / "0_Transformer"
    if (directory / "fastflow.json").is_file() and rng.random() < 0.5:
        file, fault = "fastflow.json", rng.choice(OF_TEXTS)[0]
    elif encoder.is_dir():
        directory = encoder
    spoil(directory, file, fault)
    return f"{file}: {fault!s:.60}"


def change_module(directory: Path, rng: Random) -> str:
    """A field of a directory of Sentence Transformers that the file has, or that another of its files could."""
    path = rng.choice([p for p in files(directory, ".json") if "token" not in p.name])
    tree = json.loads(path.read_text())
    entry = rng.choice(tree) if isinstance(tree, list) else tree
    field = rng.choice([name for name in MODULE if name in entry] or list(MODULE))
    entry[field] = rng.choice(MODULE[field])
    path.write_text(json.dumps(tree))
    return f"{path.relative_to(directory)}: field {field}"


def change_tensor(directory: Path, rng: Random) -> str:
    path = rng.choice(files(directory, ".safetensors"))
    arrays = load_file(path)
    name = rng.choice(sorted(arrays))
    array = np.array(arrays[name])
    how = rng.choice(["one", "all", "row", "drop", "shape", "dtype", "scale", "shuffle", "extra"])
    value = rng.choice(NUMBERS)
    if how in ("one", "all", "row") and array.dtype.kind == "f" and array.size:
        at = {"one": np.unravel_index(rng.randrange(array.size), array.shape), "all": ..., "row": 0}[how]
        array[at] = value
    elif how == "one" and array.size:
        array.flat[rng.randrange(array.size)] = rng.choice([-1, 10**6, 0, 3])
    elif how == "shape":
        array = rng.choice(
            [array[:0], array[:-1], array[None], array.reshape(-1), np.concatenate([array, array]), array.T]
        )
    elif how == "dtype":
        array = array.astype(rng.choice([np.int64, np.int32, np.uint8, np.float16, np.float64]))
        if array.dtype == np.float64 and rng.random() < 0.5:
            array[...] = 1e300
    elif how == "scale":
        array = (array * rng.choice([1e3, 1e5, 1e10, 1e20, -1, 1e-20])).astype(array.dtype)
    elif how == "shuffle":
        other = rng.choice(sorted(arrays))
        arrays[other], array = array, arrays[other]
    arrays[name + "x" * (how == "extra")] = np.ascontiguousarray(array)
    if how == "drop":
        del arrays[name]
    save_file(arrays, path)
    return f"{path.name}: tensor {name} {how} {value}"


def change_header(directory: Path, rng: Random) -> str:
    path = rng.choice(files(directory, ".safetensors"))
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    container, key = rng.choice(places(header))
    container[key] = "<deep>" if rng.random() < 0.1 else rng.choice(HOSTILE)
    text = json.dumps(header).replace('"<deep>"', DEEP).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(rng.choice([len(text)] * 8 + [0, 2**40, 2**63]).to_bytes(8, "little") + text + data[8 + size :])
    return f"{path.name}: header at {key!s:.40}"


def change_tokenizer(directory: Path, rng: Random) -> str:
    found = [p for p in files(directory, ".json", ".txt") if p.name in ("tokenizer.json", "vocab.txt")]
    path = found[0]
    if path.suffix == ".txt":
        lines = path.read_text().split("\n")
        rng.choice([lines.reverse, lines.clear, lambda: lines.extend(lines), lambda: lines.remove("[SEP]")])()
        path.write_text("\n".join(lines))
        return "vocab.txt: lines"
    tree = json.loads(path.read_text())
    how = rng.choice(sorted(TOKENIZER))
    TOKENIZER[how](tree, rng)
    path.write_text(json.dumps(tree))
    return f"tokenizer.json: {how}"


def _vocabulary_id(tree: dict[str, Any], rng: Random) -> None:
    vocabulary = tree["model"]["vocab"]
    new = rng.choice([10**6, 2**31, 2**32 - 1, 2**32, -1, 0, 3.5, len(vocabulary), len(vocabulary) + 1])
    if isinstance(vocabulary, dict):
        vocabulary[rng.choice(list(vocabulary))] = new
    else:
        rng.choice(vocabulary)[1] = rng.choice([1e308, float("nan"), -1e308, "x"])


def _beyond(tree: dict[str, Any], rng: Random) -> None:
    rng.choice([with_token_beyond, with_template_beyond, with_one_more_word, without_unknown])(tree)


def _parts(tree: dict[str, Any], rng: Random) -> None:
    charsmap, pattern = rng.choice(["", "AAAA", "////", "QUJD" * 50]), rng.choice(["(", "", ".*", "(?=x)"])
    part, value = rng.choice(
        [
            ("normalizer", {"type": "Precompiled", "precompiled_charsmap": charsmap}),
            ("normalizer", {"type": "Replace", "pattern": {"Regex": pattern}, "content": "y"}),
            ("normalizer", {"type": "Prepend", "prepend": "z" * 100_000}),
            ("normalizer", {"type": "Sequence", "normalizers": [{"type": "NFKD"}] * 5000}),
            ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": ""}, "behavior": "Isolated", "invert": False}),
            ("pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}),
            ("pre_tokenizer", None),
            ("post_processor", {"type": "BertProcessing", "sep": ["[SEP]", 10**6], "cls": ["[CLS]", 2**32 - 1]}),
            ("post_processor", None),
            ("truncation", {"direction": "Left", "max_length": 0, "strategy": "LongestFirst", "stride": 10**9}),
            ("padding", {"strategy": {"Fixed": 10**12}, "direction": "Left", "pad_to_multiple_of": 0, "pad_id": 2**31,
                         "pad_type_id": 0, "pad_token": "x"}),
        ]
    )  # fmt: skip
    tree[part] = value


def _model(tree: dict[str, Any], rng: Random) -> None:
    field = rng.choice(
        [
            "unk_token", "unk_id", "dropout", "max_input_chars_per_word", "continuing_subword_prefix", "merges",
            "byte_fallback", "fuse_unk", "ignore_merges", "end_of_word_suffix", "type",
        ]
    )  # fmt: skip
    tree["model"][field] = rng.choice([*HOSTILE, "WordLevel", "Unigram", "[PAD]", ["a b", "c"], [["a", "b"]], 0.3])


TOKENIZER: dict[str, Callable[[dict[str, Any], Random], None]] = {
    "id": _vocabulary_id, "beyond": _beyond, "part": _parts, "model": _model,
}  # fmt: skip


def change_layout(directory: Path, rng: Random) -> str:
    """Files that are missing, doubled, or somewhere else."""
    encoder = directory / "0_Transformer"
    how = rng.choice(["no encoder", "index", "config alone", "link"])
    where = encoder if encoder.is_dir() else directory
    if how == "no encoder" and encoder.is_dir():
        shutil.rmtree(encoder)
        path = directory / "fastflow.json"
        tree = json.loads(path.read_text())
        tree["files"] = {name: mark for name, mark in tree["files"].items() if not name.startswith("0_")}
        tree["encoder"] |= rng.choice(
            [{"hub_id": "nobody/nothing", "revision": "0" * 40}, {"hub_id": "../x", "revision": ""}]
        )
        path.write_text(json.dumps(tree))
    elif how == "index":
        name = rng.choice(["../x", "/etc/passwd", "model.safetensors", "config.json", "x" * 5000, 3, None, "a\0b", ""])
        (where / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    elif how == "link":
        path = rng.choice(files(directory))
        path.unlink()
        path.symlink_to(rng.choice(["/dev/zero", "/dev/null", path.name, "/nowhere"]))
    else:
        for path in files(where):
            if path.name not in ("config.json", "fastflow.json"):
                path.unlink()
    return f"layout: {how}"


MUTATIONS = {
    "bytes": change_bytes, "json": change_json, "field": change_field, "tensor": change_tensor, "header": change_header,
    "tokenizer": change_tokenizer, "layout": change_layout,
}  # fmt: skip
WEIGHTS = (3, 4, 5, 4, 2, 5, 1)


def mutate(directory: Path, rng: Random) -> str:
    """Spoil ``directory`` in one or two ways, and repair its hashes but sometimes; returns what was done."""
    done = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        kind = rng.choices(list(MUTATIONS), WEIGHTS)[0]
        try:
            done.append(MUTATIONS[kind](directory, rng))
        except Exception as error:  # what the first way left cannot be spoilt like this
            done.append(f"{kind}: not possible ({type(error).__name__})")
    if rng.random() < 0.9:
        repair(directory)
    return "; ".join(done)
