"""The rows of the JSON have the keys that the kept files in bench/results have, in their order."""

from __future__ import annotations

import json

from fastflow.bench.measure.row import ADDED, KEYS, SINGLE_CALLS, Row

from support.places import ROOT

KEPT = ROOT / "bench" / "results"
STUDIES = ("ladder", "shapes")  # timed too, but in rows of their own


def test_each_row_of_a_kept_file_is_a_row():
    kept = {path.stem: path.read_text(encoding="utf-8") for path in KEPT.rglob("*.json")}
    timed = {name for name, text in kept.items() if "median_ms" in text}
    assert timed >= set(STUDIES)
    rows = [row for name in timed - set(STUDIES) for row in json.loads(kept[name])["rows"]]
    assert {row["suite"] for row in rows} == set(KEYS)
    for row in rows:
        assert list(Row(**row).as_dict().items()) == list(row.items())


def test_every_field_is_published_by_some_suite():
    layouts = (*KEYS.values(), SINGLE_CALLS, ADDED)
    assert all(len(set(keys)) == len(keys) for keys in layouts)
    assert {key for keys in layouts for key in keys} == set(Row.__dataclass_fields__)
