"""Large batches on a GPU: two in flight, cut if they do not fit, and whole after an error."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.kernels.encoder.reference import positions

from support.gpu_standin import assert_same, on_standin, use_standin
from support.triton_processes import NEEDS

pytestmark = NEEDS


def streams(log):
    return [entry for entry in log if entry[0] in ("run", "wait", "synchronize")]


def test_two_batches_are_in_flight_and_copies_have_streams_of_their_own(standin, model, sentences):
    runtime, exact = on_standin(model), Runtime(model, backend="reference")
    blocks = [block for _, block in runtime.stream(sentences[:240], batch_size=40)]
    assert_same(np.concatenate(blocks), exact.encode(sentences[:240]))
    log = streams(standin.log)
    computing, copying, returning = 0, 1, 2
    one = [("run", copying), ("wait", computing, copying), ("run", computing)]
    one += [("wait", returning, computing), ("run", returning)]
    assert [entry[:2] if entry[0] == "run" else entry for entry in log[:5]] == one
    launched = [i for i, entry in enumerate(log) if entry[:2] == ("run", computing)]
    waited = [i for i, entry in enumerate(log) if entry == ("synchronize", returning)]
    in_flight = [sum(i < w for i in launched) - n for n, w in enumerate(waited)]
    assert in_flight == [2, 2, 2, 2, 2, 1]


@pytest.mark.slow
def test_out_of_memory_halves_the_batches_and_goes_on(monkeypatch, model, sentences):
    standin = use_standin(monkeypatch, room=300)
    runtime, exact = on_standin(model), Runtime(model, backend="reference").encode(sentences)
    assert_same(runtime.encode(sentences), exact)
    notes = [note for note in runtime.info()["notes"] if "out of memory" in note]
    assert notes
    assert 0 < int(re.search(r"batches hold at most (\d+) since", notes[-1])[1]) <= 300 * 2
    standin.log.clear()
    assert_same(runtime.encode(sentences), exact)
    assert ("release",) not in standin.log, "what was too much once is not tried again"
    assert_same(runtime.encode(sentences[:3]), exact[:3], limit=1e-5)


def test_a_text_that_does_not_fit_alone_is_an_error(monkeypatch, model, sentences):
    use_standin(monkeypatch, room=12)
    runtime, exact = on_standin(model), Runtime(model, backend="reference")
    with pytest.raises(FastflowError, match=r"a text of \d\d tokens does not fit .* even alone") as caught:
        runtime.encode([*sentences[:40], " ".join(["house"] * 40)])
    assert "\n" not in str(caught.value)
    assert_same(runtime.encode(["a dog", "a cat"]), exact.encode(["a dog", "a cat"])), "and the runtime goes on"


@pytest.mark.slow
def test_an_error_on_the_way_leaves_the_pipeline_whole(standin, model, sentences, monkeypatch):
    """Often enough that a slot lost each time would leave none."""
    runtime, exact = on_standin(model), Runtime(model, backend="reference").encode(sentences)
    for third in range(4):
        with monkeypatch.context() as patch:
            calls = []

            def fails_once(*given, calls=calls, third=third):
                calls.append(given)
                if len(calls) == third % 3 + 1:
                    raise KeyboardInterrupt
                return positions(*given)

            patch.setattr("fastflow.backends.triton.positions", fails_once)
            with pytest.raises(KeyboardInterrupt):
                runtime.encode(sentences, batch_size=40)
        assert_same(runtime.encode(sentences, batch_size=40), exact)
