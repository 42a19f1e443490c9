"""Limits of tests count processor time: a busy machine fails none."""

import re
import signal
import sys

import hypothesis
import pytest

from support.places import TESTS
from support.processes import run_limited


def test_no_test_gives_a_process_a_limit_of_the_clock():
    call = re.compile(r"subprocess\.run\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\btimeout=")
    own = {"break_rules.py"}  # a tool, that ends what runs for 15 minutes
    files = [path for path in TESTS.rglob("*.py") if path.name not in own]
    assert [path.name for path in files if call.search(path.read_text(encoding="utf-8"))] == []


def test_an_example_of_hypothesis_has_no_deadline():
    assert hypothesis.settings().deadline is None


@pytest.mark.slow
def test_a_process_that_waits_is_not_ended_and_one_that_computes_is():
    assert run_limited([sys.executable, "-c", "import time; time.sleep(1.5)"], seconds=1).returncode == 0
    done = run_limited([sys.executable, "-c", "print('begun', flush=True)\nwhile True: pass"], seconds=1)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "begun\n")
