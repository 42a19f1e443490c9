"""fastflow.fit: the model of the command, from Python and in memory."""

import json
import warnings
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

import fastflow
from fastflow.errors import FastflowError, missing_extra
from fastflow.model.verify import verify
from fastflow.train.arguments import name_arguments
from fastflow.train.option_fields import flag

from support.builders import LAYERED


def read_training(directory):
    manifest = json.loads((directory / "fastflow.json").read_text())
    del manifest["fingerprint"], manifest["files"]["README.md"], manifest["training"]["corpus"]
    return manifest


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"method": "flow", "seed": 3, "epochs": 2},
        {"method": "auto"},
        {"method": "whiten:8,standardize", "stream": True},
        {"method": "nullspace:2", "pooling": "cls", "max_length": 12, "sample": 99, "stop": "budget"},
    ],
)
def test_a_fit_is_the_model_of_the_command(train, bert, sentences, tmp_path, options):
    flags = [(flag(name), *(() if value is True else (value,))) for name, value in options.items()]
    assert train(*chain(*flags)).exit_code == 0
    given = {name: value for name, value in options.items() if value != "auto"}  # which is the default of both
    mark = fastflow.fit((text for text in sentences), bert, background=0, **given).save(tmp_path / "fit")
    assert verify(tmp_path / "fit")[-1] == f"fingerprint {mark}"
    assert read_training(tmp_path / "fit") == read_training(tmp_path / "m")
    arrays = [(tmp_path / name / "calibration.safetensors").read_bytes() for name in ("fit", "m")]
    assert arrays[0] == arrays[1]


@pytest.mark.slow
def test_blank_and_repeated_texts_are_no_texts_of_their_own(bert, sentences, tmp_path):
    texts = ["", f"  {sentences[0]}\n", *sentences, sentences[3], " \t"]
    marks = [fastflow.fit(given, bert).save(tmp_path / str(len(given))) for given in (texts, sentences)]
    assert marks[0] == marks[1]


@pytest.mark.slow
def test_the_report_holds_what_the_command_prints(train, bert, sentences, tmp_path):
    pairs = tmp_path / "pairs.tsv"
    rows = [f"a\t{i}\t{sentences[i]}\t{sentences[i + 30]}" for i in range(30)]
    pairs.write_text("\n".join(["subset\tscore\tsentence1\tsentence2", *rows]) + "\n")
    printed = train("--method", "standardize", "--eval", pairs)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        fit = fastflow.fit(sentences, bert, "standardize", eval=pairs, background=0)  # as ``train``
    report = fit.report
    assert json.loads(json.dumps(report)) == report
    assert (report["method"], report["calibration"], report["texts"]) == ("standardize", "standardize", 256)
    assert [stage.kind for stage in fit.stages] == ["standardize"]
    trained = json.loads((tmp_path / "m" / "fastflow.json").read_text())["training"]
    assert report["measures"] == {name: trained[name] for name in report["measures"]}
    assert {"isotropy", "separability", "spearman"} == set(report["measures"])
    assert (report["choice"], report["reasons"]) == (trained["choice"], trained["reasons"])
    said = [line.removeprefix("WARNING: ") for line in printed.stderr.splitlines() if line.startswith("WARNING")]
    assert report["warnings"] == said
    assert [name_arguments(warning) for warning in said] == [str(warning.message) for warning in warned]
    report["measures"].clear()
    assert fit.report["measures"]


@pytest.mark.slow
def test_a_cache_is_used_where_one_is_named(bert, sentences, tmp_path, capfd):
    lines = []
    for _ in range(2):
        fit = fastflow.fit(sentences, bert, "standardize", cache_folder=tmp_path / "cache", progress=lines.append)
    assert len(list((tmp_path / "cache").glob("*.npy"))) == 1
    assert len([line for line in lines if line.startswith("cached ")]) == 1
    assert np.array_equal(fit.pooled, fastflow.fit(sentences, bert, "standardize").pooled)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_refused_method_is_warned_of(bert, sentences):
    with pytest.warns(UserWarning, match="whiten was REFUSED and the pooling kept as it is") as warned:
        fit = fastflow.fit(sentences, bert, "whiten", pooling=LAYERED)
    assert warned[0].filename == __file__
    assert (fit.stages, fit.report["method"], fit.report["calibration"]) == ([], "none", "none")


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ("one text", {}, "not as str; files are read by fastflow-train"),
        (Path("corpus.txt"), {}, "not as PosixPath; files are read"),
        ({"a", "b"}, {}, "not as set"),
        (7, {}, "not as int"),
        (["one", 2], {}, "text 1 is int, not str"),
        ([], {}, "texts given in Python: holds no text"),
        (["one", " one"], {}, "a single distinct text"),
        (["one", "two"], {"epoch": 2}, "fit has no option 'epoch'; it takes method, stop, pooling"),
        (["one", "two"], {"save_steps": 2}, "fit has no option 'save_steps'"),
        (["one", "two"], {"batch_size": 1}, "batch_size must be a whole number of at least 2"),
        (["one", "two"], {"progress": 3}, "progress must be True, None or a function of a line, not 3"),
        (["one", "two"], {"eval": "absent.tsv"}, "absent.tsv: no such file or folder of scored pairs"),
        (["one", "two"], {"encoder": "./absent"}, "./absent: no such encoder directory"),
    ],
)
def test_wrong_arguments_are_one_sentence(bert, texts, options, message):
    with pytest.raises(FastflowError, match=message.replace("(", r"\(")):
        fastflow.fit(texts, **{"encoder": bert, "method": "whiten", **options})


@pytest.mark.slow
@pytest.mark.parametrize("module", ["torch", "transformers"])
def test_a_missing_extra_names_the_command(run_python, module):
    program = f"import sys; sys.modules[{module!r}] = None; import fastflow\ntry: fastflow.fit(['a', 'b'])\n"
    done = run_python(program + "except fastflow.FastflowError as error: print(error)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(missing_extra("train", module, "fastflow.fit")))


def test_messages_name_arguments_and_not_options_of_the_command():
    message = "--stop rule judges ...: use --stop likelihood, --token-weights none; fastflow cache --clear; --saved"
    assert name_arguments(message) == (
        "stop rule judges ...: use stop likelihood, token_weights none; fastflow cache --clear; --saved"
    )
