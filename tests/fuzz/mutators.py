"""Spoil bytes, files, model directories, databases and folders of parts, by a random generator."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from files.test_shards import DAMAGED
from files.test_write_columns import LOOSE, SPOILT
from model.test_refusals_encoder import CONFIGS, OF_PYTORCH
from model.test_refusals_model import OF_TEXTS
from model.test_refusals_tokenizer import with_one_more_word, with_template_beyond, with_token_beyond, without_unknown
from safetensors.numpy import load_file, save_file

from fastflow.files.shards.manifest import manifest_path
from fastflow.model.hashing import file_hash

from support.refusals import spoil
from support.spoil import change_manifest

HOSTILE = [
    None, True, False, 0, -1, 1, 2, 3, 7, 4.0, 4.9, 0.5, -1e-3, 1e308, 1e-320, "", "4", "abc", [], {}, [[]], [1],
    {"a": 1}, 10**6, 10**7, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64, 10**30, float("nan"), float("inf"),
    float("-inf"), "\ud800", "a\0b", "../../x", "x" * 5000, "<deep>",
]  # fmt: skip
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
SCHEMAS = (
    *(sql for sql, _ in SPOILT), LOOSE, f"{LOOSE} INSERT INTO texts SELECT * FROM texts", "DELETE FROM texts",
    "ALTER TABLE texts DROP COLUMN n", "ALTER TABLE texts ADD COLUMN big AS (zeroblob(1000000000))",
    "DELETE FROM run", "CREATE TABLE more (a)", "CREATE INDEX i ON texts (length(text))",
)  # fmt: skip
VALUES = (
    "NULL", "1e300", "-1", "0", "9223372036854775807", "'a'", "x'00'", "zeroblob(64)", "randomblob(32)", "''", "1.5",
    "'x' || char(0)", "x'ff'", "replace(hex(zeroblob(500000)), '0', 'ab')",
)  # fmt: skip
RUN = ("format", "precision", "dim", "fingerprint", "truncate_dim", "prompt", "version")


def change_bytes(data: bytes, rng: Random) -> bytes:
    """Change a few bytes or bits, near an end or anywhere; cut, repeat or add a piece; or leave nothing."""
    out = bytearray(data or b"a")
    kind = rng.choice(["byte", "byte", "bit", "bit", "head", "cut", "piece", "append", "overwrite", "empty"])
    a, b = sorted(rng.randrange(len(out) + 1) for _ in range(2))
    if kind in ("byte", "bit", "head"):
        for _ in range(rng.choice([1, 1, 3, 20])):
            size = min(len(out), 400) if kind == "head" else len(out)
            where = rng.choice([rng.randrange(size), -1 - rng.randrange(min(len(out), 64))])
            out[where] = rng.randrange(256) if kind == "byte" else out[where] ^ 1 << rng.randrange(8)
    elif kind == "cut":
        return rng.choice([data[:a], data[a:]])
    elif kind == "piece":
        return rng.choice([data[:a] + data[b:], data + data[a:b]])
    elif kind == "append":
        out += rng.randbytes(rng.choice([1, 8, 500]))
    elif kind == "overwrite":
        out[a : a + 8] = rng.randbytes(8)
    return b"" if kind == "empty" else bytes(out)


def dump(value: Any) -> str:
    """Return JSON; each "<deep>" in ``value`` is a list of 20,000 levels."""
    return json.dumps(value).replace('"<deep>"', "[" * 20_000 + "]" * 20_000)


def replace_file(path: Path, rng: Random) -> None:
    """Put a pipe, a folder, a link, an empty file or nothing in the place of a file."""
    path.unlink()
    kind = rng.choice(["pipe", "folder", "link", "empty", "nothing"])
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(rng.choice(["/dev/zero", "/dev/null", path.name, "/nowhere", "/dev/tty"]))
    elif kind == "empty":
        path.touch()


def spoil_database(path: Path, rng: Random) -> bool:
    """Spoil a .db of 40 rows in one way; returns whether it is sound still."""
    kind = rng.choice(["sound", "schema", "value", "run", "flip", "flip", "replaced"])
    if kind == "flip":
        path.write_bytes(change_bytes(path.read_bytes(), rng))
    elif kind == "replaced":
        replace_file(path, rng)
    elif kind != "sound":
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            try:
                if kind == "schema":
                    db.executescript(rng.choice(SCHEMAS))
                elif kind == "run":
                    db.execute(f"INSERT OR REPLACE INTO run VALUES ('{rng.choice(RUN)}', {rng.choice(VALUES)})")
                else:
                    column, row = rng.choice(["row", "text", "vector", "n"]), rng.randrange(40)
                    if rng.random() < 0.5:  # without types and keys, so that any value can be stored
                        db.executescript(LOOSE)
                    nan = np.full(8, rng.choice([np.nan, np.inf]), "<f4").tobytes().hex()
                    value = rng.choice([*VALUES, f"x'{nan}'"])
                    db.execute(f"UPDATE texts SET {column} = {value} WHERE row = {row}")
            except sqlite3.Error:  # a strict column refuses the value: the file is as it was
                pass
    return kind == "sound"


def spoil_parts(folder: Path, suffix: str, rng: Random) -> bool:
    """Spoil a folder of two parts in one way; returns whether it is sound still."""
    part = folder / f"{rng.choice([1, 2])}{suffix}"
    manifest = manifest_path(part)
    kind = rng.choice(["sound", "row", "deep", "deep", "body", "body", "bytes", "replaced"])
    chosen = rng.choice([part, manifest])
    if kind == "row":
        spoil(folder, manifest.name, rng.choice(DAMAGED)[0])
    elif kind == "deep":
        found = json.loads(manifest.read_text())
        inside = rng.choice([found, found["run"], found["inputs"][0], found["run"]["options"]])
        inside[rng.choice(sorted(inside))] = rng.choice(HOSTILE)
        manifest.write_text(dump(found))
    elif kind == "body":  # with a hash that fits, so that what reads the body sees it
        part.write_bytes(change_bytes(part.read_bytes(), rng))
        found = json.loads(manifest.read_text())
        manifest.write_text(json.dumps(found | {"sha256": file_hash(part), "bytes": part.stat().st_size}))
    elif kind == "bytes":
        chosen.write_bytes(change_bytes(chosen.read_bytes(), rng))
    elif kind == "replaced":
        replace_file(chosen, rng)
    return kind == "sound"


def list_files(directory: Path, *suffixes: str) -> list[Path]:
    return sorted(p for p in directory.rglob("*") if p.is_file() and (not suffixes or p.suffix in suffixes))


def repair(directory: Path) -> None:
    """Make hashes and fingerprint of a manifest agree again, so that later checks are reached."""
    if not (directory / "fastflow.json").is_file():  # a pipe would wait
        return
    try:
        marks = json.loads((directory / "fastflow.json").read_text())["files"].items()
        found = {name: file_hash(directory / name) if (directory / name).is_file() else mark for name, mark in marks}
        change_manifest(directory, files=found)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass  # no manifest can agree with anything


def change_file(directory: Path, rng: Random) -> None:
    path = rng.choice(list_files(directory))
    if rng.random() < 0.2:
        replace_file(path, rng)
    else:
        path.write_bytes(change_bytes(path.read_bytes(), rng))


def list_places(value: Any, most: int = 40) -> list[tuple[Any, Any]]:
    """Return (container, key) of the values inside, ``most`` in each container: a vocabulary has thousands."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    found = [(value, key) for key in keys[:most]]
    return found + [place for key in keys[:most] for place in list_places(value[key], most)]


