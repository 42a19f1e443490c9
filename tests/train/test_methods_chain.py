"""Methods by name, and chains of them, fitted link after link or refused before anything is embedded."""

import numpy as np
import pytest

from fastflow.errors import UsageError, missing_extra
from fastflow.evaluation.analyses import isoscore
from fastflow.stages.calibration import apply, describe
from fastflow.train.data.moments import measure_moments
from fastflow.train.methods.against import fit_named
from fastflow.train.methods.chain import check_chain, fit_chain
from fastflow.train.methods.closed_forms import fit_closed_form
from fastflow.train.methods.loop import Schedule, Training
from fastflow.train.methods.names import Method, complete_chain, parse_method

from support.rows import data

SHAPE = {"levels": 2, "depth": 2, "width": 8, "coupling": "additive", "permutation": "reversal"}
STEPS = Training(Schedule(batch_size=50))


def test_methods_by_name():
    for text, links in (
        ("none", []),
        ("flow", [Method("flow")]),
        ("whiten:128,flow", [Method("whiten", 128), Method("flow")]),
        ("standardize, nullspace:3", [Method("standardize"), Method("nullspace", 3)]),
        ("components:2,nullspace", [Method("components", 2), Method("nullspace")]),
    ):
        assert parse_method(text) == parse_method(text.replace(",", "+")) == links, text
    for latent, text, whole in ((True, "flow", "flow"), (False, "flow", "flow,recolour"), (False, "flow,whiten", None)):
        assert complete_chain(parse_method(text), latent) == parse_method(whole or text), text
    for said, texts in (
        (r"unknown method '.*'; use flow, whiten\[:K\]", "|pca|flow:3|standardize:2|whiten:|whiten:-1|flow,|none,flow"),
        ("unknown method 'auto'", "auto,flow"),
        ("recolour comes last", "recolour|recolour,flow|flow,recolour,whiten:8"),
    ):
        for text in texts.split("|"):
            with pytest.raises(UsageError, match=said):
                parse_method(text)


@pytest.mark.parametrize("chain", [["standardize"], ["nullspace"], ["whiten"], ["nullspace", "whiten"]])
def test_statistics_after_a_stage_need_no_second_pass(chain):
    x = data()
    m = measure_moments(x)
    for kind in chain:
        stage = fit_closed_form(kind, 7 if kind == "whiten" else None, m)
        m, x = m.push_through(stage), apply([stage], x)
    expected = measure_moments(x)
    assert (m.count, m.mean.shape) == (300, expected.mean.shape)
    assert np.abs(m.mean - expected.mean).max() <= 1e-10 * max(1.0, np.abs(x).max())
    assert np.abs(m.covariance - expected.covariance).max() <= 1e-10 * max(1.0, np.abs(expected.covariance).max())


def test_chains_that_cannot_run_are_wrong_usage_before_anything_is_embedded():
    for text, message in (
        ("whiten:17", "whiten:17 is out of range: it takes 1 to 16"),
        ("whiten:0", "whiten:0 is out of range"),
        ("nullspace:0", "nullspace:0 is out of range: it takes 1 to 15"),
        ("nullspace:16", "nullspace:16 is out of range"),
        ("components:16", "components:16 is out of range: it takes 1 to 15"),
        ("whiten:8,whiten:9", "whiten:9 is out of range: it takes 1 to 8"),
        ("whiten:6,flow", "needs a width divisible by 4, and the embeddings have 6"),
    ):
        for run in (lambda links: check_chain(links, 16, SHAPE), lambda links: fit_chain(links, data(), SHAPE, STEPS)):
            with pytest.raises(UsageError, match=message):
                run(parse_method(text))
    check_chain(parse_method("whiten:8,nullspace:7,flow,whiten:8"), 16, SHAPE)


