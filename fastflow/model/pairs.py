"""A cross-encoder of Sentence Transformers on disk: its encoder, the tokenizer of pairs, and the head that scores."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.kernels.encoder import Dense, Head, Norm
from fastflow.kernels.encoder.texts import ACTIVATIONS as COMPUTED
from fastflow.kernels.stored import usable, widen
from fastflow.model import Model, Prompts
from fastflow.model.encoder import encoder_shape, max_tokens, read_config
from fastflow.model.encoder.weights import BAD, biases, encoder_files, weight_files
from fastflow.model.hashing import MODULES, Later, is_file
from fastflow.model.sentence.directory import read_entries, read_settings
from fastflow.model.sentence.modules import ACTIVATION, ACTIVATIONS, TransformerModule, check_fields, read_transformer
from fastflow.model.tensors import MappedTensors
from fastflow.model.tokenizer import Tokenizer, Tokens
from fastflow.model.tokenizer.classes import DIFFER
from fastflow.model.tokenizer.settings import BYTES, PIECES
from fastflow.model.tokenizer.settings import read_settings as read_tokenizer_settings
from fastflow.transforms.pooling import Pooling
from fastflow.values import MOST, flag, panics, reason, short, whole_number

DENSE = ("classifier.dense", "tanh", "classifier.out_proj")
# model_type -> class, first layer of the head, its activation, last layer
HEADS = {
    "bert": ("Bert", "bert.pooler.dense", "tanh", "classifier"),
    "roberta": ("Roberta", *DENSE),
    "xlm-roberta": ("XLMRoberta", *DENSE),
    "camembert": ("Camembert", *DENSE),
    "mpnet": ("MPNet", *DENSE),
    "electra": ("Electra", "classifier.dense", "gelu", "classifier.out_proj"),
    "distilbert": ("DistilBert", "pre_classifier", "relu", "classifier"),
    "modernbert": ("ModernBert", "head.dense", "", "classifier"),
}
OF_HEADS = ("classifier.", "pre_classifier.", "head.", "score.")
TASK = {
    "transformer_task": "sequence-classification",
    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
    "module_output_name": "scores",
}
PROBLEMS = (None, "regression", "single_label_classification", "multi_label_classification")
NEWER, OLDER = "sentence_transformers", "sbert_ce_default_activation_function"
TYPES = "token_type_ids"
UNTYPED = ("DistilBert", "MPNet", *BYTES, *PIECES)  # tokenizers that give no token types
PROCESSOR = re.compile(r'"post_processor"\s*:\s*(?=[{n])')


class PairTokenizer(Tokenizer):
    """A tokenizer of pairs of at most ``limit`` tokens; ``segments``: the encoder takes token types.

    ``typed``: the second text has token type 1.
    """

    ended = False

    def __init__(self, directory: Path, limit: int, lower: bool, segments: bool) -> None:
        self._open(directory, lower)
        path, settings = self._saved.path, read_tokenizer_settings(directory)
        ids, types, places = self._frame(path)
        names = settings.fields.get("model_input_names", [] if settings.kind in UNTYPED else [TYPES])
        if not segments or TYPES not in names:
            types = [0] * len(types)
        elif not settings.kind and any(types) and "model_input_names" not in settings.fields:
            raise settings.refuse("model_input_names", f"must be there, for token types: {DIFFER}")
        if [place for place in places if place is not None] != [0, 1] or sorted(types) != types or types[-1] > 1:
            raise FastflowError(f"{path}, field post_processor: a pair is not two texts of token types 0 and then 1")
        first, second = places.index(0), places.index(1)
        self._special = ids[:first], ids[first + 1 : second], ids[second + 1 :]
        self._zeros, self.typed = types.count(0) - 1, types[first] < types[second]
        self.room = limit - len(ids) + 2
        if self.room < 1:
            raise FastflowError(f"{directory}: the tokenizer leaves no room for two texts in {limit} tokens")
        super().__init__(directory, max(self.room, 2), lower)

    def _frame(self, path: Path) -> tuple[NDArray[np.int32], list[int], list[int | None]]:
        """Return ids, token types and texts (0, 1, or None) of a pair of texts of one token."""
        import tokenizers

        text = self._saved.data.decode("utf-8", "replace")
        try:
            found = PROCESSOR.search(text)
            rule = found and json.JSONDecoder().raw_decode(text, found.end())[0]
            plain = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
            tree = json.loads(plain.to_str()) | {"post_processor": rule}
            with panics():
                pair = tokenizers.Tokenizer.from_str(json.dumps(tree)).encode("a", "a")
        except Exception as error:
            raise FastflowError(f"{path}, field post_processor: cannot be read: {reason(error)}") from error
        return np.array(pair.ids, np.int32), pair.type_ids, pair.sequence_ids

    def __call__(self, texts: Sequence[str]) -> Tokens:
        """Pair the first text with each."""
        return self.pair([(texts[0], text) for text in texts])

    def pair(self, pairs: Sequence[tuple[str, str]]) -> Tokens:
        """Tokenize pairs, and a repeated text once."""
        number = {text: i for i, text in enumerate(dict.fromkeys(text for pair in pairs for text in pair))}
        found = super().__call__(list(number))
        lengths, long = np.diff(found.offsets).tolist(), set(found.cut.tolist())
        pieces = np.split(found.ids, found.offsets[1:-1])
        parts, seconds, cut = [], [], []
        start, between, end = self._special
        for i, pair in enumerate(pairs):
            a, b = (number[text] for text in pair)
            kept = fit_pair(lengths[a], lengths[b], self.room)
            if self.room % 2 and lengths[a] == lengths[b] == self.room:  # the longer text keeps one token more
                kept = fit_pair(self._count(pair[0]), self._count(pair[1]), self.room)
            parts.append(np.concatenate([start, pieces[a][: kept[0]], between, pieces[b][: kept[1]], end]))
            seconds.append(self._zeros + kept[0])
            if kept != (lengths[a], lengths[b]) or not long.isdisjoint((a, b)):
                cut.append(i)
        offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        types = np.array(seconds, np.int64) if self.typed else None
        return Tokens(np.concatenate(parts), offsets, np.array(cut, np.int64), seconds=types)

    def _count(self, text: str) -> int:
        """Count the tokens of an uncut text."""
        if self._native is None:
            return len(self.describe([text], special=False)[0])
        return len(self._native.tokenizer.tokenize([text], MOST, special=False, threads=self.threads)[0])


def fit_pair(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of two texts are kept; as in tokenizers, the longer text is cut first."""
    low, high = sorted((first, second))
    high = max(low, min(high, room - low))
    if low + high > room:
        low, high = room // 2, room - room // 2
    return (low, high) if first <= second else (high, low)


