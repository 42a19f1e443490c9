"""Compare the native WordPiece with ``tokenizers``, id for id, on every line of a corpus and on texts made by chance.

    python tests/attacks/tokens.py --lines 1000000 --seconds 600 --seed 0 ../shared/data

Lines come from the text files below the given paths (.txt, .tsv, .jsonl, .csv, .md, .po, .gz and .zst of these); every
fifth is read again with changes, and for twenty lines a text is made of mixed characters of all scripts. After the last
line short texts of such characters follow. Each batch goes through one of the tokenizers below with a limit by chance.
Exit code 1: two differ, and the text is printed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import tokenizers
import zstandard

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fastflow.model.artifact import DEFAULT
from fastflow.model.tokenizer.wordpiece import read_native

from support.unicode import ORDERED, changed, mixed

BATCH = 500  # texts in a call
SHORT = 4  # words of a text after the last line, at most
OPENERS = {".gz": gzip.open, ".zst": zstandard.open}
ENDINGS = (".txt", ".tsv", ".jsonl", ".csv", ".md", ".po", ".json")
CASED = {"lowercase": False, "strip_accents": None}
RULES: dict[
    str, tuple[dict[str, Any], bool]
] = {  # name -> (changes of the normalizer, whether texts are lowercased first)
    "bert": ({}, False),
    "cased": (CASED, False),
    "cased, stripped": (CASED | {"strip_accents": True}, False),
    "lower, accents": ({"strip_accents": False}, False),
    "whole ideographs": ({"handle_chinese_chars": False}, False),
    "unclean": ({"clean_text": False}, False),
    "unclean, cased": (CASED | {"clean_text": False, "handle_chinese_chars": False}, False),
    "unclean, stripped": (CASED | {"clean_text": False, "strip_accents": True}, False),
    "lower first": ({}, True),
    "lower first, cased": (CASED | {"strip_accents": True, "clean_text": False}, True),
}
WORDS = (
    "bestseller2",
    "selfie",
    "blockchain",
    "x1y2",
    "unaffable2",
    "ö",
    "ⅳ",
    "aé",
    "zz",
    "q1",
)  # not in BERT's vocabulary
MPNET = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}  # and its mask takes the spaces before it


def files() -> dict[str, tuple[bytes, bool]]:
    """name -> (tokenizer.json, lowercased first): BERT's vocabulary by each of RULES, with words that are not cut, and
    with MPNet's added tokens.
    """
    bert = json.loads((DEFAULT / "0_Transformer" / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = bert["model"]["vocab"]
    for i, mark in enumerate(dict.fromkeys(ORDERED)):  # pieces of marks, or every word with one would be unknown
        vocabulary[f"##{mark}"] = vocabulary.pop(f"[unused{i}]")
    out = {}
    for name, (change, first) in RULES.items():
        tree = bert | {"normalizer": bert["normalizer"] | change}
        out[name] = json.dumps(tree, ensure_ascii=len(out) % 2 == 0).encode(), first
    pieces = bert["model"]["vocab"]
    renumbered = MPNET | {piece: i + len(MPNET) for piece, i in pieces.items()} | {"<mask>": len(pieces) + len(MPNET)}
    token = bert["added_tokens"][0]
    plain = token | {"special": False, "single_word": True, "normalized": True}
    words = [plain | {"content": word, "id": len(pieces) + i} for i, word in enumerate(WORDS)]
    accents = bert["normalizer"] | {"strip_accents": False}
    out["words"] = (
        json.dumps(bert | {"added_tokens": bert["added_tokens"] + words, "normalizer": accents}).encode(),
        False,
    )
    added = [
        token | {"content": name, "id": renumbered[name], "lstrip": name == "<mask>"} for name in (*MPNET, "<mask>")
    ]
    ends = {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True}
    tree = bert | {"added_tokens": added, "post_processor": ends | {"add_prefix_space": False}}
    tree["model"] = bert["model"] | {"vocab": renumbered, "max_input_chars_per_word": 16}
    out["mpnet"] = json.dumps(tree).encode(), False
    return out


class Pair:
    """One file read by both."""

    def __init__(self, data: bytes, lower: bool) -> None:
        self.native = read_native(data, lower).wordpiece
        self.library = tokenizers.Tokenizer.from_buffer(data)
        if lower:
            both = [tokenizers.normalizers.Lowercase(), self.library.normalizer]
            self.library.normalizer = tokenizers.normalizers.Sequence(both)

    def difference(self, texts: list[str], limit: int, threads: int) -> str:
        """The first text of which ids, length or cut differ; "" if there is none."""
        self.library.enable_truncation(limit)
        wanted = self.library.encode_batch_fast(texts)
        ids, offsets, cut = self.native.tokenize(texts, limit, threads=threads)
        lengths = np.cumsum([0, *map(len, wanted)])
        same = np.array_equal(offsets, lengths) and ids.tolist() == list(chain.from_iterable(e.ids for e in wanted))
        cuts = [i for i, each in enumerate(wanted) if each.overflowing]
        if same and cuts == cut.tolist():
            return ""
        for i, each in enumerate(wanted):
            found = ids[offsets[i] : offsets[i + 1]].tolist()
            if found != each.ids or bool(each.overflowing) != (i in cut):
                return f"limit {limit}: {texts[i]!r} is {each.ids[:60]}, not {found[:60]}"
        return "the batches differ, and no text does"


def lines_of(paths: list[Path], skip: int) -> Iterator[str]:
    """The lines of every text file below ``paths``, from line number ``skip`` on."""
    found = [each for path in paths for each in ([path] if path.is_file() else sorted(path.rglob("*")))]
    found = [
        each
        for each in found
        if each.is_file() and each.name.removesuffix(".gz").removesuffix(".zst").endswith(ENDINGS)
    ]
    for path in found:
        with OPENERS.get(path.suffix, open)(path, "rt", encoding="utf-8", errors="replace") as handle:
            for line in handle:
                if skip:
                    skip -= 1
                else:
                    yield line.rstrip("\n")


def main() -> int:
    """Run until ``--lines`` or ``--seconds`` are reached; print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", type=int, default=0, help="lines of the corpus that are left out first")
    asked = parser.parse_args()
    rng, pairs = Random(asked.seed), {name: Pair(*file) for name, file in files().items()}
    corpus, counts, began, faults = lines_of(asked.paths, asked.skip), Counter[str](), time.monotonic(), 0
    characters = 0
    while sum(counts.values()) < asked.lines and time.monotonic() - began < asked.seconds and faults < 10:
        lines = list(islice(corpus, BATCH))
        kinds = {"lines": lines, "changed": [changed(line, rng) for line in lines if rng.random() < 0.2]}
        kinds["mixed"] = [mixed(rng) for _ in range(BATCH // 20)]
        if not lines:
            kinds = {"short": [mixed(rng, SHORT) for _ in range(4 * BATCH)]}
        for kind, texts in kinds.items():
            name = "bert" if rng.random() < 0.4 else rng.choice(list(pairs))
            fault = pairs[name].difference(texts, rng.choice((2, 3, 8, 17, 128, 128, 512)), rng.choice((1, 1, 3)))
            counts[kind] += len(texts)
            characters += sum(map(len, texts))
            if fault:
                faults += 1
                print(f"{name}, {kind}, {fault}")
    shown = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    seconds = time.monotonic() - began
    print(f"{sum(counts.values())} texts ({shown}), {characters} characters, in {seconds:.0f} s: {faults} faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
