"""fastflow info and verify, as a user calls them."""

from __future__ import annotations

import json

from click.testing import CliRunner

from fastflow.cli import main
from fastflow.model.artifact import load_model


def test_info_and_verify_commands(model, model_copy):
    shown = CliRunner().invoke(main, ["info", str(model)])
    assert shown.exit_code == 0
    assert json.loads(shown.stdout)["fingerprint"] == load_model(model).fingerprint
    checked = CliRunner().invoke(main, ["verify", str(model_copy)])
    assert (checked.exit_code, checked.stdout.split("\n")[0]) == (0, "6 files match their sha256")
    (model_copy / "README.md").write_text("mended")
    refused = CliRunner().invoke(main, ["verify", str(model_copy)])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith("fastflow: ")
    assert refused.stderr.count("\n") == 1
