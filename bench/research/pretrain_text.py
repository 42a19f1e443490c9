"""The text of ``pretrain``: a WordPiece vocabulary, the corpus in its pieces, and the start of the word embeddings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.utils.extmath import randomized_svd
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from fastflow.train.data.corpus import read_corpus

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNKNOWN, CLS, SEP, MASK = range(5)
WINDOW, POWER = 4, 0.75  # pieces on either side that are a piece's context, weighted 1 / distance; of their shares
CHARACTERS = 500  # of the alphabet
TEXTS = 4096  # cut at once


class Text(NamedTuple):
    """A corpus in pieces: ``ids`` (n,), and the ``offsets`` (rows + 1,) of its rows in them."""

    ids: NDArray[np.uint16]
    offsets: NDArray[np.int64]


def prepared(files: Sequence[str], out: Path, vocabulary: int, lowercase: bool, length: int) -> Text:
    """The text of ``files`` in rows of at most ``length`` pieces; vocabulary and pieces are kept in ``out``."""
    kept = out / "pieces.npz"
    if not kept.exists():
        texts = read_corpus(list(files))
        tokenizer = learned(texts, vocabulary, lowercase)
        save_tokenizer(tokenizer, out, lowercase, length + 2)
        ids, offsets = cut(texts, tokenizer, length)
        unfinished = out / "pieces.partial.npz"
        np.savez(unfinished, ids=ids, offsets=offsets)
        unfinished.replace(kept)
    with np.load(kept) as found:
        return Text(found["ids"], found["offsets"])


def learned(texts: Sequence[str], vocabulary: int, lowercase: bool) -> Tokenizer:
    """BERT's tokenizer with a vocabulary of ``vocabulary`` pieces learned from ``texts``; accents stay if cased."""
    tokenizer = Tokenizer(models.WordPiece(unk_token=SPECIAL[UNKNOWN]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=list(SPECIAL), limit_alphabet=CHARACTERS, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing((SPECIAL[SEP], SEP), (SPECIAL[CLS], CLS))
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, out: Path, lowercase: bool, length: int) -> None:
    """tokenizer.json, vocab.txt and tokenizer_config.json, as Hugging Face has them."""
    tokenizer.save(str(out / "tokenizer.json"))
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    (out / "vocab.txt").write_text("".join(f"{piece}\n" for piece, _ in pieces), encoding="utf-8")
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": lowercase, "model_max_length": length, **names}
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1))


def cut(texts: Sequence[str], tokenizer: Tokenizer, length: int) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
    """The pieces of ``texts`` and the offsets of their rows; a longer text has several rows of like length."""
    ids, sizes, rest = [], [], iter(texts)
    while some := list(islice(rest, TEXTS)):
        for found in tokenizer.encode_batch(some, add_special_tokens=False):
            if pieces := found.ids:
                rows = -(-len(pieces) // length)
                ids.append(np.array(pieces, np.uint16))
                sizes += np.diff(np.linspace(0, len(pieces), rows + 1).astype(np.int64)).tolist()
    return np.concatenate(ids), np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def start_words(text: Text, vocabulary: int, width: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(V, D) word embeddings from the singular vectors of the pieces' mutual information, and (V,) their log shares."""
    ids = text.ids.astype(np.int64)
    row = np.repeat(np.arange(len(text.offsets) - 1), np.diff(text.offsets))
    together = csr_matrix((vocabulary, vocabulary), dtype=np.float32)
    for distance in range(1, WINDOW + 1):
        inside = row[distance:] == row[:-distance]
        first, second = ids[:-distance][inside], ids[distance:][inside]
        weights = np.full(len(first), 1 / distance, np.float32)
        found = csr_matrix((weights, (first, second)), (vocabulary, vocabulary))
        together = together + found + found.T
    counts = np.bincount(ids, minlength=vocabulary).astype(np.float64) + 0.5
    context = counts**POWER / (counts**POWER).sum()
    pairs = together.tocoo()
    share = counts / counts.sum()
    with np.errstate(divide="ignore"):
        mutual = np.log(pairs.data / pairs.data.sum() / (share[pairs.row] * context[pairs.col]))
    positive = mutual > 0
    places = (pairs.row[positive], pairs.col[positive])
    matrix = csr_matrix((mutual[positive].astype(np.float32), places), (vocabulary, vocabulary))
    left, values, _ = randomized_svd(matrix, width, n_iter=2, random_state=seed)
    words = (left * np.sqrt(values)).astype(np.float32)
    return words, np.log(share).astype(np.float32)
