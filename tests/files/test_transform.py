"""``fastflow transform``: rows, options, interrupted runs; what its process leaves when it is killed."""

from __future__ import annotations

import json
import signal

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from fastflow import Runtime
from fastflow.cli import main
from fastflow.errors import FastflowError, UsageError
from fastflow.files import transform as module
from fastflow.files.transform import Settings, Summary, transform_file
from fastflow.stages.vectors import PRECISIONS

from support.matrices import make_vector_model, make_vectors


@pytest.fixture(scope="module")
def x():
    return make_vectors(5000, seed=2)  # more than a block of ROWS


@pytest.fixture
def npy(tmp_path, x):
    np.save(tmp_path / "v.npy", x)
    return tmp_path / "v.npy"


@pytest.fixture
def target(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder / "out.npy"


@pytest.fixture(scope="module")
def runtime(vector_model):
    return Runtime(vector_model)


def load(path):
    if path.suffix == ".safetensors":
        return load_file(path)["embeddings"]
    loaded = np.load(path)
    return loaded if path.suffix == ".npy" else loaded["embeddings"]


def run(*arguments):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert "Traceback" not in result.stderr
    assert "please report it" not in result.stderr
    return result


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_a_mapped_file_of_several_blocks_is_what_transform_gives(vector_model, runtime, x, npy, target, suffix):
    target = target.with_suffix(suffix)
    result = run("transform", npy, "-m", vector_model, "-o", target)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "fastflow: 5,000 vectors, " in result.stderr
    assert len(x) > module.ROWS
    assert np.array_equal(load(target), runtime.transform(x))
    assert list(target.parent.iterdir()) == [target]
    if suffix == ".npz":
        with np.load(target) as found:
            assert np.array_equal(found["index"], np.arange(5000))
            assert json.loads(str(found["meta"]))["fingerprint"] == runtime.fingerprint


@pytest.mark.parametrize("form", ["float16", "float64", ">f4", "fortran"])
def test_every_form_of_a_matrix(runtime, x, tmp_path, target, form):
    exact = x.astype(np.float16).astype(np.float32)
    np.save(tmp_path / "v.npy", np.asfortranarray(exact) if form == "fortran" else exact.astype(form))
    transform_file(runtime, str(tmp_path / "v.npy"), target, Settings(), quiet=True)
    assert np.array_equal(np.load(target), runtime.transform(exact))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("dim", "normalize"), [(None, False), (12, True)])
def test_precisions_after_cutting_and_normalising(runtime, x, npy, target, precision, dim, normalize):
    transform_file(runtime, str(npy), target, Settings(precision, dim, normalize), quiet=True)
    wanted = runtime.transform(x, normalize_embeddings=normalize, precision=precision, truncate_dim=dim)
    assert np.load(target).dtype == wanted.dtype
    assert np.array_equal(np.load(target), wanted)


def test_float64_is_for_computing_only(vector_model, x, npy, target):
    assert run("transform", npy, "-m", vector_model, "-o", target, "--dtype", "float64", "--quiet").exit_code == 0
    exact = Runtime(vector_model, dtype="float64").transform(x).astype(np.float32)
    assert np.load(target).dtype == np.float32
    assert np.abs(np.load(target) - exact).max() <= 1e-6 * np.abs(exact).max()


def test_pooled_vectors_of_a_model_with_an_encoder(weighted_model, sentences, tmp_path, target):
    runtime = Runtime(weighted_model)
    np.save(tmp_path / "pooled.npy", runtime.pool(sentences))
    assert run("transform", tmp_path / "pooled.npy", "-m", weighted_model, "-o", target, "--quiet").exit_code == 0
    assert np.array_equal(np.load(target), runtime.transform(runtime.pool(sentences)))