def change_json(directory: Path, rng: Random) -> None:
    path = rng.choice(list_files(directory, ".json"))
    tree = json.loads(path.read_text())
    how = rng.choice(["value", "value", "value", "value", "drop", "scale", "root", "swap"])
    container, key = rng.choice(list_places(tree))
    if how == "drop":
        del container[key]
    elif how == "scale" and type(container[key]) in (int, float):
        container[key] = rng.choice([container[key] + 1, container[key] - 1, -container[key], container[key] * 10**6])
    elif how == "swap":
        other, place = rng.choice(list_places(tree))
        container[key] = json.loads(json.dumps(other[place]))
    elif how == "root":
        tree = rng.choice(HOSTILE)
    else:
        container[key] = rng.choice(HOSTILE)
    path.write_text(dump(tree))


def change_field(directory: Path, rng: Random) -> None:
    if (directory / "modules.json").is_file() and rng.random() < 0.7:
        change_module(directory, rng)
        return
    file, fault, _ = rng.choice([*CONFIGS, *OF_PYTORCH])
    encoder = directory / "0_Transformer"
    if (directory / "fastflow.json").is_file() and rng.random() < 0.5:
        file, fault = "fastflow.json", rng.choice(OF_TEXTS)[0]
    elif encoder.is_dir():
        directory = encoder
    spoil(directory, file, fault)


