"""docs/shards.md: the command of the Kubernetes Job, run for every index as a pod would run it."""

from __future__ import annotations

import os
import re
import sysconfig

import numpy as np
import pytest

from support.places import ROOT, USERS
from support.processes import run_limited


@pytest.mark.slow
def test_the_job_makes_every_part(tmp_path):
    page = (ROOT / "docs" / "shards.md").read_text(encoding="utf-8")
    (command,) = re.findall(r'^ +args: \["(.*)"\]$', page, re.M)
    (of,) = re.findall(r"^  completions: (\d+)$", page, re.M)
    assert f"/{of} " in command
    data = tmp_path / "data"
    data.mkdir()
    (data / "corpus.txt").write_text("the dog\na cat\nit sings\n")
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    command = command.replace("/data/", f"{data}/").replace(f"/{of} ", "/2 ")
    for index in ("0", "1"):
        env = USERS | {"PATH": path, "JOB_COMPLETION_INDEX": index}
        done = run_limited(["bash", "-c", command], env=env, seconds=120)
        assert done.returncode == 0, done.stderr
    assert [len(np.load(part)) for part in sorted((data / "parts").glob("*.npy"))] == [1, 2]
