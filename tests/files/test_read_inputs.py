"""Inputs: lines of files and pipes, packed or not, several as one, and read twice."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from fastflow.errors import FastflowError, UsageError
from fastflow.files.read import InputFormat, inputs
from fastflow.files.read import sources as module
from fastflow.files.read.inputs import PIECE, Input, parse_encoding, reread, unpack
from fastflow.files.read.matrix import MatrixFile
from fastflow.files.read.sources import Sources, check_formats, expand_patterns
from fastflow.files.read.texts import read_records
from fastflow.files.shards.manifest import read_manifest
from fastflow.files.write.partial import State
from fastflow.model.tensors import MappedTensors

from support.memory import grown
from support.refusals import refuses


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.binary(max_size=40).map(lambda data: data.replace(b"\xef", b"e")), st.integers(1, 9))
def test_lines_do_not_depend_on_where_a_read_ends(tmp_path_factory, data, chunk):
    path = tmp_path_factory.mktemp("in") / "x.txt"
    path.write_bytes(data)
    want = [line.removesuffix(b"\r").decode("utf-8", "replace") for line in data.removesuffix(b"\n").split(b"\n")]
    with pytest.MonkeyPatch.context() as patch, Input(str(path)) as source:
        patch.setattr(inputs, "CHUNK", chunk)
        assert list(source.lines("replace")) == (want if data else [])


@pytest.fixture
def pipe(tmp_path):
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
        assert not any([source.waits(), *(source.waits() for _ in source.lines())])
        assert source.identity == (7, path.stat().st_mtime_ns)


def test_a_share_grows_to_one_and_only_a_file_with_lines_has_one(tmp_path, monkeypatch):
    lines = b"a line of text\n" * 20_000
    found = {}
    for name, content in {"in.txt": lines, "in.txt.gz": gzip.compress(lines), "empty.txt": b"", "-": b"a\nb\n"}.items():
        (tmp_path / name).write_bytes(content)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
        with Input(name if name == "-" else str(tmp_path / name)) as source:
            found[name] = [source.share(), *(source.share() for _ in source.lines())]
    shares = found["in.txt"][1:]
    assert shares == sorted(shares)
    assert shares[0] < 0.3 < 0.4 < shares[len(shares) // 2] < 0.8
    assert shares[-1] == found["in.txt.gz"][-1] == 1
    assert (found["empty.txt"], found["-"]) == ([None], [None] * 3)


def test_a_zst_is_unpacked_in_pieces(tmp_path):
    """Zeros pack thousandfold: a kilobyte could take gigabytes at once."""
    (tmp_path / "x").write_bytes(zstandard.compress(bytes(50 << 20)))
    for asked, most in (((), 32_768 * PIECE), ((1 << 20,), 1 << 20)):
        with (tmp_path / "x").open("rb") as handle:
            packed = unpack("x.zst", handle)
            sizes = [len(chunk) for chunk in iter(lambda: packed.read1(*asked), b"")]  # noqa: B023
        assert sum(sizes) == 50 << 20
        assert max(sizes) <= most
    # looks back further than the command allows
    params = zstandard.ZstdCompressionParameters(window_log=28, strategy=1)
    packer = zstandard.ZstdCompressor(compression_params=params).compressobj()
    (tmp_path / "x.txt.zst").write_bytes(packer.compress(b"a\n") + packer.flush())
    refuses(read_texts, tmp_path / "x.txt.zst", "x.txt.zst, line 1: cannot be read")


CODECS = ["latin-1", "cp1252", "utf-16", "utf-16-le", "utf-32", "utf-8-sig", "cp037", "shift_jis", "utf-7"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("chunk", [1, 7, 1 << 16])
def test_every_codec_reads_what_it_wrote(tmp_path, monkeypatch, codec, chunk):
    monkeypatch.setattr("fastflow.files.read.inputs.CHUNK", chunk)
    accents = "ひらがな" if codec == "shift_jis" else "déjà vu"
    path = tmp_path / "x.csv"
    path.write_bytes(f'text,n\r\n"{accents}\r\nover lines",1\nplain,2\n'.encode(codec))
    layout = InputFormat(keep=("n",), encoding=parse_encoding(codec))
    assert [(*record.texts, *record.kept) for record in read_records(str(path), layout)] == [
        (f"{accents}\r\nover lines", "1"), ("plain", "2"),
    ]  # fmt: skip


MANY = "".join(f"line {i} of a file\n" for i in range(20_000)).encode()
GZ, ZST = gzip.compress(MANY, mtime=0), zstandard.compress(MANY)
CUT, DAMAGED = "cannot be read: the file is cut short; fetch it again", "is damaged; fetch it again"
PACKED = [
    ("x.txt.gz", GZ[:-50], f"x.txt.gz, line …: {CUT}"),
    ("x.txt.gz", GZ[:6], f"x.txt.gz, line 1: {CUT}"),
    ("x.txt.gz", GZ[:2000] + b"\xff" * 2000 + GZ[4000:], f"x.txt.gz, line …its .gz {DAMAGED}"),
    ("x.txt.gz", GZ[:10] + b"\xff" + GZ[11:], "x.txt.gz, line 1: cannot be read"),
    ("x.txt.gz", GZ[:-8] + b"\0" * 8, "x.txt.gz, line 20001: cannot be read"),
    ("x.txt.gz", b"plain text\n", "it is not packed as .gz; rename it without .gz"),
    ("x.txt.gz", ZST, "it is packed as .zst, not as .gz; rename it to end in .zst"),
    ("x.txt.zst", ZST[:-50], f"x.txt.zst, line …: {CUT}"),
    ("x.txt.zst", ZST[:6], f"x.txt.zst, line 1: {CUT}"),
    ("x.txt.zst", ZST[:2000] + b"\xff" * 2000 + ZST[4000:], f"x.txt.zst, line …its .zst {DAMAGED}"),
    ("x.txt.zst", b"plain text\n", "it is not packed as .zst; rename it without .zst"),
    ("x.txt.zst", GZ, "it is packed as .gz, not as .zst; rename it to end in .gz"),
]


@pytest.mark.parametrize(("name", "content", "sentence"), PACKED)
def test_a_damaged_packing_is_refused_in_one_sentence(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    refuses(read_texts, tmp_path / name, sentence)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_line_without_end_is_refused_while_it_is_read(tmp_path, suffix, run_python):
    pack = zstandard.compress if suffix == ".zst" else gzip.compress
    (tmp_path / f"x.txt{suffix}").write_bytes(pack(b"short\n") + pack(b"a" * (64 << 20)))
    before = "from fastflow.errors import FastflowError; from fastflow.files.read.texts import read_records"
    said = "line 2: is longer than 16 MB, which no model can use; cut it, or end each text with a line end"
    reads = "try: list(read_records(sys.argv[1])); sys.exit('it is taken')"
    work = f"{reads}\nexcept FastflowError as error: assert {said!r} in str(error)"
    assert grown(run_python, before, work, tmp_path / f"x.txt{suffix}") < 60_000


def lines(opened):
    with opened() as source:
        return list(source.lines())


@pytest.fixture
def stdin(monkeypatch):
    def give(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    return give


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_a_file_and_a_named_pipe_are_read_twice(tmp_path, kind):
    path = tmp_path / "in.txt.gz"
    if kind == "pipe":
        os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_bytes(gzip.compress(b"a\nb\n")))
    writer.start()
    if kind == "file":
        writer.join()
    with reread(str(path)) as opened:
        assert lines(opened) == lines(opened) == ["a", "b"]
        with opened() as source:
            assert (source.identity is None) == (kind == "pipe")
        writer.join()
        if kind == "file":
            path.write_bytes(gzip.compress(b"a\nb\nc\n"))
            with pytest.raises(FastflowError, match=r"in\.txt\.gz was changed while it was read"):
                opened()


def test_standard_input_is_read_twice_and_its_copy_removed(stdin, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stdin(b"a\nb\n" * 100_000)
    with reread("-") as opened:
        assert lines(opened) == lines(opened) == ["a", "b"] * 100_000
        with opened() as source:
            assert (source.identity, source.path, source.waits()) == (None, "-", False)
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


def test_a_pipe_that_is_too_large_is_one_sentence(stdin, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(inputs, "LIMIT", 1 << 20)
    stdin(b"a\n" * (1 << 19))
    with reread("-"):
        pass
    stdin(b"a\n" * (1 << 19) + b"b")
    message = r"^- has more than 1 MB, and --fit reads its texts twice: .*write it to a file"
    with pytest.raises(FastflowError, match=message):
        reread("-").__enter__()
    assert not list(tmp_path.iterdir())


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


def test_a_folder_of_parquet_is_its_files_and_other_marks_are_no_data(desk):
    names = ["ds/part-0.parquet", "ds/_SUCCESS", "ds/.part-0.parquet.crc", "ds/_log/0.parquet", "mixed/b.txt"]
    names += [f"_x/[1]/day={name}.parquet" for name in ("10/a", "2/b", "2/_c")] + ["empty/_SUCCESS", "mixed/a.parquet"]
    for name in names:
        (desk / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"text": [name]}), desk / name)
    assert expand_patterns(["ds/"]) == expand_patterns(["ds/*"]) == ["ds/part-0.parquet"]
    parts = ["_x/[1]/day=10/a.parquet", "_x/[1]/day=2/b.parquet"]
    assert expand_patterns(["_x/[1]"]) == expand_patterns(["_x/*/**/*.parquet"]) == parts
    assert expand_patterns(["ds/_*"]) == ["ds/_SUCCESS"]
    with Sources(expand_patterns(["ds", "_x/[1]"])) as source:
        assert [row.record.texts[0] for row in source.rows(InputFormat())] == ["ds/part-0.parquet", *parts]
    assert expand_patterns(["empty"]) == ["empty"]  # opening it says that it is a folder
    refuses(expand_patterns, ["empty/*"], "no file matches this pattern")
    refuses(expand_patterns, ["mixed"], "mixed: mixed/b.txt is not a Parquet file; move it, or give 'mixed/**/*.p")


@contextlib.contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """Leave this process ``count`` file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 9, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        for _ in range(count):
            os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in held:
            os.close(each)