def change_module(directory: Path, rng: Random) -> None:
    path = rng.choice([p for p in list_files(directory, ".json") if "token" not in p.name])
    tree = json.loads(path.read_text())
    entry = rng.choice(tree) if isinstance(tree, list) else tree
    field = rng.choice([name for name in MODULE if name in entry] or list(MODULE))
    entry[field] = rng.choice(MODULE[field])
    path.write_text(json.dumps(tree))


def change_tensor(directory: Path, rng: Random) -> None:
    path = rng.choice(list_files(directory, ".safetensors"))
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


def change_header(directory: Path, rng: Random) -> None:
    path = rng.choice(list_files(directory, ".safetensors"))
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    container, key = rng.choice(list_places(header))
    container[key] = rng.choice(HOSTILE)
    text = dump(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(rng.choice([len(text)] * 8 + [0, 2**40, 2**63]).to_bytes(8, "little") + text + data[8 + size :])


def change_tokenizer(directory: Path, rng: Random) -> None:
    found = [p for p in list_files(directory, ".json", ".txt") if p.name in ("tokenizer.json", "vocab.txt")]
    path = found[0]
    if path.suffix == ".txt":
        lines = path.read_text().split("\n")
        rng.choice([lines.reverse, lines.clear, lambda: lines.extend(lines), lambda: lines.remove("[SEP]")])()
        path.write_text("\n".join(lines))
        return
    tree = json.loads(path.read_text())
    rng.choice([_change_id, _point_beyond, _change_part, _change_model])(tree, rng)
    path.write_text(dump(tree))


def _change_id(tree: dict[str, Any], rng: Random) -> None:
    vocabulary = tree["model"]["vocab"]
    new = rng.choice([10**6, 2**31, 2**32 - 1, 2**32, -1, 0, 3.5, len(vocabulary), len(vocabulary) + 1])
    if isinstance(vocabulary, dict):
        vocabulary[rng.choice(list(vocabulary))] = new
    else:
        rng.choice(vocabulary)[1] = rng.choice([1e308, float("nan"), -1e308, "x"])


def _point_beyond(tree: dict[str, Any], rng: Random) -> None:
    rng.choice([with_token_beyond, with_template_beyond, with_one_more_word, without_unknown])(tree)


def _change_part(tree: dict[str, Any], rng: Random) -> None:
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


def _change_model(tree: dict[str, Any], rng: Random) -> None:
    field = rng.choice(
        [
            "unk_token", "unk_id", "dropout", "max_input_chars_per_word", "continuing_subword_prefix", "merges",
            "byte_fallback", "fuse_unk", "ignore_merges", "end_of_word_suffix", "type",
        ]
    )  # fmt: skip
    tree["model"][field] = rng.choice([*HOSTILE, "WordLevel", "Unigram", "[PAD]", ["a b", "c"], [["a", "b"]], 0.3])


def change_layout(directory: Path, rng: Random) -> None:
    encoder = directory / "0_Transformer"
    how = rng.choice(["no encoder", "index", "config alone"])
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
    else:
        for path in list_files(where):
            if path.name not in ("config.json", "fastflow.json"):
                path.unlink()


MUTATIONS = {  # with the weight of each
    change_file: 3, change_json: 4, change_field: 5, change_tensor: 4, change_header: 2, change_tokenizer: 5,
    change_layout: 1,
}  # fmt: skip


def mutate(directory: Path, rng: Random) -> str:
    """Spoil a model directory in one or two ways, and mostly repair its hashes; returns the names of the ways."""
    done = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        way = rng.choices(list(MUTATIONS), list(MUTATIONS.values()))[0]
        done.append(way.__name__)
        with suppress(Exception):  # the first change left no such place
            way(directory, rng)
    if rng.random() < 0.9:
        repair(directory)
    return ", ".join(done)
