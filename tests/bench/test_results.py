"""The kept results have their rows and commands, and the folders of the bench import one another in one direction."""

import json
import re
import shutil
from importlib.util import find_spec

import numpy as np
import pytest
from safetensors.numpy import load_file

from fastflow import Runtime
from fastflow.bench.cli import RANGES, RUNS
from fastflow.bench.research import packing, study
from fastflow.evaluation.evaluate import find_tasks, measure
from fastflow.model.artifact import load_model
from fastflow.model.encoder.weights import SCALES
from fastflow.model.hashing import MANIFEST
from fastflow.model.locate import UNTUNED
from fastflow.model.tokenizer.languages import load_languages

from support.arrows import GRAPH
from support.places import ROOT

RESULTS = ROOT / "bench" / "results"
PAGE = (RESULTS / "README.md").read_text(encoding="utf-8")
KEPT = sorted(path for path in RESULTS.iterdir() if path.name != "README.md" and path.is_file())
MACHINES = sorted(path.name for path in RESULTS.iterdir() if path.is_dir())


def listed():
    """The names of the table's first column; an ending alone, as in `.json`, belongs to every name before it."""
    names = set()
    for row in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE):
        words = re.findall(r"`([^`]+)`", row)
        endings = [word for word in words if re.fullmatch(r"\.\w+", word)]
        whole = [word for word in words if word not in endings]
        names |= {*whole, *(name.rpartition(".")[0] + ending for name in whole for ending in endings)}
    return names


def test_every_file_with_figures_is_quoted():
    folders = ("docs", "bench", "tests", "train", "release", "kernels")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".md", ".py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files if path != RESULTS / "README.md")
    kept = [path for path in KEPT if path.suffix == ".json"]
    assert [path.name for path in kept if not re.search(rf"\b{path.stem}\.(?:json|md)\b", text)] == []


def test_every_file_is_in_the_table_and_the_table_names_no_other():
    inside = {name for name in listed() if "/" not in name}
    assert {path.name for path in KEPT} == inside
    outside = listed() - inside
    assert {f"{machine}/" for machine in MACHINES} <= outside, "a folder for each machine"
    assert "../../docs/compared.png" in outside
    assert all((RESULTS / name).exists() for name in outside)


@pytest.mark.each
@pytest.mark.parametrize("machine", MACHINES)
def test_every_file_of_a_machine_is_of_a_run_or_in_the_table(machine):
    runs = {*RUNS, RANGES.removesuffix(".json")}
    for path in (RESULTS / machine).iterdir():
        assert path.stem in runs or f"`{machine}/{path.name}`" in PAGE, path.name
        if path.suffix == ".txt":
            assert path.with_suffix(".json").is_file()


@pytest.mark.each
@pytest.mark.parametrize("path", [RESULTS / "README.md", *(p for p in KEPT if p.suffix == ".md")], ids=lambda p: p.name)
def test_the_commands_name_modules_that_exist(path):
    for module in set(re.findall(r"python -m (fastflow[\w.]*\w)", path.read_text(encoding="utf-8"))):
        assert find_spec(module), f"{path.name} names {module}"


BELOW = {"measure": (), "peers": ("measure",), "report": (), "suites": ("peers", "measure", "report")}


@pytest.mark.parametrize("folder", BELOW)
def test_a_folder_imports_only_from_those_below_it(folder):
    here = {name: arrows for name, arrows in GRAPH.items() if name.startswith(f"fastflow.bench.{folder}.")}
    assert len(here) >= 2
    for name, arrows in here.items():
        reached = {each.split(".")[2] for each in arrows if each.startswith("fastflow.bench.")}
        assert reached <= {folder, *BELOW[folder]}, name


