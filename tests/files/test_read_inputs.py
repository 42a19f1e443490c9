"""Inputs: lines of files and pipes, packed or not, several as one, and read twice."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import threading

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from fastflow.errors import FastflowError, UsageError
from fastflow.files.read import inputs
from fastflow.files.read import reread as spool
from fastflow.files.read import sources as module
from fastflow.files.read.compressed import unpack
from fastflow.files.read.inputs import Input, without_packing
from fastflow.files.read.records import Layout
from fastflow.files.read.reread import Rereadable
from fastflow.files.read.sources import Sources, check_formats, expand_patterns
from fastflow.files.read.texts import read_records

from support.memory import grown


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.binary(max_size=40).map(lambda data: data.replace(b"\xef", b"e")), st.integers(1, 9))
def test_lines_do_not_depend_on_where_a_read_ends(tmp_path_factory, data, chunk):
    path = tmp_path_factory.mktemp("in") / "x.txt"
    path.write_bytes(data)
    want = [line.removesuffix(b"\r").decode("utf-8", "replace") for line in data.removesuffix(b"\n").split(b"\n")]
    with pytest.MonkeyPatch.context() as patch, Input(str(path)) as source:
        patch.setattr(inputs, "CHUNK", chunk)
        assert list(source.lines("replace")) == (want if data else [])


def test_a_line_of_many_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "CHUNK", 7)
    path = tmp_path / "x.txt.gz"
    path.write_bytes(gzip.compress(b"a" * 1000 + b"\n" + b"b" * 15))
    with Input(str(path)) as source:
        assert list(source.lines()) == ["a" * 1000, "b" * 15]


@pytest.fixture
def pipe(tmp_path):
    """(Input, its writing end) of a named pipe."""
    os.mkfifo(tmp_path / "fifo")
    reading = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)  # else opening would wait for the other end
    with open(tmp_path / "fifo", "wb", buffering=0) as end, Input(str(tmp_path / "fifo")) as source:
        os.close(reading)
        yield source, end


def test_a_pipe_waits_only_when_no_whole_line_has_arrived(pipe):
    source, end = pipe
    lines = source.lines()
    assert source.identity is None
    assert source.waits()
    end.write(b"one\ntwo\nthr")
    assert not source.waits()
    assert next(lines) == "one"
    assert not source.waits()  # two has been read
    assert next(lines) == "two"
    assert source.waits()
    end.write(b"ee\n")
    assert not source.waits()
    assert next(lines) == "three"
    end.close()
    assert not source.waits()  # the end is no reason to wait
    assert list(lines) == []


def test_a_file_never_waits(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("one\ntwo")
    with Input(str(path)) as source:
        lines = source.lines()
        assert [source.waits(), next(lines), source.waits(), next(lines), source.waits()] == [
            False, "one", False, "two", False,
        ]  # fmt: skip
        assert source.identity == (7, path.stat().st_mtime_ns)


def test_a_change_is_found_at_the_end_and_a_rename_is_none(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("one\ntwo\n")
    with Input(str(path)) as source:
        path.rename(tmp_path / "y.txt")
        path.write_text("another")
        assert list(source.lines()) == ["one", "two"]
    with Input(str(path)) as source:
        lines = source.lines()
        os.utime(path, ns=(0, 0))
        assert next(lines) == "another"
        with pytest.raises(FastflowError, match=r"x\.txt was changed while it was read; run the command again"):
            next(lines)


def test_a_name_that_no_file_can_have(tmp_path):
    for name in ("a\0b", "x" * 5000):
        with pytest.raises(FastflowError, match="cannot be opened: "):
            Input(str(tmp_path / name))


def test_the_share_of_a_file_grows_to_one(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("a line of text\n" * 20_000)
    packed = tmp_path / "in.txt.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with Input(str(path)) as source:
        shares = [source.share() for _ in source.lines()]
    assert shares == sorted(shares)
    assert shares[0] < 0.3 < 0.4 < shares[len(shares) // 2] < 0.8
    assert shares[-1] == 1
    with Input(str(packed)) as source:
        assert list(source.lines())
        assert source.share() == 1


def test_a_pipe_and_an_empty_file_have_no_share(tmp_path, monkeypatch):
    (tmp_path / "empty.txt").write_text("")
    with Input(str(tmp_path / "empty.txt")) as source:
        assert source.share() is None
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    with Input("-") as source:
        assert list(source.lines()) == ["a", "b"]
        assert source.share() is None


def texts(path) -> list[str]:
    return [record.texts[0] for record in read_records(str(path))]


def test_a_zst_that_unpacks_to_very_much_does_so_in_pieces(tmp_path):
    """Zeros pack thousandfold; the memory for one piece has a bound."""
    from fastflow.files.read.compressed import PIECE, Zstd

    (tmp_path / "x").write_bytes(zstandard.compress(bytes(50 << 20)))
    with (tmp_path / "x").open("rb") as handle:
        packed, sizes = Zstd("x", handle), []
        while chunk := packed.read1():
            sizes.append(len(chunk))
    assert sum(sizes) == 50 << 20
    assert max(sizes) <= 32_768 * PIECE


def test_the_suffix_of_the_content():
    assert [without_packing(name) for name in ("x.txt.gz", "x.csv.zst", "x.gz.txt")] == ["x.txt", "x.csv", "x.gz.txt"]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_line_without_end_is_refused_while_it_is_read(tmp_path, suffix, run_python):
    """64 MB of one letter: a few kB of a file that would take twice that as text."""
    pack = zstandard.compress if suffix == ".zst" else gzip.compress
    (tmp_path / f"x.txt{suffix}").write_bytes(pack(b"short\n") + pack(b"a" * (64 << 20)))
    before = "from fastflow.errors import FastflowError; from fastflow.files.read.texts import read_records"
    said = "line 2: is longer than 16 MB, which no model can use; cut it, or end each text with a line end"
    reads = "try: list(read_records(sys.argv[1])); sys.exit('it is taken')"
    work = f"{reads}\nexcept FastflowError as error: assert {said!r} in str(error)"
    assert grown(run_python, before, work, tmp_path / f"x.txt{suffix}") < 60_000


def test_zstd_gives_no_more_than_is_asked_for(tmp_path):
    """A kilobyte may stand for 32 MB, which as lines of one letter would take gigabytes at once."""
    content = b"a\n" * 500_000
    (tmp_path / "x.zst").write_bytes(zstandard.compress(content))
    with (tmp_path / "x.zst").open("rb") as file:
        source = unpack("x.zst", file)
        pieces = []
        while piece := source.read1(1000):
            pieces.append(piece)
    assert max(map(len, pieces)) == 1000
    assert b"".join(pieces) == content


def test_a_frame_may_not_look_back_further_than_the_command_allows(tmp_path):
    params = zstandard.ZstdCompressionParameters(window_log=28, strategy=1)
    packer = zstandard.ZstdCompressor(compression_params=params).compressobj()
    (tmp_path / "x.txt.zst").write_bytes(packer.compress(b"a\n") + packer.flush())
    with pytest.raises(FastflowError, match=r"x\.txt\.zst, line 1: cannot be read"):
        texts(tmp_path / "x.txt.zst")


def lines(opened, path):
    with opened(path) as source:
        return list(source.lines())


@pytest.fixture
def stdin(monkeypatch):
    def give(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    return give


def test_a_file_is_read_as_it_is(tmp_path):
    path = tmp_path / "in.txt.gz"
    path.write_bytes(gzip.compress(b"a\nb\n"))
    with Rereadable(str(path)) as opened:
        assert lines(opened, str(path)) == lines(opened, str(path)) == ["a", "b"]
        with opened(str(path)) as source:
            assert source.identity is not None


def test_standard_input_is_read_twice_and_its_copy_removed(stdin, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stdin(b"a\nb\n" * 100_000)
    with Rereadable("-") as opened:
        assert lines(opened, "-") == lines(opened, "-") == ["a", "b"] * 100_000
        with opened("-") as source:
            assert (source.identity, source.path, source.waits()) == (None, "-", False)
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


def test_so_is_a_named_pipe_compressed_or_not(tmp_path):
    path = tmp_path / "pipe.gz"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_bytes(gzip.compress(b"a\nb\n")))
    writer.start()
    with Rereadable(str(path)) as opened:
        assert lines(opened, str(path)) == lines(opened, str(path)) == ["a", "b"]
    writer.join()


def test_a_pipe_that_is_too_large_is_one_sentence(stdin, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(spool, "LIMIT", 1 << 20)
    stdin(b"a\n" * (1 << 19))
    with Rereadable("-"):
        pass
    stdin(b"a\n" * (1 << 19) + b"b")
    message = r"^- has more than 1 MB, and --fit reads its texts twice: .*write it to a file"
    with pytest.raises(FastflowError, match=message):
        Rereadable("-").__enter__()
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_changed_between_is_an_error(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("a\n")
    with Rereadable(str(path)) as opened:
        assert lines(opened, str(path)) == ["a"]
        path.write_text("a\nb\n")
        with pytest.raises(FastflowError, match=r"in\.txt was changed while it was read"):
            opened(str(path))


def test_no_file(tmp_path):
    with pytest.raises(FastflowError, match="cannot be opened: No such file"):
        Rereadable(str(tmp_path / "none.txt")).__enter__()


@pytest.fixture
def desk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in {"b.txt": "b1\nb2\n", "a.txt": "a1\n", "c.txt": "", "d.txt": "d1\nd2"}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_patterns_are_sorted_and_names_keep_their_place(desk):
    assert expand_patterns(["d.txt", "[ab].txt", "-"]) == ["d.txt", "a.txt", "b.txt", "-"]
    (desk / "folder.txt").mkdir()
    assert expand_patterns(["*.txt"]) == ["a.txt", "b.txt", "c.txt", "d.txt"]
    (desk / "[ab].txt").write_text("a name, not a pattern\n")
    assert expand_patterns(["[ab].txt"]) == ["[ab].txt"]
    (desk / "deep" / "er").mkdir(parents=True)
    (desk / "deep" / "er" / "x.jsonl").write_text("")
    assert expand_patterns(["deep/**/*.jsonl"]) == ["deep/er/x.jsonl"]
    assert expand_patterns(["absent.txt"]) == ["absent.txt"]  # opening it says that it is absent


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["*.csv"], r"\*\.csv: no file matches this pattern; name a file, or mend the pattern"),
        (["*.{gz,txt}"], r"\*\.\{gz,txt\}: no file matches this pattern; give a pattern for each name in \{\}"),
        (["a.txt", "a.txt"], r"a\.txt is given twice; name each input once"),
        (["./a.txt", "*.txt"], r"a\.txt is given by \./a\.txt and by a\.txt"),
        (["-", "-"], "- is given twice"),
    ],
)
def test_inputs_that_are_refused(desk, given, message):
    with pytest.raises(UsageError, match=message):
        expand_patterns(given)


def test_formats_must_agree(desk):
    check_formats(["a.txt", "b.txt.gz", "c.txt.zst"], Layout())
    check_formats(["a.txt", "b.jsonl"], Layout("jsonl"))
    with pytest.raises(UsageError, match=r"a\.txt is txt and b\.jsonl is jsonl: the inputs of a run must be of one fo"):
        check_formats(["a.txt", "b.jsonl"], Layout())


def test_rows_go_on_through_the_files(desk):
    with Sources(["b.txt", "c.txt", "a.txt", "d.txt"]) as sources:
        found = [(number, path, record.texts[0], record.line) for number, path, record in sources.rows(Layout())]
    assert found == [
        (0, "b.txt", "b1", 1), (1, "b.txt", "b2", 2), (2, "a.txt", "a1", 1),
        (3, "d.txt", "d1", 1), (4, "d.txt", "d2", 2),
    ]  # fmt: skip


@pytest.mark.parametrize("counts", [None, [2, 0, 1, 2]])
@pytest.mark.parametrize("skip", range(6))
def test_rows_can_be_skipped(desk, skip, counts):
    want = ["b1", "b2", "a1", "d1", "d2"][skip:]
    with Sources(["b.txt", "c.txt", "a.txt", "d.txt"]) as sources:
        found = list(sources.rows(Layout(), skip, counts))
    assert [row.record.texts[0] for row in found] == want
    assert [row.number for row in found] == list(range(skip, 5))


def test_files_before_the_rows_are_not_opened(desk):
    with Sources(["b.txt", "a.txt", "d.txt"]) as sources:
        (desk / "a.txt").unlink()
        assert [row.number for row in sources.rows(Layout(), 3, [2, 1, 2])] == [3, 4]


def test_the_rows_of_all_inputs_are_counted_before_a_run(desk):
    with Sources(["b.txt", "c.txt", "d.txt"]) as sources:
        assert sources.expected(Layout()) == (4, False)
        assert len(list(sources.rows(Layout()))) == 4  # the count left the first where it was
    with Sources(["c.txt"]) as sources:
        assert sources.expected(Layout()) == (0, False)


def test_a_count_that_takes_too_long_is_an_estimate_by_bytes(tmp_path, monkeypatch):
    lines = "".join(f"line {i:06} of a long file\n" for i in range(200_000))
    (tmp_path / "a.txt").write_text(lines)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(lines.encode()))
    monkeypatch.setattr(module, "COUNT_S", 0.0)
    monkeypatch.setattr(module, "CHECKED", 50_000)
    for names in (["a.txt"], ["b.txt.gz"], ["a.txt", "b.txt.gz"]):
        with Sources([str(tmp_path / name) for name in names]) as sources:
            found, about = sources.expected(Layout())
        assert about
        assert 0.5 < found / (200_000 * len(names)) < 1.5


def test_standard_input_from_a_file_is_counted_too(desk):
    code = "from fastflow.files.read.sources import Sources; from fastflow.files.read.records import Layout\n"
    code += "with Sources(['-']) as s: print(s.expected(Layout()), sum(1 for _ in s.rows(Layout())))"
    for shell, said in (("exec 0<b.txt", "(2, False) 2"), ("exec 0<b.txt; read x", "(None, True) 1")):
        words = ["bash", "-c", f'{shell}; exec "$@"', "bash", sys.executable, "-c", code]
        assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == said


def test_a_damaged_line_ends_the_count_and_not_the_run(desk):
    (desk / "e.txt").write_bytes(b"a line\n" * 3000 + b"\xff\n" + b"a line\n" * 3000)
    with Sources(["e.txt"]) as sources:
        found, about = sources.expected(Layout())
        assert about
        assert found >= 3000
        rows = sources.rows(Layout())
        assert len([next(rows) for _ in range(3000)]) == 3000
        with pytest.raises(FastflowError, match=r"e\.txt, line 3001: byte 1 is not UTF-8"):
            next(rows)


def test_identity_is_that_of_every_file(desk):
    with Sources(["b.txt", "a.txt"]) as sources:
        assert sources.identity == [(6, os.stat("b.txt").st_mtime_ns), (3, os.stat("a.txt").st_mtime_ns)]
        assert sources.name == "b.txt and 1 more input"
    os.mkfifo(desk / "pipe.txt")
    with Sources(["b.txt", "pipe.txt"]) as sources:
        assert sources.identity is None
        assert sources.expected(Layout()) == (None, True)


def test_a_later_file_that_changes_before_its_turn_is_an_error(desk):
    with Sources(["b.txt", "a.txt"]) as sources:
        (desk / "a.txt").write_text("another\n")
        with pytest.raises(FastflowError, match=r"^a\.txt was changed while it was read"):
            list(sources.rows(Layout()))


def test_a_later_file_that_is_absent_is_said_before_anything_is_read(desk):
    with pytest.raises(FastflowError, match=r"^absent\.txt cannot be opened: No such file"):
        Sources(["b.txt", "absent.txt"])
