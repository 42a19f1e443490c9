"""A BERT that begins as a token table: its word rows are the table, and its layers the identity.

LayerNorm gives a word's vector mean 0 and unit variance, so a row is divided by its root mean square, which becomes the
word's weight. LayerNorm also removes one direction: the table is turned, so that it is the table's weakest.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, BertModel

from fastflow.errors import FastflowError
from fastflow.exports.record import write_tokenizer
from fastflow.exports.sentence_transformers import Writer, make_pooling
from fastflow.kernels.encoder import Dense, Unit
from fastflow.model import Model
from fastflow.model.artifact import load_model
from fastflow.model.encoder import is_static
from fastflow.model.static.table import open_table

WIDE, HEAD = 2, 64  # the inner width over the width; the most numbers of an attention head
FAINT = 1e-8  # the least weight of a word
PLACES = 0.1  # size of the positions at the first step


class Start(NamedTuple):
    """Word rows (V, d) of unit root mean square and mean 0, and the logarithms (V,) of their weights."""

    rows: NDArray[np.float32]
    logs: NDArray[np.float32]


def turn_table(table: NDArray[np.floating[Any]]) -> Start:
    """Turn a table (V, d), so that the mean of each row is 0 without its weakest direction."""
    rows, width = table.astype(np.float64), table.shape[1]
    _, basis = np.linalg.eigh(rows.T @ rows)  # ascending
    ones = np.full((width, 1), width**-0.5)
    others = np.random.default_rng(0).normal(size=(width, width - 1))
    turn = np.linalg.qr(np.column_stack([ones, others]))[0]
    turn[:, :1] = ones
    rows = rows @ basis @ turn.T
    rows -= rows.mean(1, keepdims=True)
    size = np.sqrt((rows**2).mean(1))
    counted = np.maximum(size, FAINT)
    return Start((rows / counted[:, None]).astype(np.float32), np.log(counted).astype(np.float32))


class StudentBert(nn.Module):
    """A BERT of ``layers`` layers over word rows; a text's vector is the weighted mean of its states, of length 1."""

    def __init__(self, start: Start, layers: int, longest: int) -> None:
        super().__init__()
        count, width = start.rows.shape
        config = BertConfig(
            vocab_size=count, hidden_size=width, num_hidden_layers=layers,
            num_attention_heads=width // math.gcd(width, HEAD),
            intermediate_size=WIDE * width, max_position_embeddings=longest, layer_norm_eps=1e-12,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        config._attn_implementation = "eager"  # PyTorch's own is slower on a CPU in bfloat16
        self.bert = BertModel(config, add_pooling_layer=False)
        embeddings = self.bert.embeddings
        embeddings.word_embeddings = _make_rows(start.rows)
        self.logs = _make_rows(start.logs[:, None])
        for table in (embeddings.position_embeddings, embeddings.token_type_embeddings):
            nn.init.zeros_(table.weight)
        embeddings.token_type_embeddings.requires_grad_(False)
        for name, weight in self.bert.encoder.named_parameters():
            if name.endswith("dense.weight") and ".intermediate." not in name:
                nn.init.zeros_(weight)  # the layer adds nothing
            elif weight.ndim > 1:
                nn.init.normal_(weight, std=width**-0.5)

    @property
    def device(self) -> torch.device:
        return self.logs.weight.device

    @property
    def longest(self) -> int:
        """The most tokens of a text."""
        return int(self.bert.config.max_position_embeddings)

    @property
    def rows(self) -> list[Tensor]:
        """The parameters with sparse gradients."""
        return [self.bert.embeddings.word_embeddings.weight, self.logs.weight]

    def tell_places(self) -> None:
        """Give positions that are all zero the sines and cosines of the Transformer (Vaswani et al. 2017)."""
        places = self.bert.embeddings.position_embeddings.weight
        if not places.any():
            width = places.shape[1]
            angle = torch.arange(len(places))[:, None] / 10_000 ** (2 * torch.arange((width + 1) // 2) / width)
            with torch.no_grad():
                places.copy_(PLACES * torch.cat([angle.sin(), angle.cos()], 1)[:, :width])

    def forward(self, ids: Tensor) -> Tensor:
        """Embed ids (B, T) of texts of equal length: (B, d) float32."""
        states = self.bert(ids).last_hidden_state
        return functional.normalize((states.float() * self.logs(ids).exp()).sum(1), dim=1)


def _make_rows(rows: NDArray[np.float32]) -> nn.Embedding:
    return nn.Embedding.from_pretrained(torch.from_numpy(rows.copy()), freeze=False, sparse=True)


def open_start(name: str, layers: int, longest: int, size: int) -> StudentBert:
    """Begin at the model ``name``: a token table, or a student, to which identity layers are added.

    Raises a FastflowError for another model, or other than ``size`` tokens.
    """
    model = load_model(name)
    if is_static(model.encoder):
        table = open_table(model.encoder)
        rows = np.array(table.vectors(np.arange(table.vocabulary), np.float32))
        weights = model.pooling.weights
        student = StudentBert(turn_table(rows if weights is None else rows * weights[:, None]), layers, longest)
    else:
        student = _grow(model, layers, longest)
    if (found := len(student.rows[0])) != size:
        raise FastflowError(f"{name} has {found:,} tokens, and the model to follow {size:,}: begin at another")
    return student


def _grow(model: Model, layers: int, longest: int) -> StudentBert:
    weights = model.pooling.weights
    old = BertModel.from_pretrained(str(model.encoder), add_pooling_layer=False)
    if weights is None or old.config.num_hidden_layers > layers:
        raise FastflowError(
            f"{model.path} is neither a token table nor a model that fastflow distill made, of at most {layers} layers"
        )
    state = old.state_dict()
    rows = state.pop("embeddings.word_embeddings.weight").float().numpy()
    places = state["embeddings.position_embeddings.weight"][:longest]
    more = places[-1:].expand(longest - len(places), -1)
    state["embeddings.position_embeddings.weight"] = torch.cat([places, more])
    last, new = (f"encoder.layer.{n - 1}.output.LayerNorm" if n else "embeddings.LayerNorm"
                 for n in (old.config.num_hidden_layers, layers))  # fmt: skip
    state |= {f"{new}.{name}": state.pop(f"{last}.{name}") for name in ("weight", "bias")}  # an identity keeps no scale
    student = StudentBert(Start(rows, np.log(np.maximum(weights, FAINT))), layers, longest)
    student.bert.load_state_dict(state, strict=False)  # layers that it lacks stay the identity
    return student


def save_student(student: StudentBert, shift: NDArray[np.float32], teacher: Model, folder: Path) -> None:
    """Write a directory of Sentence Transformers; ``shift`` (d,) is added to each vector of length 1."""
    weights = student.logs.weight.detach().exp().flatten().cpu().numpy()
    writer = Writer(folder)
    longest = student.longest
    settings = {"max_seq_length": longest, "do_lower_case": False, "unpad_inputs": False}
    where = writer.add_module("Transformer", settings, "sentence_bert_config.json")
    student.bert.save_pretrained(where)
    write_tokenizer(replace(teacher, max_length=longest), where)
    width = student.bert.config.hidden_size
    writer.add_word_weights(np.maximum(weights, FAINT))
    writer.add_module("Pooling", make_pooling(("mean",), width, True))
    writer.add_head([Unit(), Dense(np.eye(width), shift), Unit()], width)
    writer.finish(teacher, None)