def is_done(path):
    return State(path.with_name("x"), [[1, 2]], {}).is_done()


def read_texts(path):
    return list(read_records(str(path)))


OPENERS = {
    "x.safetensors": MappedTensors, "x.npy": lambda path: MatrixFile(str(path)), "x.shard.json": read_manifest,
    "x.run.json": is_done, "x.parquet": read_texts, "x.txt.gz": read_texts, "x.txt.zst": read_texts,
}  # fmt: skip


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts descriptors in /proc")
@pytest.mark.parametrize("name", OPENERS)
def test_a_file_without_a_descriptor_is_not_called_damaged(tmp_path, name):
    path = tmp_path / name
    save_file({"a": np.zeros(2)}, tmp_path / "x.safetensors")
    np.save(tmp_path / "x.npy", np.zeros((2, 2)))
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "x.parquet")
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress(b"a\n"))
    (tmp_path / "x.txt.zst").write_bytes(zstandard.compress(b"a\n"))
    (tmp_path / "x").touch()
    for end in ("shard", "run"):
        (tmp_path / f"x.{end}.json").write_text("{}")
    with contextlib.suppress(FastflowError):
        OPENERS[name](path)  # imports what it needs
    said = []
    for count in range(3):
        with free_descriptors(count):
            try:
                OPENERS[name](path)
            except FastflowError as error:
                said.append(str(error))
    assert "Too many open files" in said[0]
    assert not any("Too many" not in each for each in said if name[-4:] != "json")
    assert "remove it" not in said[0]
    assert "damaged" not in said[0]


