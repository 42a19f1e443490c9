"""The page of a billion texts is what the script makes of the committed rates; its arithmetic is checked by hand."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from fastflow.bench.research import billion
from fastflow.bench.research.billion import ASSUMED, MODELS, figures, hours, main, page, texts_per_node, tokens_per_core

from support.places import ROOT


def test_the_page_is_the_scripts(tmp_path):
    assert (ROOT / "docs" / "billion-rows.md").read_text(encoding="utf-8") == page()
    assert CliRunner().invoke(main, ["--out", str(tmp_path / "page.md")]).exit_code == 0
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == page()


def test_no_figure_stands_in_the_text_of_the_page():
    names = r"\$\w+|float32|bfloat16|int8|all-MiniLM-L6-v2|Zen 4|^\d\. "
    text = re.sub(names, "", billion.TEMPLATE.read_text(), flags=re.M)
    assert re.findall(r"\d+", text) == []


def test_a_rate_by_hand():
    rows = json.loads((billion.RESULTS / "zen4/end-to-end-bert-base.json").read_text())["rows"]
    (row,) = (r for r in rows if "BERT-base" in r["subject"] and (r["name"], r["dtype"]) == ("fastflow", "int8"))
    rate = row["texts_per_s"] * row["tokens"] / row["batch"] / 2
    assert tokens_per_core(MODELS[2], "int8") == pytest.approx(rate, 1e-4)


def test_hours_by_hand():
    rate = tokens_per_core(MODELS[0], "float32")
    assumed = ASSUMED._replace(tokens=10, cores=4, nodes=5, scaling=0.5)
    assert texts_per_node(MODELS[0], "float32", assumed) == pytest.approx(rate * 4 * 0.5 / 10)
    assert hours(MODELS[0], "float32", assumed) == pytest.approx(1e9 / (rate * 4 * 0.5 / 10 * 5) / 3600)
    doubled = assumed._replace(tokens=20)
    assert hours(MODELS[0], "float32", doubled) == pytest.approx(2 * hours(MODELS[0], "float32", assumed))


def test_sizes_by_hand():
    found = figures(ASSUMED._replace(disk=2e9))
    assert "| 768 | 3,072 | 1,536 | 768 | 96 | 0.9 | 0.2 |" in found["size_table"]  # 2 x 3.072 TB at 2 GB a second
    assert (found["integer_gb"], found["string_gb"], found["bits_gb"], found["graph_gb"]) == ("8", "78", "32", "384")


def test_minutes_of_a_part_by_hand():
    found = figures(ASSUMED)
    seconds = 1e9 / 1024 / texts_per_node(MODELS[1], "bfloat16")
    assert found["shard_minutes"] == f"{seconds / 60:.1f}" != "2.0"
    assert (found["shards"], found["read_minutes"]) == ("1,024", "2")  # 120 GB at 1 GB a second