@dataclass(frozen=True, eq=False, repr=False)
class PairModel(Model):
    """A checked cross-encoder: pooled states (B, D) -> ``scorer`` -> logits (B, labels) -> ``activation`` -> scores."""

    gives: ClassVar = "the vectors of pairs, which its head scores,"

    pairing: PairTokenizer
    scorer: Head
    labels: int
    activation: str
    queries: Prompts

    @property
    def prompts(self) -> Prompts:
        return self.queries

    def tokenizer(self) -> PairTokenizer:
        return self.pairing


def open_pair_model(directory: Path) -> PairModel:
    """Open a directory that a CrossEncoder was saved to, by Sentence Transformers 5 or older."""
    transformer, settings = _read_transformer(directory)
    encoder = transformer.directory
    config, where = read_config(encoder), f"{encoder / 'config.json'}, field"
    shape, family = encoder_shape(config, encoder), config["model_type"]
    wanted, given = f"{HEADS[family][0]}ForSequenceClassification", config.get("architectures")
    if given != [wanted]:
        raise FastflowError(f"{where} architectures: a cross-encoder is a {wanted}, not {short(given)}")
    if config.get("problem_type") not in PROBLEMS:
        raise FastflowError(f"{where} problem_type: {short(config['problem_type'])} is unknown")
    limit = min(transformer.max_seq_length or max_tokens(shape), max_tokens(shape))
    segments = family not in ("distilbert", "mpnet", "modernbert")
    tokenizer = PairTokenizer(encoder, limit, transformer.do_lower_case, segments)
    if tokenizer.typed:
        whole_number(config, "type_vocab_size", encoder, least=2)
    mode = config.get("classifier_pooling", "cls") if family == "modernbert" else "cls"
    if mode not in ("cls", "mean"):
        raise FastflowError(f"{where} classifier_pooling: must be cls or mean, not {short(mode)}")
    labels, files = _count_labels(config, encoder), Later(encoder_files(encoder))
    return PairModel(
        directory,
        encoder,
        Pooling(mode, (shape.layers,)),
        limit,
        tokenizer,
        _read_scorer(encoder, config, shape.hidden, labels),
        labels,
        _read_activation(config, settings, where, labels),
        Prompts(settings.get("prompts", {}), settings.get("default_prompt")),
        pairs=tokenizer.typed,
        awaited=lambda: f"pairs {files()}",
    )