def test_a_count_that_takes_too_long_is_an_estimate_by_bytes(tmp_path, monkeypatch):
    lines = "".join(f"line {i:06} of a long file\n" for i in range(200_000))
    (tmp_path / "a.txt").write_text(lines)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(lines.encode()))
    monkeypatch.setattr(module, "COUNT_S", 0.0)
    monkeypatch.setattr(module, "CHECKED", 50_000)
    for names in (["a.txt"], ["b.txt.gz"], ["a.txt", "b.txt.gz"]):
        with Sources([str(tmp_path / name) for name in names]) as sources:
            found, about = sources.expected(InputFormat())
        assert about
        assert 0.5 < found / (200_000 * len(names)) < 1.5


def test_standard_input_from_a_file_is_counted_too(desk):
    code = "from fastflow.files.read.sources import Sources; from fastflow.files.read import InputFormat\n"
    code += "with Sources(['-']) as s: print(s.expected(InputFormat()), sum(1 for _ in s.rows(InputFormat())))"
    for shell, said in (("exec 0<b.txt", "(2, False) 2"), ("exec 0<b.txt; read x", "(None, True) 1")):
        words = ["bash", "-c", f'{shell}; exec "$@"', "bash", sys.executable, "-c", code]
        assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip() == said


def test_inputs_that_are_refused(desk):
    for names, message in {
        ("*.csv",): "*.csv: no file matches this pattern; name a file, or mend the pattern",
        ("*.{gz,txt}",): "*.{gz,txt}: no file matches this pattern; give a pattern for each name in {}",
        ("a.txt", "a.txt"): "a.txt is given twice; name each input once",
        ("./a.txt", "*.txt"): "a.txt is given by ./a.txt and by a.txt",
        ("-", "-"): "- is given twice",
    }.items():
        refuses(expand_patterns, list(names), message)
    check_formats(["a.txt", "b.txt.gz", "c.txt.zst"], InputFormat())
    check_formats(["a.txt", "b.jsonl"], InputFormat("jsonl"))
    with pytest.raises(UsageError, match=r"a\.txt is txt and b\.jsonl is jsonl: the inputs of a run must be of one fo"):
        check_formats(["a.txt", "b.jsonl"], InputFormat())
    refuses(Sources, ["b.txt", "absent.txt"], "absent.txt cannot be opened: No such file")


