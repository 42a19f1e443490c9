"""fastflow eval: tables, JSON, tasks of several kinds, and undefined figures."""

from __future__ import annotations

import json

import pytest
import scipy.stats

from fastflow import Runtime

from support.commands import run, write_pairs
from support.tasks import retrieval, write


def test_eval_prints_a_table_and_writes_json(model, tmp_path):
    first, second, scores = write_pairs(tmp_path / "mine.tsv")
    result = run("eval", tmp_path, "-m", model, "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert list(found) == ["model", "fingerprint", "rows", "average"]
    assert (found["model"], found["fingerprint"]) == (str(model), Runtime(model).fingerprint)
    a, b = (Runtime(model).encode(side, normalize_embeddings=True) for side in (first, second))
    want = scipy.stats.spearmanr((a * b).sum(axis=1), scores).statistic
    assert [list(row) for row in found["rows"]] == [["set", "pairs", "all", "wmean"]]
    assert found["rows"][0]["pairs"] == 30
    assert abs(found["rows"][0]["all"] - 100 * want) <= 0.01
    assert result.stdout.split()[:8] == ["set", "pairs", "all", "wmean", "mine", "30"] + [
        f"{found['rows'][0][key]:.2f}" for key in ("all", "wmean")
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.tsv", "out.json"]
    printed = run("eval", tmp_path / "mine.tsv", "-m", model, "--json", "-")
    assert json.loads(printed.stdout) == found


def test_eval_of_constant_scores_is_null_in_json(model, tmp_path):
    write_pairs(tmp_path / "mine.tsv", constant=True)
    printed = run("eval", tmp_path / "mine.tsv", "-m", model, "--json", "-")
    found = json.loads(printed.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert found["rows"] == [{"set": "mine", "pairs": 30, "all": None, "wmean": None}]


def test_eval_takes_tasks_of_several_kinds(model, tmp_path):
    pytest.importorskip("bm25s", reason="bm25s is not installed")
    write_pairs(tmp_path / "scored.tsv")
    write(tmp_path / "same.tsv", "split\tlabel\tsentence1\tsentence2", "all\t1\ta cat\ta cat", "all\t0\ta cat\tno dog")
    retrieval(tmp_path / "search", ["d1\t-\tthe red apple", "d2\t-\tblue sky"], ["q\tred"], ["q\td1\t1"])
    result = run("eval", tmp_path, "-m", model, "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert list(found) == ["model", "fingerprint", "rows", "average", "tasks"]
    assert [row["set"] for row in found["tasks"]] == ["same", "search"]
    assert found["tasks"][0] | {"measures": 0} == {"set": "same", "kind": "pairs", "pairs": 2, "measures": 0}
    assert found["tasks"][0]["measures"]["ap"]["value"] == 100
    assert found["tasks"][1]["measures"]["ndcg@10"]["bm25"] == 100
    scored, tasks = result.stdout.split("\n\n")
    assert scored.split()[:4] == ["set", "pairs", "all", "wmean"]
    assert tasks.split("\n")[1].split()[:3] == ["same", "ap", "100.00"]
    alone = run("eval", tmp_path / "same.tsv", "-m", model, "--json", "-")
    assert list(json.loads(alone.stdout)) == ["model", "fingerprint", "tasks"]
