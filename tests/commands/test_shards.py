"""fastflow merge and fastflow status, run in this process: where lines go, and exit codes."""

from __future__ import annotations

import json

import numpy as np

from fastflow import Runtime

from support.commands import run


def test_two_parts_are_shown_and_joined(model, corpus, sentences, tmp_path):
    for number in (1, 2):
        assert run("embed", corpus, "-m", model, "--shard", f"{number}/2", "-o", tmp_path / "parts").exit_code == 0
        shown = run("status", tmp_path / "parts")
        assert (shown.exit_code, shown.stderr) == (0, "")
        assert f"{number} of 2 parts of {corpus}, 256 rows" in shown.stdout
    done = run("merge", tmp_path / "parts", "-o", tmp_path / "out.npy", "--quiet")
    assert (done.exit_code, done.output) == (0, "")
    assert np.array_equal(np.load(tmp_path / "out.npy"), Runtime(model).encode(sentences))


def test_status_has_json(model, corpus, tmp_path):
    run("embed", corpus, "-m", model, "--shard", "2/2", "-o", tmp_path / "parts", "-q")
    found = json.loads(run("status", tmp_path / "parts", "--json").stdout)
    assert (found["present"], found["of"], found["fingerprint"]) == (1, 2, Runtime(model).fingerprint)
    states = [(part["part"], part["state"]) for part in found["parts"]]
    assert states == [(1, "missing"), (2, "present")]
    assert found["parts"][0]["command"].endswith("part-00001-of-00002.npy")
    assert found["parts"][1]["command"] is None
