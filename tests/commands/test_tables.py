"""Commands that print tables and JSON, run in this process: similarity, info, verify, cache, status, merge, eval."""

from __future__ import annotations

import json
import shutil

import click
import numpy as np
import pytest
import scipy.stats
from safetensors.numpy import load_file, save_file

from fastflow import Runtime, __version__
from fastflow.cli import LATER, NAMES, TASKS, main
from fastflow.commands.train import train
from fastflow.model.artifact import load_model
from fastflow.model.locate import PACKAGED

from support.builders import hub_cache
from support.commands import assert_one_sentence, run, write_pairs
from support.tasks import bitext, retrieval, write

TEXTS = ["the dog sings", "a cat  sees\nthe river", "the dog"]


@pytest.fixture(scope="module")
def values(model):
    return Runtime(model).similarity(TEXTS, TEXTS)


def test_the_first_text_is_compared_with_the_others(model, values):
    shown = run("similarity", *TEXTS, "-m", model)
    assert shown.exit_code == 0
    lines = [f"{values[0, 1]:7.4f}  a cat sees the river", f"{values[0, 2]:7.4f}  the dog"]
    assert shown.stdout.splitlines() == lines
    assert shown.stderr.startswith(f"fastflow: model {model}, calibrated by flow, ")
    assert run("similarity", *TEXTS, "-q", "-m", model).stderr == ""


def test_json_has_every_pair_and_goes_where_it_is_told(model, values, tmp_path):
    printed = json.loads(run("similarity", *TEXTS, "-m", model, "-q", "--json").stdout)
    assert (printed["texts"], printed["similarity"]) == (TEXTS, "cosine")
    assert printed["values"] == values.tolist()
    both = run("similarity", *TEXTS, "-m", model, "-q", "--json", tmp_path / "s.json")
    assert len(both.stdout.splitlines()) == 2
    assert json.loads((tmp_path / "s.json").read_text()) == printed


def commands() -> dict[str, click.Command]:
    context = click.Context(main)
    found = {name: main.get_command(context, name) for name in NAMES}
    return {name: command for name, command in found.items() if command is not None}


def test_an_option_means_one_thing_in_every_command():
    names = {"-o": "--output", "-m": "--model", "-q": "--quiet"}
    helps: dict[str, set[str]] = {}
    for command in commands().values():
        for option in command.params:
            if not isinstance(option, click.Option):
                continue
            for short, long in names.items():
                assert (short in option.opts) == (long in option.opts), f"{command.name} {option.opts}"
            if "--json" in option.opts or "--quiet" in option.opts:
                helps.setdefault(option.opts[-1], set()).add(str(option.help))
            if "--model" in option.opts and "in the package" in str(option.help):
                assert all(f"'{name}'" in str(option.help) for name in PACKAGED), command.name
    assert {name: len(found) for name, found in helps.items()} == {"--json": 1, "--quiet": 1}
    for program in (main, train):
        assert {"-V", "--version"} in [set(option.opts) for option in program.params]
    with_json = {name for name, c in commands().items() if any("--json" in p.opts for p in c.params)}
    assert {"status", "verify", "cache", "embed", "eval", "report", "bench", "search", "info"} <= with_json


def test_help_lists_every_command_by_task_with_its_whole_summary():
    shown = run("--help").stdout
    assert set(NAMES) == set(LATER) == set(main.list_commands(click.Context(main)))
    assert "..." not in shown.partition("Embed and compare")[2]
    for task, summaries in TASKS.items():
        assert f"{task}:" in shown
        for name, summary in summaries.items():
            assert f"{name} " in shown
            assert summary in " ".join(shown.split())
            start = summary.rstrip(".")
            assert (commands()[name].help or "").startswith(start), f"the help of {name} begins otherwise"


def test_train_is_the_command_fastflow_train():
    assert commands()["train"] is train
    assert run("train", "--version").stdout.strip().endswith(__version__)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_info_is_of_the_arithmetic_that_is_asked_for(model, dtype, monkeypatch):
    monkeypatch.setenv("FASTFLOW_MODEL", str(model))
    for named in ([], [model]):
        shown = run("info", *named, "--dtype", dtype)
        assert shown.exit_code == 0
        assert json.loads(shown.stdout) == json.loads(json.dumps(Runtime(model, dtype=dtype).info()))


