"""The kept results have their rows and commands, and the folders of the bench import one another in one direction."""

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from fastflow import Runtime
from fastflow.bench.every import RANGES, RUNS
from fastflow.bench.research import across_languages, arm64, default_model, languages, quality, study, tasks
from fastflow.evaluation.evaluate import HEADER, SEVEN, measure, read_task
from fastflow.model.locate import DEFAULT
from fastflow.model.tokenizer.languages import load_languages

from support.arrows import GRAPH
from support.places import ROOT
from support.sentence_dirs import NORMALIZE, make_directory, pooling
from support.tasks import bitext, write

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


ALLOWED = {
    "measure": {"measure"},
    "peers": {"peers", "measure"},
    "report": {"report"},
    "suites": {"suites", "peers", "measure", "report"},
}


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_folder_imports_only_from_those_below_it(folder):
    here = {name: arrows for name, arrows in GRAPH.items() if name.startswith(f"fastflow.bench.{folder}.")}
    assert len(here) > 2
    for name, arrows in here.items():
        reached = {each.split(".")[2] for each in arrows if each.startswith("fastflow.bench.")}
        assert reached <= ALLOWED[folder], name


def test_figures_of_a_study_read_back_at_six_digits_and_its_page_is_of_them(tmp_path):
    rows = [{"dim": 8, "ms": 1.23456789, "note": None}, {"b": [2, {"rows": [{"a": 1.0}]}]}]
    study.write(tmp_path / "out", {"command": "c", "rows": rows}, lambda found: f"{found['rows'][0]}")
    kept = study.read(tmp_path / "out.json")
    assert kept["rows"] == [{"dim": 8, "ms": 1.23457, "note": None}, rows[1]]
    assert "processor" in kept["machine"]
    assert (tmp_path / "out.md").read_text() == str(kept["rows"][0])
    assert study.make_table(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"


def test_the_default_stands_in_the_quality_table():
    runs = [
        {"corpus": c, "candidate": k, "seed": seed, "set": name, "scores": [start + i, start + 10 + i]}
        for c in ("own texts", "snli", "news")
        for k, seed, start in (("weights", 0, 40), ("all texts", 0, 50), ("all texts", 1, 52))
        for i, name in enumerate(SEVEN)
    ]
    rows = quality.make_weighted_rows({"seven": runs})
    names = ("token weights alone", "the default of fastflow-train, but fitted to all texts")
    assert [row["name"] for row in rows] == [f"{name}, {place}" for place in ("target", "corpus") for name in names]
    assert [len(row["runs"]) for row in rows] == [1, 2, 1, 2]
    assert quality.summarise(rows[0], "mean", "all") == "43.0"
    assert quality.summarise(rows[1], "mean", "all") == "54.0±1.4"
    assert quality.summarise(rows[3], SEVEN[6], "wmean") == "67.0±1.4"


PAIRS = "split\tlabel\tsentence1\tsentence2\na\t1\tA dog runs.\tThe dog runs.\na\t0\tA dog runs.\tShares fell.\n"


def test_the_pages_are_of_the_kept_figures():
    for page in (tasks, quality):
        path = RESULTS / page.__name__.rpartition(".")[2]
        assert path.with_suffix(".md").read_text(encoding="utf-8") == page.make_page(
            study.read(path.with_suffix(".json"))
        )
    kept = study.read(RESULTS / "tasks.json")
    assert {row["set"] for row in kept["rows"]} == {Path(name).stem for name in tasks.FILES}


def test_a_row_has_the_figure_of_each_model(tmp_path, monkeypatch):
    (tmp_path / "some.tsv").write_text(PAIRS)
    monkeypatch.setattr(tasks, "FILES", ("some.tsv",))
    (row,) = tasks.measure_models({"raw": None, "package": None}, tmp_path)
    task = read_task(tmp_path / "some.tsv")
    with Runtime() as runtime:
        assert row == {"set": "some", "measure": "ap"} | dict.fromkeys(
            ("raw", "package"), pytest.approx(measure(task, runtime.encode(task.texts))["ap"])
        )
    assert "| some, ap | 100.0 | 100.0 |  |  |  |" in tasks.make_page({"command": "c", "rows": [row]})


def test_languages_are_measured_with_the_prompt_of_queries(tmp_path, bert):
    data, out = tmp_path / "data", tmp_path / "out.json"
    for i, name in enumerate(across_languages.STS.values()):
        scores = ("1", "2", "3")[:: -1 if i else 1]  # of the same pairs, in English the other way around
        write(data / name, HEADER, *(f"x\t{score}\tthe dog\t{it}" for score, it in zip(scores, "abc", strict=True)))
    names = ("en", "gl", *across_languages.SEEN)
    lines = [f"{word} dog" for word in ("the", "a", "red", "old")]
    bitext(data / "langs" / "pud", **dict.fromkeys(names, lines))
    bitext(data / "langs" / "pud", gl=lines[::-1], ko=[lines[0], *lines[:0:-1]])
    model = make_directory(
        tmp_path / "asks", bert, [pooling("mean"), NORMALIZE], prompts={"query": "old ", "passage": "a"}
    )
    given = ("--data", data, "--model", "static", "--model", model, "--out", out)
    done = CliRunner().invoke(across_languages.main, [str(each) for each in given])
    assert done.exit_code == 0, done.output
    static, asked = (found := study.read(out))["rows"]
    assert found["command"].endswith("--data .../data --model static --model .../asks --out out.json")
    assert static["sts"]["en"] == -static["sts"]["zh"] == -static["sts"]["de"]
    means = static["bitext"].pop("mean of 13"), static["bitext"].pop("mean")
    assert means == pytest.approx((1250 / 13, 1250 / 14), abs=0.001)
    assert list(static["bitext"]) == sorted(names[1:])
    assert static["bitext"] == dict.fromkeys(names[1:], 100) | {"gl": 0, "ko": 50}
    assert (static["model"], static["prompt"], asked["model"], asked["prompt"]) == ("static", "", "asks", "old ")
    task = read_task(data / across_languages.STS["en"])
    with Runtime(model) as runtime:
        assert asked["sts"]["en"] == measure(task, runtime.encode(task.texts, prompt="old "))["all"]
        assert asked["sts"]["en"] != measure(task, runtime.encode(task.texts))["all"]
    assert [line.split(" | ")[0] for line in done.output.splitlines() if "|" in line][-1] == "| asks"
    alone = CliRunner().invoke(across_languages.main, [str(each) for each in (*given, "--work", tmp_path)])
    assert (alone.exit_code, "--teacher and --work go together" in alone.output) == (2, True)


@pytest.mark.slow
@pytest.mark.data
def test_the_table_across_languages(shared_data):
    """Spearman of STSb and accuracy with English of the model ``static``, measured with independent code."""
    row = across_languages.measure_model("static", across_languages.read_data(shared_data))
    assert row["sts"] == pytest.approx({"en": 77.5, "de": 58.9, "ru": 53.1, "zh": 31.9}, abs=0.06)
    assert row["bitext"].items() >= {"de": 27.2, "ru": 1.3, "zh": 7.7}.items()


def test_words_are_counted_as_they_are_written_inside_a_sentence():
    texts = ["Der Hund und der Mann.", "Hund, der bellt. Und?"]
    assert languages.count_words(texts)[:3] == ["der", "Hund", "und"]


def test_the_package_has_the_words_of_each_language_that_was_measured():
    rows = {row["texts"]: row for row in study.read(RESULTS / "noticed.json")["rows"]}
    assert list(load_languages()) == list(languages.NAMES.values())
    assert {len(words) for words in load_languages().values()} == {languages.COUNT}
    foreign = [*languages.NAMES.values(), *languages.LETTERS.values()][1:]
    assert {rows[name][f"100 texts, {what}"] for name in foreign for what in ("warned", "named")} == {1}
    assert rows["English"]["100 texts, warned"] == 0


def test_mantissas_are_rounded_to_seven_bits_halves_to_even():
    numbers = np.array([[1 + 2**-7, 1 + 2**-8, 1 + 3 * 2**-8, -(2 - 2**-10), 0.0, 2**-24]], np.float16)
    assert default_model.round_mantissas(numbers).tolist() == [[1 + 2**-7, 1.0, 1 + 2**-6, -2.0, 0.0, 2**-24]]


def test_the_default_model_is_stored_as_its_script_rounds_it(tmp_path):
    default_model.copy_rounded(DEFAULT / "0_Transformer", tmp_path / "copy")
    names = [path.name for path in (DEFAULT / "0_Transformer").iterdir()]
    for name in names:
        assert (tmp_path / "copy" / name).read_bytes() == (DEFAULT / "0_Transformer" / name).read_bytes()
    matrix = load_file(DEFAULT / "calibration.safetensors")["1.matrix"]
    assert np.array_equal(matrix, matrix.astype(np.float32))


ASSEMBLY = """
_tile_2_float: ; @tile_2_float
	.cfi_startproc
	fmla v0.4s, v1.4s, v2.s[0]
	.cfi_endproc
tile_12_float:
	.cfi_startproc
.L1:
	add x3, x3, 1
.L2:
	ldr q1, [x0], 16  // sixteen bytes
	fmla v0.4s, v1.4s, v2.s[0]
	cbz x9, .L5
.L5:
	fmla v3.4s, v1.4s, v2.s[1]
	b.ne .L2
	fmla v4.4s, v1.4s, v2.s[1]
	fmla v5.4s, v1.4s, v2.s[1]
.L3:
	fmla v3.4s, v1.4s, v2.s[1]
	cbnz x1, .L3
	cbz x2, .L1
	b.eq .L4
	fmla v3.4s, v1.4s, v2.s[1]
.L4:
	ret
	.cfi_endproc
tile_3_float:
	.cfi_endproc
tile_1_int8:
	ret
	.cfi_endproc
"""


def test_the_inner_loop_of_the_largest_tile_is_found():
    tiles = arm64.find_tiles(arm64.strip_comments(ASSEMBLY))
    assert [*tiles] == ["float, 12 rows", "int8, 1 rows"]
    loop = ["ldr q1, [x0], 16", "fmla v0.4s, v1.4s, v2.s[0]", "cbz x9, .L5", "fmla v3.4s, v1.4s, v2.s[1]"]
    assert arm64.find_loop(tiles["float, 12 rows"]) == [*loop, "b.ne .L2"]