def test_figures_of_a_study_read_back_at_six_digits_and_its_page_is_of_them(tmp_path):
    rows = [{"dim": 8, "ms": 1.23456789, "note": None}, {"b": [2, {"rows": [{"a": 1.0}]}]}]
    study.write(tmp_path / "out", {"command": "c", "rows": rows}, lambda found: f"{found['rows'][0]}")
    kept = study.read(tmp_path / "out.json")
    assert kept["rows"] == [{"dim": 8, "ms": 1.23457, "note": None}, rows[1]]
    assert "processor" in kept["machine"]
    assert (tmp_path / "out.md").read_text() == str(kept["rows"][0])
    assert study.make_table(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"


@pytest.mark.slow
@pytest.mark.data
def test_the_table_across_languages(shared_data):
    """Spearman of STSb and accuracy with English of the model ``static``, measured with independent code."""
    english, *others = sorted((shared_data / "langs" / "pud").glob("*.txt"), key=lambda path: (path.stem != "en", path))
    scored = [shared_data / f"tasks/sts-multi/STSb-test-{language}.tsv" for language in ("de", "ru", "zh")]
    tasks = find_tasks([english, *others, shared_data / "sts" / "STSb-test.tsv", *scored])
    with Runtime("static") as runtime:
        bitext, *sts = (measure(task, runtime.encode(task.texts)) for task in tasks)
    assert [each["all"] for each in sts] == pytest.approx([77.5, 58.9, 53.1, 31.9], abs=0.06)
    assert bitext.items() >= {"en and de": 27.2, "en and ru": 1.3, "en and zh": 7.7}.items()


def test_the_package_has_the_words_of_each_language_that_was_measured():
    rows = {row["texts"]: row for row in study.read(RESULTS / "noticed.json")["rows"]}
    english, *foreign = load_languages()
    assert (english, len(foreign)) == ("English", 27)
    assert {len(words) for words in load_languages().values()} == {290}
    for name in (*foreign, "Japanese", "Chinese"):
        assert (rows[name]["100 texts, warned"], rows[name]["100 texts, named"]) == (1, 1)
    assert rows["English"]["100 texts, warned"] == 0


def test_a_packed_model_has_int8_rows_and_a_new_signature(model, tmp_path):
    shutil.copytree(model, tmp_path / "m")
    path, manifest = tmp_path / "m" / "0_Transformer/model.safetensors", json.loads((model / MANIFEST).read_text())
    before = load_file(path)
    packing.write_int8_rows(path, lambda name, tensor: None if "layer.2" in name else tensor.astype(np.float16))
    found, name = load_file(path), "embeddings.word_embeddings.weight"
    assert not any("layer.2" in key for key in found)
    assert found[name].dtype == np.int8
    rounded = found[name] * found[SCALES][:, None]
    np.testing.assert_allclose(rounded, before[name], atol=np.abs(before[name]).max() / 127)
    assert packing.sign(tmp_path / "m", manifest, {"max_length": 12}) == load_model(tmp_path / "m").fingerprint
    assert load_model(tmp_path / "m").max_length == 12


def test_the_matrix_of_untuned_is_float32_in_float64():
    matrix = load_file(UNTUNED / "calibration.safetensors")["1.matrix"]
    assert np.array_equal(matrix, matrix.astype(np.float32))


def test_the_page_has_the_loops_of_arm64():
    rows = json.loads((RESULTS / "arm64.json").read_text(encoding="utf-8"))["loops"]["rows"]
    share = {(row["tile"], row["processor"]): f"{row['percent']:g} %" for row in rows}
    page = (ROOT / "docs/kernels.md").read_text(encoding="utf-8")
    own = ("neoverse-n1", "neoverse-v1", "neoverse-n2", "apple-m2")
    tiles = {"float32": "neon float", "int8 by SDOT": "neon_dot int8", "int8 by SMMLA": "neon_mm int8"}
    for name, tile in (tiles | {"bfloat16 by BFMMLA": "neon_mm bf16"}).items():
        cells = [share.get((f"{tile}, 6 rows", processor), "") for processor in own]
        assert " ".join(f"| {name} | {' | '.join(cells)} |".split()) in page