@pytest.mark.parametrize("text", ["standardize,whiten:8,flow", "nullspace:2,standardize", "flow,whiten", "flow,flow"])
def test_chains_are_fitted_link_after_link(text):
    x = data(400, dtype=np.float32)
    fitted = fit_chain(parse_method(text), x, SHAPE, STEPS)
    kinds = [link.kind for link in parse_method(text)]
    assert [stage.kind for stage in fitted.stages] == kinds
    assert describe(fitted.stages).count("->") == len(kinds) - 1
    assert sorted(fitted.flows) == [i for i, kind in enumerate(kinds) if kind == "flow"]
    assert len(fitted.bits) == kinds.count("flow")
    z = apply([stage.astype(np.float64) for stage in fitted.stages], x.astype(np.float64))
    assert isoscore(z) > isoscore(x)
    if kinds[-1] in ("standardize", "whiten"):
        assert np.abs(z.mean(axis=0)).max() <= 1e-9
        assert np.abs(z.std(axis=0) - 1).max() <= 1e-9


def test_a_flow_starts_with_the_bits_of_independent_gaussians():
    """A constant channel counts as one of deviation 1."""
    x = data(dtype=np.float32)
    x[:, 2] = 7
    fitted = fit_chain(parse_method("flow"), x, SHAPE, Training(Schedule(epochs=0.01, lr=1e-12)))
    (bits,) = fitted.bits
    assert bits[0] == pytest.approx(bits[1], abs=1e-5)


@pytest.mark.parametrize("text", ["whiten,recolour", "standardize,nullspace:2", "flow", "whiten:8,flow,recolour"])
def test_the_background_counts_as_rows_of_the_corpus(text):
    x, y = data(300, dtype=np.float32), data(90, seed=1, dtype=np.float32) + 3
    colour = {"spectrum": 0.1, "mean_share": 0.3, "demoted": 1}
    links = parse_method(text)
    beside = fit_chain(links, x, SHAPE, STEPS, colour, background=y)
    both = fit_chain(links, np.concatenate([x, y]), SHAPE, STEPS, colour)
    assert same_stages(beside, both)
    assert not same_stages(beside, fit_chain(links, x, SHAPE, STEPS, colour))
    assert beside.bits == both.bits


def test_the_background_is_merged_with_statistics_of_the_whole_corpus():
    x, y = data(300), data(90, seed=1) + 3
    links = parse_method("whiten,recolour")
    whole = measure_moments(x)
    streamed = fit_chain(links, x[:50], SHAPE, STEPS, statistics=whole, background=y)
    read = fit_chain(links, x, SHAPE, STEPS, background=y)
    assert same_stages(streamed, read, lambda a, b: np.allclose(a, b, rtol=1e-7, atol=1e-9))
    assert whole.count == 300, "the caller's statistics are left as they are"


def same_stages(one, other, same=np.array_equal):
    pairs = zip(one.stages, other.stages, strict=True)
    return all(same(a.params[name], b.params[name]) for a, b in pairs for name in a.params)


@pytest.mark.slow
def test_closed_forms_are_fitted_without_pytorch(run_python):
    program = """
import sys
sys.modules["torch"] = None
import numpy as np
from fastflow.stages.calibration import apply
from fastflow.train.methods.against import fit_named
x = np.random.default_rng(0).normal(size=(50, 6)) * np.arange(1, 7)
assert np.abs(np.cov(apply(fit_named("whiten:3", x), x), rowvar=False, ddof=0) - np.eye(3)).max() <= 1e-10
assert fit_named("raw", x) == []
assert apply(fit_named("nullspace:2", x), x).shape == (50, 6)
try:
    fit_named("flow", x)
except Exception as error:
    print(error)
"""
    done = run_python(program)
    assert done.stdout.startswith(str(missing_extra("train", "torch", "fitting 'flow'"))), done.stderr


def test_fit_named_is_seeded():
    x = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    first, again, other = (apply(fit_named("flow", x, seed), x.astype(np.float64)) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