def _read_transformer(directory: Path) -> tuple[TransformerModule, dict[str, Any]]:
    """Read the Transformer, and the settings of all of the model, which older releases do not write."""
    if not is_file(directory / MODULES):
        return read_transformer(directory, TASK), {}
    kinds, folders = zip(*read_entries(directory), strict=True)
    if kinds != ("Transformer",):
        raise FastflowError(f"{directory / MODULES}: a cross-encoder is one Transformer, not {', '.join(kinds)}")
    return read_transformer(folders[0], TASK), read_settings(directory, 0, "CrossEncoder", ("activation_fn",))


def _count_labels(config: dict[str, Any], where: Path) -> int:
    names = config.get("id2label", {"0": "", "1": ""})  # transformers writes no names of two labels
    labels = whole_number({"num_labels": len(names)} | config, "num_labels", where)
    if not isinstance(names, dict) or labels != len(names):
        raise FastflowError(f"{where / 'config.json'}, field id2label: must be the names of {labels} labels")
    return labels


def _read_activation(config: dict[str, Any], settings: dict[str, Any], where: str, labels: int) -> str:
    newer = config.get(NEWER) or {}
    check_fields(newer, ("activation_fn", "version"), f"{where} {NEWER}")
    older = newer.get("activation_fn") if "activation_fn" in newer else config.get(OLDER)
    name = settings.get("activation_fn") or older or f"torch.nn.{'Sigmoid' if labels == 1 else 'Identity'}"
    match = ACTIVATION.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        known = ", ".join(ACTIVATIONS)
        raise FastflowError(f"{where} activation_fn: {short(name)} is unknown; known are {known} of torch.nn")
    return ACTIVATIONS[match[1]]


def _read_scorer(directory: Path, config: dict[str, Any], hidden: int, labels: int) -> Head:
    """Read the head in float64."""
    kind, first, activation, last = HEADS[config["model_type"]]
    stored = {name: array for path in weight_files(directory) for name, array in MappedTensors(path).arrays.items()}
    used = set()

    def take(name: str, *shape: int) -> NDArray[np.float64]:
        used.add(name)
        array, said = stored.get(name), f"{directory}: tensor {name}"
        if array is None or array.dtype.kind not in "fV" or array.shape != shape:
            raise FastflowError(f"{said} of the head of a {kind} must be floats of shape {shape}")
        if not usable(widen(array)):
            raise FastflowError(f"{said} {BAD}")
        return np.asarray(widen(array), np.float64)

    def dense(stem: str, rows: int, name: str, bias: bool = True) -> Dense:
        weight = take(f"{stem}.weight", rows, hidden)
        return Dense(weight, take(f"{stem}.bias", rows) if bias else np.zeros(rows), name)

    if kind == "ModernBert":
        activation = config.get("classifier_activation", "gelu")
        if activation not in COMPUTED:
            where = f"{directory / 'config.json'}, field classifier_activation"
            raise FastflowError(f"{where}: {short(activation)} is unknown; known are {', '.join(COMPUTED)}")
        shift = take("head.norm.bias", hidden) if biases(config, directory)["norm"] else np.zeros(hidden)
        norm = Norm(take("head.norm.weight", hidden), shift, float(config.get("norm_eps", 1e-5)))
        bias = flag(config, "classifier_bias", directory)
        head: Head = (dense(first, hidden, activation, bias), norm, dense(last, labels, "identity"))
    else:
        head = (dense(first, hidden, activation), dense(last, labels, "identity"))
    if odd := sorted(name for name in stored.keys() - used if name.startswith(OF_HEADS)):
        raise FastflowError(f"{directory}: tensor {odd[0]} is not of the head of a {kind}")
    return head
