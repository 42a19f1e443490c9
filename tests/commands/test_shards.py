"""fastflow merge and fastflow status, run in this process: where lines go, and exit codes."""

from __future__ import annotations

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
