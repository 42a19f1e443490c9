"""The fields of a shard's manifest: sound ones, and every kind of value that none has."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastflow.files.parts.counting import Counted
from fastflow.files.parts.fields import wrong
from fastflow.files.parts.manifest import manifest_of

HASH = "0123456789abcdef" * 4
SOUND = json.loads(
    json.dumps(
        asdict(
            manifest_of(
                Path("part-00002-of-00003.npy"), (2, 3), ["in.txt", "b.txt"],
                [Counted(7, 90, HASH), Counted(3, 9, HASH)],
                {"fingerprint": "f", "normalized": True, "options": {"dim": None, "layout": {"field": None}}},
                ["in.txt"],
            )
        )
    )
)  # fmt: skip
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def test_a_manifest_that_was_made_is_sound():
    assert wrong(dict(SOUND)) is None
    assert wrong(SOUND | {"bytes": 7, "sha256": HASH}) is None


@pytest.mark.slow
@given(st.sampled_from(sorted(SOUND)), values)
def test_any_value_is_sound_or_named(name, value):
    said = wrong(SOUND | {name: value})
    assert value == SOUND[name] or said is not None or name in ("run", "arguments", "part")
    assert said is None or isinstance(said, str)


@pytest.mark.parametrize("name", sorted(SOUND))
def test_a_field_that_is_missing_is_named(name):
    found = {key: value for key, value in SOUND.items() if key != name}
    assert wrong(found) == f"{name}: missing"
