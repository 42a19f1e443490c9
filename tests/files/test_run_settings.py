"""The options of embed: runs that are the same, and the share of the rows that is asked for."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from fastflow.errors import UsageError
from fastflow.files.read.records import Layout
from fastflow.files.run import Settings, parse_shard


@pytest.mark.parametrize(("text", "shard"), [("1/1", (1, 1)), ("1/4", (1, 4)), ("4/4", (4, 4)), ("03/10", (3, 10))])
def test_a_shard_is_one_of_so_many(text, shard):
    assert parse_shard(text) == shard


@pytest.mark.parametrize(
    "text", ["", "1", "/", "1/", "/4", "0/4", "5/4", "-1/4", "1/0", "0/0", "1.0/4", "1/4/4", "a/b"]
)
def test_what_is_no_shard_is_refused_in_one_sentence(text):
    with pytest.raises(UsageError, match="must be I/N with I from 1 to N, such as 1/3") as raised:
        parse_shard(text)
    assert str(raised.value).startswith(f"--shard {text}: ")


OTHER = {"layout": Layout("txt"), "precision": "int8", "dim": 8, "normalize": True, "batch_tokens": 9, "dedupe": True,
         "shard": (1, 2), "truncate": "left", "prompt": "query: ", "log_prob": True, "only_new": True}  # fmt: skip


def test_every_option_tells_two_runs_apart():
    assert set(OTHER) == {field.name for field in fields(Settings)}
    assert Settings() == Settings()
    assert all(
        replace(Settings(), **{name: value}).recorded() != Settings().recorded() for name, value in OTHER.items()
    )
