"""The contract of every run that writes a file, whatever makes its rows and whatever the format.

The rows are those of the Runtime. A run that ends early keeps its finished rows and says how to go on; continued, it
gives the bytes of a whole run. The rows of another run are refused, and so is a second writer. Nothing half-written has
the name of the output.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError
from fastflow.files import EmbedConfig, Summary, embed, write_rows
from fastflow.files.embed import transform_file
from fastflow.files.read import inputs
from fastflow.files.write import StandardOutput
from fastflow.files.write.outputs import OutputFile
from fastflow.progress import Progress
from fastflow.transforms.vectors import PRECISIONS

from support.commands import assert_one_sentence, run
from support.matrices import make_vector_model, make_vectors
from support.outputs import block
from support.runs import SIZE, SUBJECTS, VECTORS, Desk, before_block, cases, desk_of, interrupted
from support.written import read_back

each_subject = pytest.mark.parametrize("desk", SUBJECTS, ids=[each.name for each in SUBJECTS], indirect=True)
each_format = pytest.mark.parametrize("desk", cases(SUBJECTS), indirect=True)


@pytest.fixture
def desk(request, tmp_path, monkeypatch, model, vector_model) -> Desk:
    subject, suffix = request.param if isinstance(request.param, tuple) else (request.param, request.param.suffixes[0])
    return desk_of(tmp_path, subject, vector_model if subject.name == "transform" else model, suffix, monkeypatch)


@each_format
def test_stopped_twice_it_gives_the_rows_of_the_runtime_and_the_bytes_of_a_whole_run(desk):
    whole = desk.whole()
    for finished, error in ((1, KeyboardInterrupt()), (3, of_a_full_disk())):
        said = interrupted(desk, 2 if finished == 3 else 1, "--resume", error=error).stderr
        assert (
            f"{finished * SIZE} finished rows are in {desk.partial}; the same command with --resume continues" in said
        )
        assert not desk.target.exists()
        with desk.partial.open("ab") as handle:
            handle.write(b"rows that were written and not recorded" * 10_000)
    assert (done := desk.run("--resume")).exit_code == 0, done.stderr
    assert desk.target.read_bytes() == whole
    assert desk.left() == [desk.target.name]
    vectors, columns = read_back(desk.target)
    assert np.array_equal(vectors, desk.subject.wanted(desk.model))
    assert columns.get("index", [*desk.subject.rows]) == [*desk.subject.rows]


def of_a_full_disk() -> FastflowError:
    error = FastflowError("late")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    return error


FAULTS = [  # a line that cannot be embedded, options of the run, those that continue it, and what it is about
    (b"a" * 70_000, (), "--errors skip", "is longer than"),
    (b"d\xe9j\xe0 vu", (), "--errors replace", "byte 2 is not UTF-8"),
    (b"dog " * 80, ("--truncate", "error"), "--truncate right", "longer than the model's"),
]


@pytest.mark.filterwarnings("ignore:.*are cut:UserWarning")
@pytest.mark.parametrize(("line", "options", "mends", "fault"), FAULTS, ids=[mends for _, _, mends, _ in FAULTS])
def test_a_row_that_is_refused_is_said_first_and_then_the_options_that_continue(
    tmp_path, monkeypatch, model, line, options, mends, fault
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(embed, "WINDOW", SIZE)
    monkeypatch.setattr(inputs, "LONGEST", 1000)
    (tmp_path / "in.txt").write_bytes(b"".join([*[b"a cat sits\n"] * 20, line + b"\n", *[b"the old dog\n"] * 20]))
    words = ["embed", "in.txt", "-m", model, "--quiet", "-o"]
    stopped = run(*words, "x.npy", *options)
    said, hint = stopped.stderr.splitlines()
    assert (stopped.exit_code, f"in.txt, line 21: {fault}" in said) == (1, True)
    again = f"finished rows are in x.npy.partial; the same command with {mends} --resume continues after them"
    assert hint.endswith(again + ", or with --errors skip to leave such rows out" * (mends == "--errors replace"))
    assert fault in run(*words, "x.npy", *options, "--resume").stderr
    warned = "fastflow: WARNING: 1 row is left out (x.npy.skipped has the reasons): in.txt, line 21\n"
    assert run(*words, "x.npy", "--resume", *mends.split()).stderr == warned * (mends == "--errors skip")
    assert run(*words, "whole.npy", *mends.split()).exit_code == 0
    assert (tmp_path / "x.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert run(*words, "x.npy", "--resume", *mends.split()).exit_code == 0
    assert run(*words, "x.npy", "--resume", *options).exit_code == 2, "its rows were made by an option that mends"


def test_a_fault_of_the_input_promises_no_resume(tmp_path, monkeypatch, model):
    monkeypatch.chdir(tmp_path)
    lines = ["n,text", *["1,a cat"] * 20]
    (tmp_path / "in.csv").write_text("\n".join([*lines, '2,"a dog']) + "\n")
    words = ["embed", "in.csv", "-m", model, "--quiet", "-o", "x.npy"]
    fault, hint = run(*words, "--errors", "skip").stderr.splitlines()
    assert "in.csv, line 22: unexpected end of data" in fault
    kept = "16 finished rows are in x.npy.partial, but a mended input is another one, whose run begins again"
    assert hint == f"fastflow: {kept}"
    (tmp_path / "in.csv").write_text("\n".join(lines) + "\n")
    said = "starts again and replaces 16 finished rows in x.npy.partial, of a run with another input"
    assert f"fastflow: {said}" in run(*words[:-2], "-o", "x.npy").stderr


OPTIONS = [*({"precision": precision} for precision in PRECISIONS), {"prompt": "the old "}]
OPTIONS += [{"precision": precision, "dim": 12, "normalize": True} for precision in ("float32", "int8", "ubinary")]


@pytest.mark.filterwarnings("ignore:.*are cut:UserWarning")
@each_subject
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(map(str, options.values())))
def test_the_options_shape_the_rows_as_those_of_the_runtime(desk, options):
    names = {"dim": "truncate_dim", "normalize": "normalize_embeddings"}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value)) if value is not True]
    words += ["--normalize"] * options.get("normalize", False)
    if desk.subject.name == "transform" and "prompt" in options:
        assert_one_sentence(desk.run(*words), 2, "No such option")
        return
    assert desk.run(*words).exit_code == 0
    vectors, _ = read_back(desk.target)
    want = desk.subject.wanted(desk.model, **{names.get(name, name): value for name, value in options.items()})
    assert vectors.dtype == want.dtype
    assert np.array_equal(vectors, want)


@each_subject
def test_a_run_that_begins_again_says_what_it_replaces_and_an_earlier_output_stays_meanwhile(desk):
    whole = desk.whole()
    said = interrupted(desk, 0).stderr
    assert f"no rows of {desk.target} were finished; the same command begins again" in said
    assert desk.left() == []
    desk.target.write_bytes(b"of an earlier run")
    for stop in (0, 2):
        interrupted(desk, stop, "--overwrite")
        assert desk.target.read_bytes() == b"of an earlier run"
    with pytest.MonkeyPatch.context() as patch:
        before_block(patch, lambda number: number == 2 and desk.partial.unlink())  # somebody removes it
        done = desk.run("--overwrite")
    assert f"starts again and replaces {2 * SIZE} finished rows in {desk.partial}; --resume would" in done.stderr
    assert f"{desk.target} is whole" not in done.stderr
    interrupted(desk, 2, "--overwrite")
    desk.target.write_bytes(b"of an earlier run")
    assert desk.run("--resume").exit_code == 0
    assert desk.target.read_bytes() == whole
    assert desk.left() == [desk.target.name]


def again(desk, *options):
    return run(*desk.subject.command(desk.model, desk.target), "--resume", *options)


@each_subject
@pytest.mark.parametrize("first", [(), ("--resume",)])
def test_what_a_run_has_finished_is_not_made_again_and_no_error(desk, first):
    assert desk.run(*first).exit_code == 0
    before = (desk.target.read_bytes(), desk.target.stat().st_mtime_ns)
    done = again(desk)
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.splitlines()[-1] == f"fastflow: {desk.target} is finished: nothing to do"
    assert desk.run("--resume").stderr == ""
    assert desk.left() == [desk.target.name]
    if desk.subject.name != "shard":
        said = f"x{desk.suffix} is finished, and from a run with another "
        differs = said + "normalized and another set of options (normalize): leave out"
        assert_one_sentence(again(desk, "--normalize"), 2, differs)
        os.utime(desk.subject.inputs[-1], (1, 1))
        assert_one_sentence(desk.run("--resume"), 2, said + "input")
    assert (desk.target.read_bytes(), desk.target.stat().st_mtime_ns) == before


def test_a_finished_output_that_is_another_file_or_has_a_damaged_record_is_an_error(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("a\nb\n")
    words = ["embed", "in.txt", "-m", model, "-o", "x.npy", "--quiet"]
    assert run(*words, "--resume").exit_code == 0
    record = tmp_path / "x.npy.run.json"
    for content, code, said in (("{}", 1, "x.npy.run.json is damaged"), ("[", 1, "x.npy.run.json is damaged")):
        kept = record.read_text()
        record.write_text(content)
        assert_one_sentence(run(*words, "--resume"), code, said)
        record.write_text(kept)
    os.utime("x.npy", (1, 1))
    assert_one_sentence(run(*words, "--resume"), 2, "x.npy is finished, and not as x.npy.run.json describes it")
    record.unlink()
    absent = "x.npy is finished, and there is no x.npy.run.json, which names its run: leave out --resume"
    assert_one_sentence(run(*words, "--resume"), 2, absent)
    assert_one_sentence(run(*words), 2, "x.npy exists, and no x.npy.run.json says that one run made it")
    assert run(*words, "--overwrite").exit_code == 0
    assert run(*words, "--resume").exit_code == 0


@each_subject
@pytest.mark.parametrize("other", ["input", "options", "model", "cut", "record"])
def test_the_rows_of_another_run_are_refused_and_kept(desk, bert, tmp_path, other):
    interrupted(desk, 2)
    options, message = [], r"is from a run with another .*; give the same again, or remove .*\.partial to start again"
    if other == "input":
        os.utime(desk.subject.inputs[-1], ns=(0, 0))
        message = message.replace("another .*", "another input( c.jsonl)?")
    elif other == "options":
        options, message = ["--normalize"], message.replace("another .*", r"another .*set of options \(normalize\)")
    elif other == "model":
        desk.model = bert if desk.model.parent.name != "vectors0" else make_vector_model(tmp_path / "m", "whiten")
        message = message.replace("another .*", "another model")
    elif other == "cut":
        os.truncate(desk.partial, desk.partial.stat().st_size // 2)
    else:
        desk.partial.with_name(desk.partial.name + ".json").write_text('{"rows": ')
        message = r"\.partial\.json is damaged; remove it and .*\.partial to start again"
    before = desk.partial.read_bytes()
    done = desk.run("--resume", *options)
    assert (done.exit_code, done.stdout) == (1, "")
    assert re.search(message, done.stderr), done.stderr
    assert desk.partial.read_bytes() == before
    assert not desk.target.exists()


@each_subject
def test_a_second_writer_is_refused_and_changes_nothing(desk, monkeypatch):
    refused = []

    def second(number: int) -> None:
        if number == 1:
            refused.extend(desk.run(*options) for options in ([], ["--resume"]))

    before_block(monkeypatch, second)
    assert desk.run().exit_code == 0
    for done in refused:
        assert_one_sentence(done, 1, f"{desk.partial} is being written by another run; wait for it, or choose anot")
    assert len(refused) == 2
    assert np.array_equal(read_back(desk.target)[0], desk.subject.wanted(desk.model))
    assert desk.left() == [desk.target.name]


@each_subject
@pytest.mark.parametrize("how", ["grown", "cut", "overwritten"])
def test_an_input_that_changes_while_it_is_read_gives_no_output(desk, how):
    def change(number: int) -> None:
        if number == 1:
            with open(desk.subject.inputs[-1], "r+b") as handle:
                handle.seek(0, os.SEEK_END if how == "grown" else os.SEEK_SET)
                handle.truncate(100) if how == "cut" else handle.write(b"\n")

    with pytest.MonkeyPatch.context() as patch:
        before_block(patch, change)
        done = desk.run()
    assert done.exit_code == 1
    assert f"{desk.subject.inputs[-1]} was changed while it was read; run the command again" in done.stderr
    assert not desk.target.exists()


@pytest.mark.parametrize("at", ["name", "remove"])
@each_format
def test_an_interruption_after_the_file_got_its_name_says_that_it_is_whole(desk, at):
    whole = desk.whole()

    def late(writer, *given):
        plain(writer, *given)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        plain = getattr(OutputFile, at)
        patch.setattr(OutputFile, at, late)
        done = desk.run()
    assert desk.target.read_bytes() == whole
    assert done.exit_code or at == "remove"  # the file of some formats is the partial one itself
    if done.exit_code:
        assert f"{desk.target} is whole\n" in done.stderr
        assert "finished rows" not in done.stderr
    assert desk.left() == [desk.target.name]


KILLED = f"""
import os, signal, sys
import fastflow.files.embed, fastflow.files.embed
from fastflow.files.write.partial import State
fastflow.files.embed.WINDOW = fastflow.files.embed.ROWS = {SIZE}
save = State.save
def save_and_die(state, rows, position):
    save(state, rows, position)
    if rows == 3 * {SIZE}:
        os.kill(os.getpid(), int(sys.argv[1]))
