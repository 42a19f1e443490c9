"""The lines of a fit go where its caller wants them."""

import warnings

import pytest

import fastflow


@pytest.mark.slow
def test_nothing_is_said_and_nothing_written(bert, sentences, empty, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = fastflow.fit(sentences, bert, "flow", spectrum=0.5, demoted=0, background=0)
    assert fit.report["warnings"] == []
    assert capfd.readouterr() == ("", "")
    assert list(empty.iterdir()) == []


@pytest.mark.slow
def test_lines_go_where_the_caller_wants_them(train, bert, sentences, tmp_path, capfd):
    said = train("--method", "flow", "--spectrum", 0.5, "--demoted", 0).stderr.splitlines()
    lines = []
    fastflow.fit(sentences, bert, "flow", spectrum=0.5, demoted=0, background=0, progress=lines.append)
    assert capfd.readouterr() == ("", "")
    assert lines == said[: len(lines)]
    assert len(lines) == 2
    fastflow.fit(sentences, bert, "flow", spectrum=0.5, demoted=0, background=0, progress=True)
    assert [line for line in capfd.readouterr().err.splitlines() if line in lines] == lines
