"""Where a newcomer stumbles: a command that is another program, a report on nothing."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from fastflow.cli import main


def test_train_leads_to_fastflow_train():
    result = CliRunner().invoke(main, ["train", "corpus.txt", "--encoder", "default"])
    assert result.exit_code == 2
    assert "a model is made by the command fastflow-train" in result.stderr
    assert "Traceback" not in result.stderr


def test_any_other_command_is_unknown_as_before():
    result = CliRunner().invoke(main, ["trains"])
    assert (result.exit_code, "No such command 'trains'" in result.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--against", "raw"]])
def test_a_report_on_nothing_is_wrong_usage(model, tmp_path, options):
    page = tmp_path / "page.html"
    result = CliRunner().invoke(main, ["report", str(model), "--html", str(page), *options])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith(
        "fastflow: report has nothing to measure: give text with --corpus FILE, scored pairs with --sts PAIRS.tsv|DIR, "
        "or both\n"
    )
    assert not page.exists()
