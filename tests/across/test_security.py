"""SECURITY.md: every guard names tests that exist, and no code of a model runs."""

import ast
import json
import re

import pytest

from fastflow import FastflowError, Runtime

from support.places import ROOT

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
GUARDS = re.findall(r"^\| (\*\*.*?) \| (.*?) \|$", PAGE, re.M)
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


def test_every_guard_names_its_tests():
    assert len(GUARDS) > 20
    for guard, tests in GUARDS:
        assert re.fullmatch(r"(`tests/[\w/]+\.py::\w+` ?)+", tests), guard


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[name for _, name in NAMED])
def test_it_exists(file, name):
    module = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {each.name for each in module.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_targets_and_attacks_exist():
    named = set(re.findall(r"`(\w+)`", PAGE.split("The targets of")[1].split("##")[0]))
    known = {path.stem for folder in ("attacks", "fuzz/targets") for path in (ROOT / "tests" / folder).glob("*.py")}
    assert len(named) > 5
    assert named <= known


@pytest.mark.parametrize("family", ["bert", "of its own"])
def test_code_in_a_model_is_not_run(bert_copy, tmp_path, family, backend):
    """``auto_map`` names classes in files of the directory, which transformers would import if it were trusted."""
    config = json.loads((bert_copy / "config.json").read_text())
    classes = {"AutoConfig": "code.Config", "AutoModel": "code.Model", "AutoTokenizer": ["code.Tokenizer", None]}
    config |= {"auto_map": classes, "model_type": "bert" if family == "bert" else "mine"}
    (bert_copy / "config.json").write_text(json.dumps(config))
    program = f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\nConfig = Model = Tokenizer = None\n"
    for name in ("code.py", "__init__.py", "conftest.py", "setup.py", "sitecustomize.py"):
        (bert_copy / name).write_text(program)
    if family == "bert":
        assert Runtime(bert_copy, backend=backend).encode(["a text"]).shape == (1, 32)
    else:
        with pytest.raises(FastflowError):
            Runtime(bert_copy, backend=backend)
    assert not (tmp_path / "ran").exists()