State.save = save_and_die
from fastflow.cli import main
main(sys.argv[2:])
"""


@pytest.mark.slow
@each_subject
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_process_that_a_signal_ends_is_continued(desk, run_python, sent):
    whole, words = desk.whole(), [*desk.subject.command(desk.model, desk.target), "--quiet"]
    stopped = run_python(KILLED, int(sent), *words)
    assert stopped.returncode == (-sent if sent == signal.SIGKILL else 128 + sent)
    assert (f"{3 * SIZE} finished rows are in" in stopped.stderr) == (sent != signal.SIGKILL)
    assert not desk.target.exists()
    assert (done := desk.run("--resume")).exit_code == 0, done.stderr
    assert desk.target.read_bytes() == whole
    assert desk.left() == [desk.target.name]


def test_standard_output_keeps_no_state_and_progress_follows(capsys):
    shown, seconds = io.StringIO(), iter(range(0, 1000, 20))
    progress = Progress("rows", 17, "rows", stream=shown, clock=lambda: float(next(seconds)))
    blocks = [block(VECTORS[:0]), *(block(VECTORS[at : min(at + 4, 17)], at) for at in range(0, 17, 4))]
    write_rows(iter(blocks), StandardOutput(), None, progress)
    assert len(capsys.readouterr().out.splitlines()) == 17
    assert "rows: 4 of 17 rows (24 %)" in shown.getvalue()
    assert "rows: 17 of 17 rows (100 %)" in shown.getvalue()


def test_transform_of_several_blocks_of_none_and_of_pooled_texts(
    vector_model, weighted_model, sentences, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    runtime, pooled = Runtime(vector_model), Runtime(weighted_model).pool(sentences)
    x, target = make_vectors(5000, seed=2), tmp_path / "out.npy"
    np.save("x.npy", x)
    done = run("transform", "x.npy", "-m", vector_model, "-o", target)
    assert (done.exit_code, done.stdout, len(x) > embed.ROWS) == (0, "", True)
    assert done.stderr.startswith("fastflow: model ")
    assert "fastflow: 5,000 vectors, " in done.stderr
    assert np.array_equal(np.load(target), runtime.transform(x))
    assert run("transform", "x.npy", "-m", vector_model, "-o", target, "--dtype", "float64", "-q").exit_code == 0
    exact = Runtime(vector_model, dtype="float64").transform(x).astype(np.float32)
    assert np.load(target).dtype == np.float32  # float64 is for computing only
    assert np.abs(np.load(target) - exact).max() <= 1e-6 * np.abs(exact).max()
    np.save("none.npy", x[:0])
    assert transform_file(runtime, "none.npy", tmp_path / "rows.npy", EmbedConfig(dim=7)) == Summary()
    assert np.load(tmp_path / "rows.npy").shape == (0, 7)
    np.save("pooled.npy", pooled)
    assert run("transform", "pooled.npy", "-m", weighted_model, "-o", target, "--quiet").exit_code == 0
    assert np.array_equal(np.load(target), Runtime(weighted_model).transform(pooled))


def test_vectors_that_the_model_cannot_take_are_one_line(vector_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("wide.npy", np.zeros((3, 999), np.float32))
    refused = run("transform", "wide.npy", "-m", vector_model, "-o", "out.npy")
    assert (refused.exit_code, len(refused.stderr.splitlines())) == (1, 1)
    far = make_vectors(5000)
    far[4500] = 3e38
    np.save("far.npy", far)
    runtime = Runtime(make_vector_model(tmp_path / "m", "whiten"))
    with pytest.raises(FastflowError, match=r"far\.npy, rows 4096 to 4999: transform: row 404 gives NaN or infinity"):
        transform_file(runtime, "far.npy", tmp_path / "out.npy", EmbedConfig())
    assert json.loads(run("info", vector_model).stdout)["takes"] == "vectors"
    assert "2 files match their sha256" in run("verify", vector_model).stdout