@pytest.mark.parametrize("counts", [None, [2, 0, 1, 2]])
@pytest.mark.parametrize("skip", range(6))
def test_rows_go_on_through_the_files_and_can_be_skipped(desk, skip, counts):
    want = [("b.txt", "b1", 1), ("b.txt", "b2", 2), ("a.txt", "a1", 1), ("d.txt", "d1", 1), ("d.txt", "d2", 2)]
    want = [(number, *row) for number, row in enumerate(want)][skip:]
    with Sources(["b.txt", "c.txt", "a.txt", "d.txt"]) as sources:
        if counts and skip > 2:
            (desk / "a.txt").unlink()  # files before the rows are not opened
        rows = list(sources.rows(InputFormat(), skip, counts))
    assert [(number, path, *record.texts, record.line) for number, path, record in rows] == want


def test_rows_are_counted_before_a_run(desk):
    with Sources(["b.txt", "c.txt", "d.txt"]) as sources:
        assert sources.expected(InputFormat()) == (4, False)
        assert len(list(sources.rows(InputFormat()))) == 4  # the count left the first where it was
    with Sources(["c.txt"]) as sources:
        assert sources.expected(InputFormat()) == (0, False)
    (desk / "e.txt").write_bytes(b"a line\n" * 3000 + b"\xff\n" + b"a line\n" * 3000)
    with Sources(["e.txt"]) as sources:  # a damaged line is counted too
        assert sources.expected(InputFormat()) == (6001, False)
        rows = sources.rows(InputFormat())
        assert len([next(rows) for _ in range(3000)]) == 3000
        refuses(next, rows, "e.txt, line 3001: byte 1 is not UTF-8")


def test_identity_is_that_of_every_file_and_a_change_is_an_error(desk):
    with Sources(["b.txt", "a.txt"]) as sources:
        assert sources.identity == [(6, os.stat("b.txt").st_mtime_ns), (3, os.stat("a.txt").st_mtime_ns)]
        assert sources.name == "b.txt and 1 more input"
        (desk / "a.txt").write_text("another\n")
        refuses(lambda rows: list(rows), sources.rows(InputFormat()), "a.txt was changed while it was read")
    os.mkfifo(desk / "pipe.txt")
    with Sources(["b.txt", "pipe.txt"]) as sources:
        assert sources.identity is None
        assert sources.expected(InputFormat()) == (None, True)