def test_models_of_the_package_and_of_the_cache_are_listed_with_the_reason_if_one_cannot_run(
    bert, tmp_path, monkeypatch
):
    snapshot = hub_cache(tmp_path, bert, monkeypatch)
    for name in ("pickled", "broken"):
        shutil.copytree(snapshot.parents[1], tmp_path / f"models--someone--{name}")
    odd = tmp_path / "models--someone--pickled" / "snapshots" / snapshot.name
    (odd / "model.safetensors").rename(odd / "pytorch_model.bin")
    (tmp_path / "models--someone--broken" / "snapshots" / snapshot.name / "config.json").write_text("{}")
    listed = {row.pop("name"): row for row in json.loads(run("models", "--json").stdout)["models"]}
    assert list(listed) == [*PACKAGED, "someone/broken", "someone/pickled", "someone/tiny"]
    for name in PACKAGED:
        own = load_model(name)
        size = sum(path.stat().st_size for path in own.path.rglob("*") if path.is_file())
        assert (listed[name]["dim"], listed[name]["bytes"], listed[name]["fault"]) == (256, size, None)
        assert len(listed[name]["languages"]) == (30 if name == "multilingual" else 1)
    assert [listed[name]["spearman"] for name in PACKAGED] == [75.5, None, 76.2, 74.9, 66.8]
    assert (listed["someone/tiny"]["dim"], listed["someone/tiny"]["fault"]) == (32, None)
    assert listed["someone/pickled"]["fault"] == "cannot run: the cache has no safetensors or no tokenizer of it"
    assert listed["someone/broken"]["fault"].startswith("cannot run: ")
    shown = run("models").stdout.splitlines()
    assert [line.split()[0] for line in shown] == ["model", *listed]
    assert shown[4].split() == ["static", "256", "8.4", "MB", "74.9", "English"]


def test_verify(model, model_copy, bert, bert_copy):
    checked = run("verify", model_copy)
    assert (checked.exit_code, checked.stdout.split("\n")[0]) == (0, "7 files match their sha256")
    found = json.loads(run("verify", model, "--json").stdout)
    assert (found["model"], found["checks"][-1]) == (str(model), f"fingerprint {Runtime(model).fingerprint}")
    (model_copy / "README.md").write_text("mended")
    assert_one_sentence(run("verify", model_copy), 1, "README.md")
    checked = run("verify", bert)
    assert (checked.exit_code, checked.stdout.split("\n")[0]) == (0, "a plain encoder: weights are whole and finite")
    arrays = load_file(bert_copy / "model.safetensors")
    arrays["encoder.layer.1.output.dense.bias"][3] = np.nan
    save_file(arrays, bert_copy / "model.safetensors")
    assert_one_sentence(run("verify", bert_copy), 1, "encoder.layer.1.output.dense.bias holds NaN")


def test_cache_has_json(model, tmp_path):
    (tmp_path / "in.txt").write_text("the dog\na cat\n")
    run("embed", tmp_path / "in.txt", "-m", model, "--cache", tmp_path / "c.db", "-o", tmp_path / "o.npy", "-q")
    kept = json.loads(run("cache", tmp_path / "c.db", "--json").stdout)
    assert (kept["vectors"], kept["runs"][0]["vectors"]) == (2, 2)
    assert kept["runs"][0]["settings"]["fingerprint"] == Runtime(model).fingerprint
    (tmp_path / "folder").mkdir()
    listed = json.loads(run("cache", tmp_path / "folder", "--json").stdout)
    assert listed == {"place": str(tmp_path / "folder"), "entries": []}


def test_parts_are_shown_and_joined(model, corpus, sentences, tmp_path):
    for number in (2, 1):
        assert run("embed", corpus, "-m", model, "--shard", f"{number}/2", "-o", tmp_path / "parts").exit_code == 0
        shown = run("status", tmp_path / "parts")
        assert (shown.exit_code, shown.stderr) == (0, "")
        assert f"{3 - number} of 2 parts of {corpus}, 256 rows" in shown.stdout
        found = json.loads(run("status", tmp_path / "parts", "--json").stdout)
        assert (found["present"], found["of"], found["fingerprint"]) == (3 - number, 2, Runtime(model).fingerprint)
        first, second = found["parts"]
        assert (first["part"], first["state"]) == (1, "missing" if number == 2 else "present")
        assert (second["part"], second["state"], second["command"]) == (2, "present", None)
        assert number == 1 or first["command"].endswith("part-00001-of-00002.npy")
    done = run("merge", tmp_path / "parts", "-o", tmp_path / "out.npy", "--quiet")
    assert (done.exit_code, done.output) == (0, "")
    assert np.array_equal(np.load(tmp_path / "out.npy"), Runtime(model).encode(sentences))


