"""A run of embed below its command line: rows, windows, options, log-densities and warnings."""

from __future__ import annotations

import io
import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import FastflowError, UsageError
from fastflow.files import embed as module
from fastflow.files import windows as windows_module
from fastflow.files.embed import embed_file
from fastflow.files.encoding import Encoder, drop_float64, open_store
from fastflow.files.read.records import Layout
from fastflow.files.read.sources import Sources
from fastflow.files.run import Run, Settings, Summary, parse_shard
from fastflow.files.windows import FEWEST_JUDGED as FEWEST
from fastflow.files.windows import Pace, Unlike, windows
from fastflow.model.manifest import Likelihood

from support.builders import make_model, make_sentences
from support.commands import run
from support.gpu_standin import use_standin
from support.runs import before_block
from support.static_dirs import model2vec_dir
from support.triton_processes import NEEDS


@pytest.fixture(scope="module")
def runtime(model):
    return Runtime(model)


@pytest.fixture
def target(tmp_path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "out.npy"


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def embed(runtime: Runtime, source: object, target: Path, resume: bool = False, **settings: object) -> Summary:
    return embed_file(runtime, str(source), target, Settings(**settings), Run(resume, quiet=True))


def test_empty_lines_are_texts_and_counted(runtime, tmp_path, target):
    source = write(tmp_path / "in.txt", ["the dog", "", "  ", "a cat"])
    assert embed(runtime, source, target) == Summary(texts=4, empty=2)
    assert np.array_equal(np.load(target), runtime.encode(["the dog", "", "  ", "a cat"]))


def test_precision_says_what_is_stored_even_of_float64_arithmetic(model, corpus, target, sentences):
    exact = Runtime(model, dtype="float64")
    embed(exact, corpus, target)
    assert np.load(target).dtype == np.float32
    assert np.array_equal(np.load(target), exact.encode(sentences).astype(np.float32))


def test_no_lines_give_a_file_of_the_right_width(runtime, tmp_path, target):
    embed(runtime, write(tmp_path / "in.txt", []), target, precision="float16", dim=6)
    assert (np.load(target).shape, np.load(target).dtype) == ((0, 6), np.float16)


def test_truncate_error_names_the_line(model, tmp_path, target):
    runtime = Runtime(model)
    long = " ".join(["dog"] * 63)  # 65 tokens, if the model takes 64
    source = write(tmp_path / "in.txt", ["a cat", long.removeprefix("dog "), long])
    with pytest.raises(FastflowError, match=r"in\.txt, line 3: longer than the model's 64 tokens"):
        embed(runtime, source, target, truncate="error")
    with pytest.raises(FastflowError, match="line 2: longer"):  # the prompt counts
        embed(runtime, source, target, truncate="error", prompt="the ")
    assert list(target.parent.iterdir()) == []
    with pytest.warns(UserWarning, match="longer than 64 tokens are cut"):
        assert embed(runtime, source, target).cut == 1


def test_long_texts_are_embedded_in_windows_of_fewer(runtime, corpus, target, sentences, monkeypatch):
    monkeypatch.setattr("fastflow.options.CHARACTERS", 200)
    embed(runtime, corpus, target)
    assert np.array_equal(np.load(target), runtime.encode(sentences))


@pytest.fixture
def during(monkeypatch):
    """``during(act)``: call ``act`` before the second block of 16 rows, and end the run at the fourth if asked."""
    monkeypatch.setattr(module, "WINDOW", 16)

    def set_up(act, stop=False):
        def seen(number: int) -> None:
            if number == 1:
                act()
            if number == 3 and stop:
                raise KeyboardInterrupt

        before_block(monkeypatch, seen)

    return set_up


def test_a_resumed_run_may_have_another_size_of_batch(runtime, corpus, target, sentences, during):
    during(lambda: None, stop=True)
    with pytest.raises(KeyboardInterrupt):
        embed(runtime, corpus, target, batch_tokens=512)
    assert embed(runtime, corpus, target, resume=True, batch_tokens=64).resumed == 48
    assert np.array_equal(np.load(target), runtime.encode(sentences))


def test_an_input_that_is_replaced_is_not_joined_with_its_successor(runtime, tmp_path, target, sentences, during):
    """The open file is what was read: the run's rows belong to it, whatever its name names now."""
    source, other = tmp_path / "in.txt", tmp_path / "other.txt"
    write(source, sentences)
    write(other, [text.upper() for text in sentences])
    during(lambda: other.replace(source), stop=True)
    with pytest.raises(KeyboardInterrupt):
        embed(runtime, source, target)
    with pytest.raises(FastflowError, match="from a run with another input; give"):
        embed(runtime, source, target, resume=True)


@pytest.mark.parametrize("how", ["replaced", "moved", "deleted"])
def test_an_input_that_loses_its_name_while_open_is_read_to_its_end(runtime, tmp_path, target, sentences, during, how):
    source, other = tmp_path / "in.txt", tmp_path / "other.txt"
    write(source, sentences)
    write(other, ["the dog"])
    act = {"replaced": lambda: other.replace(source), "moved": lambda: source.rename(other), "deleted": source.unlink}
    during(act[how])
    embed(runtime, source, target)
    assert np.array_equal(np.load(target), runtime.encode(sentences))


def test_embedding_a_file_shows_its_count_from_the_start(runtime, corpus, target, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setattr("fastflow.progress.EVERY", 0.0)
    monkeypatch.setattr(module, "WINDOW", 64)
    embed_file(runtime, str(corpus), target, Settings())
    assert shown.getvalue().startswith("\rembed: 0 of 256 texts (0 %), 0/s\r")
    assert "embed: 256 of 256 texts (100 %), " in shown.getvalue()


def test_an_interruption_within_the_usual_window_keeps_what_is_done(model, tmp_path, monkeypatch):
    lines = make_sentences(300, 3)
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n")
    runtime, out = Runtime(model, "cpu", backend="cpu"), tmp_path / "o.npy"
    embed, calls = runtime.session._embed, []

    def interrupted(*batch):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(embed(*batch))
        return calls[-1]

    monkeypatch.setattr(runtime.session, "_embed", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        embed_file(runtime, str(tmp_path / "in.txt"), out, Settings())
    assert "48 finished rows" in stopped.value.__notes__[0]  # 16 and 32
    monkeypatch.undo()
    assert embed_file(runtime, str(tmp_path / "in.txt"), out, Settings(), Run(True)).resumed == 48
    assert np.array_equal(np.load(out), runtime.encode(lines))


@pytest.fixture
def desk(tmp_path, monkeypatch, sentences):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    rows = [{"id": i, "text": text, "url": f"u{i}", "n": [i]} for i, text in enumerate(sentences[:60])]
    for name, part in {"b.jsonl": rows[:20], "a.jsonl": rows[20:50], "c.jsonl": rows[50:]}.items():
        (tmp_path / "data" / name).write_text("".join(json.dumps(row) + "\n" for row in part))
    return tmp_path


def test_files_and_patterns_in_the_order_given(model, desk, sentences):
    result = run("embed", "data/b.jsonl", "data/[ac].jsonl", "-m", model, "-o", "out.npy", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert np.array_equal(np.load("out.npy"), Runtime(model).encode(sentences[:60]))
    run("embed", "data/*.jsonl", "-m", model, "-o", "out.npy", "--quiet")
    sorted_by_name = sentences[20:50] + sentences[:20] + sentences[50:60]
    assert np.array_equal(np.load("out.npy"), Runtime(model).encode(sorted_by_name))


def test_fields_are_carried_along(model, desk):
    result = run("embed", "data/b.jsonl", "-m", model, "--keep", "url,n", "--keep", "id", "--quiet")
    first = json.loads(result.stdout.splitlines()[0])
    assert list(first) == ["index", "text", "url", "n", "id", "embedding"]
    assert (first["url"], first["n"], first["id"]) == ("u0", [0], 0)
    (desk / "x.csv").write_text("text,a b\nhello,1\n")
    line = run("embed", "x.csv", "-m", model, "--keep", "a b", "--quiet").stdout
    assert json.loads(line)["a b"] == "1"


def test_a_field_that_later_lines_lack_is_null(model, desk):
    (desk / "x.jsonl").write_text('{"text": "a", "url": "u"}\n{"text": "b"}\n')
    found = run("embed", "x.jsonl", "-m", model, "--keep", "url", "--quiet").stdout.splitlines()
    assert [json.loads(line)["url"] for line in found] == ["u", None]


@pytest.mark.parametrize("option", ["-0", "--null"])
def test_texts_that_end_with_nul_hold_lines(model, option):
    result = run("embed", "-", "-m", model, option, "--quiet", stdin=b"two\nlines\r\n\0\0last\r")
    texts = [json.loads(line)["text"] for line in result.stdout.splitlines()]
    assert texts == ["two\nlines\r\n", "", "last\r"]


@pytest.mark.slow
def test_fit_reads_all_files_twice(model, desk):
    result = run("embed", "data/b.jsonl", "data/a.jsonl", "-m", model, "--fit", "-o", "out.npy")
    assert result.exit_code == 0, result.stderr
    assert "50 distinct texts of b.jsonl and 1 more input" in result.stderr
    assert np.load("out.npy").shape[0] == 50


def knowing(model, log_prob: float, **options) -> Runtime:
    """A Runtime whose model records that one text in a hundred of its corpus is below ``log_prob``."""
    rt = Runtime(model, **options)
    rt.session.model = replace(rt.session.model, likelihood=Likelihood(log_prob, 0.01))
    return rt


SAID = "of these texts are unlike the corpus the model was fitted on; consider --fit"


@pytest.mark.slow
def test_embed_says_once_that_texts_are_unlike(model, runtime, tmp_path, target, monkeypatch, capsys):
    monkeypatch.setattr(module, "WINDOW", 50)
    lines = make_sentences(256, 5)
    (tmp_path / "in.txt").write_text("\n\n".join(lines))
    log_probs, source = runtime.log_prob(lines), str(tmp_path / "in.txt")
    half, plain = float(np.median(log_probs)), target.with_suffix(".npy")
    embed_file(knowing(model, half), source, plain, Settings())
    assert capsys.readouterr().err.count(f"fastflow: 50% {SAID}") == 1
    assert np.array_equal(np.load(plain)[::2], runtime.encode(lines))
    for options in ({"quiet": True}, {"judge": False}):
        embed_file(knowing(model, half), source, plain, Settings(), Run(**options))
        assert SAID not in capsys.readouterr().err
    embed_file(knowing(model, float(log_probs.min())), source, plain, Settings())
    embed_file(runtime, source, plain, Settings())
    assert SAID not in capsys.readouterr().err
    embed_file(knowing(model, half), source, target.with_suffix(".jsonl"), Settings(log_prob=True))
    assert capsys.readouterr().err.count(f"50% {SAID}") == 1
    embed_file(knowing(model, half), source, target.with_suffix(".jsonl"), Settings(Layout("txt")))
    assert "log_prob" not in target.with_suffix(".jsonl").read_text()


@pytest.mark.slow
@NEEDS
def test_where_a_device_overlaps_only_the_first_window_is_judged(model, runtime, tmp_path, target, monkeypatch, capsys):
    use_standin(monkeypatch)
    monkeypatch.setattr(module, "WINDOW", 200)
    lines = make_sentences(256, 5)
    (tmp_path / "in.txt").write_text("\n".join(lines))
    share = np.mean(runtime.log_prob(lines[:200]) < (half := float(np.median(runtime.log_prob(lines)))))
    opened, plain = knowing(model, half, backend="triton"), target.with_suffix(".npy")
    embed_file(opened, str(tmp_path / "in.txt"), plain, Settings())
    assert f"fastflow: {share:.0%} {SAID}" in capsys.readouterr().err
    expected = Runtime(model, backend="triton").encode(lines)  # the stand-in's products round by the rows beside them
    np.testing.assert_allclose(np.load(plain), expected, rtol=1e-5, atol=1e-6)


TEXTS = ["the dog", "a cat", "the dog", "the " * 600]


@pytest.fixture(scope="module", params=["layers", "table"])
def either(request, tmp_path_factory, model, sentences):
    """A model with layers, and one whose texts go from letters to vectors in one call; both have a density."""
    if request.param == "layers":
        return Runtime(model, "cpu")
    folder = tmp_path_factory.mktemp("encoding")
    table = model2vec_dir(folder / "t", width=32)
    return Runtime(make_model(folder / "m", table, sentences, pooling="words", max_length=None), "cpu")


@pytest.mark.filterwarnings("ignore:texts longer than")
@pytest.mark.parametrize("options", [{}, {"dim": 8, "normalize": True}], ids=["plain", "cut"])
@pytest.mark.parametrize("dedupe", [False, True])
@pytest.mark.parametrize("scored", [False, True])
def test_a_window_gives_the_vectors_of_its_texts(either, tmp_path, scored, dedupe, options):
    settings = Settings(dedupe=dedupe, **options)
    with open_store(either, settings, None, tmp_path / "out.npy") as store:
        encoder = Encoder(either, settings, scored, 2, store)
        made = encoder(TEXTS)
        assert (encoder.reused, encoder.cut) == (dedupe, 1)
        assert encoder([]).vectors.shape == (0, options.get("dim", either.dim))
    want = either.encode(TEXTS, None, "dim" in options, truncate_dim=options.get("dim"))
    assert np.array_equal(made.vectors, want)
    assert np.array_equal(made.log_probs, either.log_prob(TEXTS)) if scored else made.log_probs is None


@pytest.mark.parametrize("either", ["table"], indirect=True)
@pytest.mark.parametrize("scored", [False, True])
def test_texts_of_a_table_take_one_call_a_window(either, monkeypatch, scored):
    whole, calls = either.session._fused, []
    monkeypatch.setattr(either.session, "_fused", lambda *given: calls.append(given[0]) or whole(*given))
    Encoder(either, Settings(prompt="so "), scored, 2)(TEXTS[:3])
    assert calls == [["so the dog", "so a cat"], ["so the dog"]]


def test_float64_is_for_computing_only():
    assert drop_float64(np.zeros(2)).dtype == np.float32
    assert drop_float64(np.zeros(2, np.int8)).dtype == np.int8


def listed(runtime, paths, settings, size=2):
    with Sources([str(path) for path in paths]) as sources:
        rows = sources.rows(settings.layout)
        return [window.texts for window in windows(rows, runtime, sources, settings, Pace(size))]


@pytest.fixture
def pair(tmp_path):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("one\ntwo\nthree\n")
    second.write_text("four\n" + "dog " * 70 + "\n")
    return first, second


def test_windows_go_over_the_end_of_a_file(model, pair):
    texts = listed(Runtime(model), pair, Settings())
    assert [[text[:5] for text in window] for window in texts] == [["one", "two"], ["three", "four"], ["dog d"]]


def test_too_long_a_text_is_named_by_its_file_and_line(model, pair):
    with pytest.raises(FastflowError, match=r"/b\.txt, line 2: longer than the model's 64 tokens"):
        listed(Runtime(model), pair, Settings(truncate="error"))
    pair[0].write_text("a\0" + "dog " * 70 + "\0")
    with pytest.raises(FastflowError, match=r"/a\.txt, text 2: longer than the model's 64 tokens"):
        listed(Runtime(model), pair[:1], Settings(Layout(null=True), truncate="error"))


def test_pairs_are_named_by_their_file(model, tmp_path):
    (tmp_path / "a.tsv").write_text("text\nok\n")
    (tmp_path / "b.tsv").write_text("sentence1\tsentence2\na\tb\n")
    with pytest.raises(UsageError, match=r"/b\.tsv holds pairs of texts"):
        listed(Runtime(model), [tmp_path / "a.tsv", tmp_path / "b.tsv"], Settings())


def test_long_rows_end_a_window(model, tmp_path, monkeypatch):
    monkeypatch.setattr("fastflow.options.CHARACTERS", 20)
    path = tmp_path / "a.jsonl"
    rows = [("a", ""), ("b" * 19, ""), ("c" * 25, ""), ("d", "e" * 18), ("f" * 4, ""), ("g", "")]
    path.write_text("".join(json.dumps({"text": text, "note": note}) + "\n" for text, note in rows))
    texts = listed(Runtime(model), [path], Settings(Layout(keep=("note",))), 4)
    assert [[text[0] for text in window] for window in texts] == [["a", "b"], ["c"], ["d", "f"], ["g"]]
    assert all(sum(len(text) for text in window[:-1]) < 20 for window in texts)


def test_the_size_of_a_window_follows_its_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(windows_module.time, "monotonic", lambda: now[0])
    pace, sizes = Pace(1000, varies=True), []
    for seconds in (0.1, 0.1, 0.1, 0.9, 5.0, 0.1, 0.1, 0.1, 0.1):
        sizes.append(pace.size)
        now[0] += seconds
        pace.done(pace.size)
    assert sizes == [16, 32, 64, 128, 128, 64, 128, 256, 512]
    pace.done(3)  # the reader had no more for now
    assert pace.size == 1000
    assert (Pace(1000).size, Pace(10, varies=True).size) == (1000, 10)


def judged(share: float, count: int) -> str | None:
    below = round(share * count)
    unlike = Unlike(Likelihood(0.0, 0.01))
    unlike.look(["text"] * count + ["", " "], np.array([-1.0] * below + [1.0] * (count - below) + [-1.0, -1.0]))
    return unlike.warning()


def test_a_warning_needs_enough_texts_and_five_times_the_share_of_the_corpus():
    assert judged(0.31, 1000) == (
        "31% of these texts are unlike the corpus the model was fitted on; consider --fit"
    )  # fmt: skip
    assert judged(0.05, FEWEST) is not None
    assert judged(0.045, FEWEST) is None
    assert judged(1.0, FEWEST - 1) is None
    assert judged(0.0, 0) is None


def test_looks_add_up_and_empty_texts_are_not_judged():
    unlike = Unlike(Likelihood(-5.0, 0.01))
    unlike.look(["a", "", " \n", "b"], np.array([-6.0, -9.0, -9.0, -5.0]))  # equal is as usual
    unlike.look(["c"], np.array([-5.5]))
    unlike.look([], np.zeros(0))
    assert (unlike.seen, unlike.below) == (3, 2)
    assert unlike.warning() is None


@pytest.mark.parametrize(("text", "shard"), [("1/1", (1, 1)), ("1/4", (1, 4)), ("4/4", (4, 4)), ("03/10", (3, 10))])
def test_a_shard_is_one_of_so_many(text, shard):
    assert parse_shard(text) == shard


@pytest.mark.parametrize(
    "text", ["", "1", "/", "1/", "/4", "0/4", "5/4", "-1/4", "1/0", "0/0", "1.0/4", "1/4/4", "a/b"]
)
def test_what_is_no_shard_is_refused_in_one_sentence(text):
    with pytest.raises(UsageError, match="must be I/N with I from 1 to N, such as 1/3") as raised:
        parse_shard(text)
    assert str(raised.value).startswith(f"--shard {text}: ")


OTHER = {"layout": Layout("txt"), "precision": "int8", "dim": 8, "normalize": True, "batch_tokens": 9, "dedupe": True,
         "shard": (1, 2), "truncate": "left", "prompt": "query: ", "log_prob": True, "only_new": True}  # fmt: skip


def test_every_option_tells_two_runs_apart():
    assert set(OTHER) == {field.name for field in fields(Settings)}
    assert Settings() == Settings()
    assert all(
        replace(Settings(), **{name: value}).to_record() != Settings().to_record() for name, value in OTHER.items()
    )