def test_no_rows_give_a_file_of_the_right_width(runtime, tmp_path, target, x):
    np.save(tmp_path / "none.npy", x[:0])
    assert transform_file(runtime, str(tmp_path / "none.npy"), target, Settings(dim=7), quiet=True) == Summary()
    assert np.load(target).shape == (0, 7)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("{v}", "-o", "{o}", "-m", "{other}"), 1, "v.npy holds vectors of 32 numbers, and the model "),
        (("{v}", "-o", "{o}"), 1, "v.npy holds vectors of 32 numbers, and the model default takes 256"),
        (("{v}", "-m", "{m}"), 2, "Missing option '-o'"),
        (("{v}", "-m", "{m}", "-o", "{v}"), 2, "v.npy is the input"),
        (("{v}", "-m", "{m}", "-o", "out.jsonl"), 2, "the lines of a .jsonl file hold texts"),
        (("{v}", "-m", "{m}", "-o", "out.db"), 2, "the rows of a .db file hold texts, and these are vectors"),
        (("{v}", "-m", "{m}", "-o", "{o}", "--dim", "33"), 2, "truncate_dim (--dim) must be 1 to 32"),
        (("-", "-m", "{m}", "-o", "{o}"), 2, "vectors come as a .npy file"),
        (("absent.npy", "-m", "{m}", "-o", "{o}"), 1, "absent.npy cannot be opened"),
        (("{nan}", "-m", "{m}", "-o", "{o}"), 1, "nan.npy, row 77: holds NaN or infinity"),
        (("{v}", "-m", "{m}", "-o", "{o}", "--dtype", "int8"), 2, "Invalid value for '--dtype': 'int8' is not one of"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_leaves_nothing(
    vector_model, npy, x, tmp_path, target, arguments, code, message
):
    spoilt = x[:100].copy()
    spoilt[77, 3] = np.inf
    np.save(tmp_path / "nan.npy", spoilt)
    other = make_vector_model(tmp_path / "other", "whiten:4", dim=16) if "{other}" in arguments else None
    names = {"v": npy, "o": target, "m": vector_model, "other": other, "nan": tmp_path / "nan.npy"}
    result = run("transform", *(argument.format(**names) for argument in arguments))
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr.splitlines()[-1]
    assert list(target.parent.iterdir()) == []


def interrupting(model, after, error=KeyboardInterrupt):
    """A Runtime that raises ``error`` when it is given the block after ``after``; the first call is of no rows."""
    calls = iter(range(after + 1))

    class Interrupting(Runtime):
        def transform(self, array, **options):
            if next(calls, None) is None:
                raise error("late")
            return super().transform(array, **options)

    return Interrupting(model)


@pytest.mark.parametrize("late", [KeyboardInterrupt, FastflowError])
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_finished_rows_outlive_an_interruption_and_are_continued(
    vector_model, runtime, x, npy, target, monkeypatch, capsys, suffix, late
):
    monkeypatch.setattr(module, "ROWS", 512)
    target = target.with_suffix(suffix)
    transform_file(runtime, str(npy), target, Settings(), quiet=True)
    whole = target.read_bytes()
    target.unlink()
    with pytest.raises(late):
        transform_file(interrupting(vector_model, 3, late), str(npy), target, Settings(), quiet=True)
    assert "1,536 finished rows are in " in (said := capsys.readouterr().err)
    assert "the same command with --resume continues after them" in said
    assert not target.exists()
    done = transform_file(runtime, str(npy), target, Settings(), resume=True, quiet=True)
    assert done == Summary(vectors=5000 - 1536, resumed=1536)
    assert target.read_bytes() == whole
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("other", ["input", "option", "model"])
def test_resume_refuses_what_is_not_the_same_run(vector_model, runtime, x, npy, tmp_path, target, monkeypatch, other):
    monkeypatch.setattr(module, "ROWS", 512)
    with pytest.raises(KeyboardInterrupt):
        transform_file(interrupting(vector_model, 3), str(npy), target, Settings(), quiet=True)
    before = target.with_name("out.npy.partial").read_bytes()
    settings = Settings(normalize=other == "option")
    if other == "input":
        np.save(npy, x[:4000])
    if other == "model":
        runtime = Runtime(make_vector_model(tmp_path / "m", "whiten"))
    with pytest.raises(FastflowError, match=r"from a run with another .*; give the same again"):
        transform_file(runtime, str(npy), target, settings, resume=True, quiet=True)
    assert target.with_name("out.npy.partial").read_bytes() == before


def test_without_resume_a_run_begins_again_and_says_so(vector_model, runtime, x, npy, target, monkeypatch, capsys):
    monkeypatch.setattr(module, "ROWS", 512)
    with pytest.raises(KeyboardInterrupt):
        transform_file(interrupting(vector_model, 2), str(npy), target, Settings(), quiet=True)
    transform_file(runtime, str(npy), target, Settings(), quiet=True)
    assert "starts again and replaces 1,024 finished rows" in capsys.readouterr().err
    assert np.array_equal(np.load(target), runtime.transform(x))


def test_an_interruption_before_the_first_row_leaves_nothing(vector_model, npy, target):
    with pytest.raises(KeyboardInterrupt):
        transform_file(interrupting(vector_model, 0), str(npy), target, Settings(), quiet=True)
    assert list(target.parent.iterdir()) == []


def test_an_earlier_output_stays_until_the_new_one_is_whole(vector_model, npy, x, target):
    target.write_bytes(b"of an earlier run")
    spoilt = x.copy()
    spoilt[-1] = np.nan
    np.save(npy, spoilt)
    result = run("transform", npy, "-m", vector_model, "-o", target, "--quiet")
    assert result.exit_code == 1
    assert "4,096 finished rows are in" in result.stderr
    assert "v.npy, row 4999: holds NaN" in result.stderr
    assert target.read_bytes() == b"of an earlier run"


def test_a_row_that_overflows_is_named_by_its_range(tmp_path, target, x):
    runtime = Runtime(make_vector_model(tmp_path / "m", "whiten"))
    far = x.copy()
    far[4500] = 3e38
    np.save(tmp_path / "far.npy", far)
    with pytest.raises(FastflowError, match=r"far\.npy, rows 4096 to 4999: transform: row 404 gives NaN or infinity"):
        transform_file(runtime, str(tmp_path / "far.npy"), target, Settings(), quiet=True)


def test_a_file_that_changes_during_the_run_gives_no_output(vector_model, npy, target, monkeypatch):
    monkeypatch.setattr(module, "ROWS", 512)

    class Meddling(Runtime):
        def transform(self, array, **options):
            if len(array):
                with open(npy, "ab") as file:
                    file.write(b"more")
            return super().transform(array, **options)

    with pytest.raises(FastflowError, match="was changed while it was read"):
        transform_file(Meddling(vector_model), str(npy), target, Settings(), quiet=True)
    assert not target.exists()


def test_a_second_run_with_the_same_output_is_refused(vector_model, runtime, npy, target):
    seen = []

    class Slow(Runtime):
        def transform(self, array, **options):
            if not seen:
                seen.append(True)
                with pytest.raises(FastflowError, match=r"out\.npy\.partial is being written by another run"):
                    transform_file(runtime, str(npy), target, Settings(), quiet=True)
            return super().transform(array, **options)

    transform_file(Slow(vector_model), str(npy), target, Settings(), quiet=True)
    assert seen
    assert np.load(target).shape == (5000, 32)


KILLED = """
import os, signal, sys
import fastflow.files.transform as transform
from fastflow.files.write.partial import State
transform.ROWS = 512
save = State.save
def save_and_die(state, rows, position):
    save(state, rows, position)
    if rows == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
State.save = save_and_die
from fastflow.cli import main
main(sys.argv[2:])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [("SIGKILL", -signal.SIGKILL), ("SIGINT", 130), ("SIGTERM", 143)])
def test_a_process_that_is_stopped_leaves_no_wrong_output_and_resumes(
    vector_model, runtime, x, npy, target, run_python, number, code
):
    arguments = ("transform", npy, "-m", vector_model, "-o", target, "--quiet")
    stopped = run_python(KILLED.replace("SIGKILL", number), 2048, *arguments)
    assert stopped.returncode == code
    assert not target.exists()
    assert ("2,048 finished rows are in" in stopped.stderr) == (number != "SIGKILL")
    resumed = run_python(KILLED, 0, *arguments, "--resume")
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert np.array_equal(np.load(target), runtime.transform(x))
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("embed", "{t}"), ("embed", "{t}", "-o", "{o}"), ("embed", "{t}", "-o", "{o}", "--resume"),
        ("embed", "{t}", "--dedupe"), ("eval", "{p}"), ("bench", "--suite", "flow", "--quick"),
    ],
)  # fmt: skip
def test_commands_that_take_texts_say_what_to_use(vector_model, tmp_path, target, command):
    (tmp_path / "t.txt").write_text("the dog\n")
    (tmp_path / "p.tsv").write_text("subset\tscore\tsentence1\tsentence2\na\t1\tthe dog\ta cat\na\t2\tit\tshe\n")
    names = {"t": tmp_path / "t.txt", "o": target, "p": tmp_path / "p.tsv"}
    result = run(*(argument.format(**names) for argument in command), "-m", vector_model)
    assert (result.exit_code, result.stdout) == (2, "")
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"fastflow: {vector_model} calibrates vectors and has no encoder: give vectors to transform")
    assert list(target.parent.iterdir()) == []


def test_report_says_it_too(vector_model, tmp_path):
    pytest.importorskip("matplotlib")
    result = run("report", vector_model, "--html", tmp_path / "r.html")
    assert result.exit_code == 2
    assert "calibrates vectors and has no encoder" in result.stderr.splitlines()[-1]


def test_info_and_verify_describe_it(vector_model):
    info = run("info", vector_model)
    assert (info.exit_code, json.loads(info.stdout)["takes"]) == (0, "vectors")
    checked = run("verify", vector_model)
    assert checked.exit_code == 0
    assert "2 files match their sha256" in checked.stdout


def test_settings_of_no_run(runtime, npy, target):
    with pytest.raises(UsageError, match="unknown precision"):
        transform_file(runtime, str(npy), target, Settings(precision="int4"), quiet=True)
    assert list(target.parent.iterdir()) == []