def test_eval_prints_a_table_and_writes_json(model, tmp_path):
    first, second, scores = write_pairs(tmp_path / "mine.tsv")
    result = run("eval", tmp_path, "-m", model, "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert list(found) == ["model", "fingerprint", "rows", "average"]
    assert (found["model"], found["fingerprint"]) == (str(model), Runtime(model).fingerprint)
    a, b = (Runtime(model).encode(side, normalize_embeddings=True) for side in (first, second))
    want = scipy.stats.spearmanr((a * b).sum(axis=1), scores).statistic
    assert [list(row) for row in found["rows"]] == [["set", "pairs", "all", "wmean"]]
    assert found["rows"][0]["pairs"] == 30
    assert abs(found["rows"][0]["all"] - 100 * want) <= 0.01
    figures = [f"{found['rows'][0][key]:.2f}" for key in ("all", "wmean")]
    assert result.stdout.split()[:8] == ["set", "pairs", "all", "wmean", "mine", "30", *figures]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.tsv", "out.json"]
    assert json.loads(run("eval", tmp_path / "mine.tsv", "-m", model, "--json", "-").stdout) == found
    write_pairs(tmp_path / "mine.tsv", constant=True)
    printed = run("eval", tmp_path / "mine.tsv", "-m", model, "--json", "-")
    found = json.loads(printed.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert found["rows"] == [{"set": "mine", "pairs": 30, "all": None, "wmean": None}]


def test_eval_takes_tasks_of_several_kinds(model, tmp_path):
    write_pairs(tmp_path / "scored.tsv")
    write(tmp_path / "same.tsv", "split\tlabel\tsentence1\tsentence2", "all\t1\ta cat\ta cat", "all\t0\ta cat\tno dog")
    retrieval(tmp_path / "search", ["d1\t-\tthe red apple", "d2\t-\tblue sky"], ["q\tred"], ["q\td1\t1"])
    result = run("eval", tmp_path, "-m", model, "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert list(found) == ["model", "fingerprint", "rows", "average", "tasks"]
    assert [row["set"] for row in found["tasks"]] == ["same", "search"]
    assert found["tasks"][0] | {"measures": 0} == {"set": "same", "kind": "pairs", "pairs": 2, "measures": 0}
    assert found["tasks"][0]["measures"]["ap"]["value"] == 100
    assert found["tasks"][1]["measures"]["ndcg@10"]["bm25"] == 100
    scored, tasks = result.stdout.split("\n\n")
    assert scored.split()[:4] == ["set", "pairs", "all", "wmean"]
    assert tasks.split("\n")[1].split()[:3] == ["same", "ap", "100.00"]
    alone = run("eval", tmp_path / "same.tsv", "-m", model, "--json", "-")
    assert list(json.loads(alone.stdout)) == ["model", "fingerprint", "tasks"]


def test_eval_compares_languages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = ["A cat sat on the mat.", "Shares fell sharply.", "It rains in the mountains."]
    bitext(tmp_path, en=lines, same=lines, other=[*lines[1:], lines[0]])
    result = run("eval", "en.txt", "en.txt", "same.txt", "-m", "static", "--quiet", "--json", "out.json")
    assert result.exit_code == 0, result.stderr
    (task,) = json.loads((tmp_path / "out.json").read_text())["tasks"]
    assert task | {"measures": 0} == {
        "set": "bitext", "kind": "bitext", "languages": 2, "lines": 3, "measures": 0,
        "ways": {"en": {"same": 100}, "same": {"en": 100}},
    }  # fmt: skip
    assert task["measures"]["accuracy"] == {"value": 100, "interval": [43.85, 100.0]}
    rows = [line.split() for line in result.stdout.splitlines()]
    assert [row[1:-4] for row in rows[1:]] == [
        *(["accuracy"], ["mixed"], ["share"], ["languages"], ["en", "to", "same"], ["same", "to", "en"]),
        *(["en", "to", "same,", "mixed"], ["same", "to", "en,", "mixed"]),
    ]
    three = run("eval", "en.txt", "same.txt", "other.txt", "-m", "static", "--quiet")
    assert three.stdout.splitlines()[-3:] == [
        "en          - 100.0   0.0",
        "same    100.0     -   0.0",
        "other     0.0   0.0     -",
    ]
