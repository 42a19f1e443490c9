"""Sentences, words, vocabulary and teacher's vectors from which the model ``multilingual`` is made."""

from __future__ import annotations

import base64
import io
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, normalizers

from fastflow import Runtime
from fastflow.train.data.corpus import read_texts

NAMES = {
    "ar": "Arabic", "bg": "Bulgarian", "ca": "Catalan", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek",
    "en": "English", "es": "Spanish", "fa": "Persian", "fi": "Finnish", "fr": "French", "he": "Hebrew", "hi": "Hindi",
    "hu": "Hungarian", "id": "Indonesian", "it": "Italian", "ja": "Japanese", "ko": "Korean", "nl": "Dutch",
    "no": "Norwegian", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sv": "Swedish",
    "tr": "Turkish", "uk": "Ukrainian", "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip
ROWS = 41_400
LARGE = ("en", "de", "es", "fr", "it", "ja", "pt", "ru", "zh")  # their tokens count twice for the vocabulary
MORE = {  # language and number: file, the most sentences, whether lines are cut into sentences, and what it is
    "de2": ("tasks/corpora/eltec-deu-novels.txt.zst", 10_000, True, "ELTeC-deu, German novels, public domain"),
    "en2": ("corpora/wikipedia-core.txt.gz", 20_000, True, "English Wikipedia, CC BY-SA 3.0"),
    "en3": ("corpora/eltec-eng-novels.txt.gz", 4000, True, "ELTeC-eng, English novels, public domain"),
    "en4": ("corpora/nli-snli-dev-test.txt", 8000, False, "captions: SNLI dev and test, CC BY-SA 4.0"),
    "en5": ("corpora/nli-qnli-dev-test.txt", 4000, False, "questions: QNLI dev and test, CC BY-SA 4.0"),
    "en6": ("corpora/leipzig-eng-news-2016-10k.txt", 4000, False, "news: Leipzig Corpora Collection, CC BY"),
}
COUNTED, SEEN = 6000, 8  # sentences of a language that count pieces; least count of a character in the vocabulary
STEPS = (1.6, 1.15, 1.0)  # pieces kept over ROWS, in turn
WORDS = 5000  # commonest words of a language that are texts too
WORD = re.compile(r"[^\W\d_]{2,}(?:['’\-][^\W\d_]+)*")
SENTENCE = re.compile(r"(?<=[.!?])[\s\"»”]+(?=[A-ZÄÖÜ\"„»“])")
Texts = dict[str, list[str]]
Floats = NDArray[np.float32]


def read_sentences(data: Path) -> Texts:
    """Return the sentences of data/langs and MORE; a key is a language, perhaps with a number."""
    found = {code: list(read_texts([str(data / f"langs/{code}.txt.zst")])) for code in NAMES}
    for key, (name, most, cut, _) in MORE.items():
        lines: Iterable[str] = read_texts([str(data / name)])
        if cut:
            lines = (part for line in lines for part in SENTENCE.split(re.sub(r"\s+", " ", line)))
        own = list(dict.fromkeys(line.strip() for line in lines if 20 <= len(line.strip()) <= 400))
        random.Random(1).shuffle(own)
        found[key] = own[:most]
    return found


def list_words(sentences: Texts) -> Texts:
    """Return the commonest words of each language that separates words by spaces."""
    found = {}
    for code in NAMES:
        if code not in ("ja", "zh"):
            own = [text for key, texts in sentences.items() if key[:2] == code for text in texts]
            counts = Counter(word.lower() for text in own for word in WORD.findall(text))
            found[f"words-{code}"] = [word for word, count in counts.most_common(WORDS + 1000) if count > 1][:WORDS]
    return found


def train_charsmap() -> bytes:
    """Return the map of characters of SentencePiece's rule nmt_nfkc_cf: compatibility forms, lower case."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    out, lines = io.BytesIO(), (f"{random.Random(i).choice('abcdefgh')}{i} hello world {i * 7}" for i in range(2000))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_writer=out, vocab_size=60, normalization_rule_name="nmt_nfkc_cf",
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    model = sentencepiece_model_pb2.ModelProto.FromString(out.getvalue())
    return bytes(model.normalizer_spec.precompiled_charsmap)


def prune_vocabulary(teacher: Path, sentences: Texts) -> Tokenizer:
    """Keep the pieces that occur most, each language counting as much; a text falls apart into these."""
    saved = json.loads((teacher / "tokenizer.json").read_text(encoding="utf-8"))
    charsmap = train_charsmap()
    rule = normalizers.Precompiled(charsmap)
    scores: dict[str, float] = {}
    for piece, score in saved["model"]["vocab"][4:]:
        own = rule.normalize_str(piece.replace("\u2581", " ")).replace(" ", "\u2581")
        if own and not piece.startswith(("<extra", "<mask>")):
            scores[own] = float(np.logaddexp(scores[own], score)) if own in scores else score
    letters = Counter(rule.normalize_str("\n".join(text for texts in sentences.values() for text in texts)))
    least = min(scores.values())
    new = [letter for letter, count in letters.items() if count >= 20 and not letter.isspace()]
    scores = dict.fromkeys(new, least) | scores
    pieces = list(scores)
    for step in STEPS:
        tokenizer = _make_tokenizer(saved, charsmap, pieces, scores)
        shares, seen = _count_pieces(tokenizer, sentences)
        needed = np.array([True, True] + [len(piece) == 1 and letters[piece] >= SEEN for piece in pieces])
        order = np.argsort(-(shares + 1000 * needed), kind="stable")
        kept = sorted(i for i in order[(order >= 2) & (seen | needed)[order]][: int(ROWS * step) - 2])
        pieces = [pieces[i - 2] for i in kept]
    return _make_tokenizer(saved, charsmap, pieces, scores)


def _make_tokenizer(saved: dict[str, Any], charsmap: bytes, pieces: list[str], scores: dict[str, float]) -> Tokenizer:
    added = [saved["added_tokens"][i] | {"id": number} for number, i in enumerate((1, 3))]
    vocabulary = [["<pad>", 0.0], ["<unk>", 0.0], *([piece, round(scores[piece], 3)] for piece in pieces)]
    rule = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}
    model = {"type": "Unigram", "unk_id": 1, "byte_fallback": False, "vocab": vocabulary}
    own = {"added_tokens": added, "normalizer": rule, "post_processor": None, "model": model}
    return Tokenizer.from_str(json.dumps(saved | own))


def _count_pieces(tokenizer: Tokenizer, sentences: Texts) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return each piece's share (V,), added over languages, and whether it was seen (V,)."""
    size = tokenizer.get_vocab_size()
    shares, seen = np.zeros(size), np.zeros(size, bool)
    for code in NAMES:
        own = [text for key, texts in sentences.items() if key[:2] == code for text in texts]
        ids, _ = tokenize(tokenizer, random.Random(0).sample(own, min(COUNTED, len(own))))
        counts = np.bincount(ids, minlength=size)
        shares += counts / counts.sum() * (2 if code in LARGE else 1)
        seen |= counts > 0
    return shares, seen


def tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return known ids (N,) and offsets (B+1,) of ``texts``."""
    ids, offsets = list[int](), [0]
    for start in range(0, len(texts), 10_000):
        for encoding in tokenizer.encode_batch_fast(list(texts[start : start + 10_000]), add_special_tokens=False):
            ids += [number for number in encoding.ids if number > 1]
            offsets.append(len(ids))
    return np.array(ids, np.int64), np.array(offsets, np.int64)


def teach(teacher: Path, texts: Texts, cache: Path) -> dict[str, Floats]:
    """Return the teacher's vectors (n, D) of the texts of each key, in int8; a file of ``cache`` keeps each."""
    cache.mkdir(parents=True, exist_ok=True)
    with Runtime(teacher, dtype="int8") as runtime:
        for key, own in texts.items():
            if not (cache / f"{key}.npy").exists():
                np.save(cache / f"{key}.npy", np.asarray(runtime.encode(own), np.float16))
    return {key: np.load(cache / f"{key}.npy").astype(np.float32) for key in texts}
