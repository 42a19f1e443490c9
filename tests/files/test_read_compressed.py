"""Packed inputs: gz and zst give the same lines, and a file that is cut off or damaged is an error that names it."""

from __future__ import annotations

import gzip
import re
import sys

import pytest
import zstandard

from fastflow.errors import FastflowError
from fastflow.files.read.compressed import unpacked
from fastflow.files.read.inputs import without_packing
from fastflow.files.read.records import Layout
from fastflow.files.read.texts import read_records

LINES = [f"line {i} of a file" for i in range(20_000)]
PLAIN = "".join(line + "\n" for line in LINES).encode()


def texts(path) -> list[str]:
    return [record.texts[0] for record in read_records(str(path))]


@pytest.mark.parametrize("frames", [1, 3])
def test_zst_and_gz_are_the_plain_file(tmp_path, frames):
    size = -(-len(PLAIN) // frames)
    parts = [PLAIN[start : start + size] for start in range(0, len(PLAIN), size)]
    (tmp_path / "x.txt.zst").write_bytes(b"".join(zstandard.compress(part) for part in parts))
    (tmp_path / "x.txt.gz").write_bytes(b"".join(gzip.compress(part) for part in parts))
    assert texts(tmp_path / "x.txt.zst") == texts(tmp_path / "x.txt.gz") == LINES


@pytest.mark.parametrize(
    ("name", "text"), [("x.jsonl", '{"text": "a", "n": 1}\n'), ("x.csv", "text,n\na,1\n"), ("x.tsv", "text\tn\na\t1\n")]
)
def test_every_format_can_be_packed(tmp_path, name, text):
    (tmp_path / f"{name}.zst").write_bytes(zstandard.compress(text.encode()))
    (record,) = read_records(str(tmp_path / f"{name}.zst"), Layout(keep=("n",)))
    assert (record.texts, str(record.kept[0])) == (("a",), "1")


def test_an_empty_zst_has_no_lines(tmp_path):
    for data in (b"", zstandard.compress(b"")):
        (tmp_path / "x.txt.zst").write_bytes(data)
        assert texts(tmp_path / "x.txt.zst") == []


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("cut off", "the file is cut short; fetch it again"),
        ("cut in the head", "the file is cut short; fetch it again"),
        ("not packed", "it is not packed as {suffix}; rename it without {suffix}"),
        ("packed otherwise", "it is packed as {other}, not as {suffix}; rename it to end in {other}"),
        ("overwritten", "its {suffix} is damaged; fetch it again"),
    ],
)
def test_a_damaged_file_is_an_error_with_its_line(tmp_path, suffix, how, message):
    kinds = {".gz": gzip.compress(PLAIN), ".zst": zstandard.compress(PLAIN)}
    packed = kinds.pop(suffix)
    ((other, otherwise),) = kinds.items()
    data = {
        "cut off": packed[:-50],
        "cut in the head": packed[:6],
        "not packed": b"plain text, no archive\n" * 9,
        "packed otherwise": otherwise,
        "overwritten": packed[:2000] + b"\xff" * 2000 + packed[4000:],
    }[how]
    (tmp_path / f"x.txt{suffix}").write_bytes(data)
    message = re.escape(message.format(suffix=suffix, other=other))
    with pytest.raises(FastflowError, match=rf"x\.txt\{suffix}, line \d+: cannot be read: {message}$"):
        texts(tmp_path / f"x.txt{suffix}")


def test_without_zstandard_the_command_to_install_it_is_said(tmp_path, monkeypatch):
    (tmp_path / "x.txt.zst").write_bytes(zstandard.compress(b"a\n"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(
        FastflowError, match=r"x\.txt\.zst: reading \.zst needs zstandard, .* pip install -e '\.\[zstd\]'"
    ):
        texts(tmp_path / "x.txt.zst")


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
    script = f"""
import resource
from fastflow.errors import FastflowError
from fastflow.files.read.texts import read_records
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    print(sum(1 for _ in read_records({str(tmp_path / f"x.txt{suffix}")!r})))
except FastflowError as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    said, grown = run_python(script).stdout.splitlines()
    assert said.endswith(
        f"x.txt{suffix}, line 2: is longer than 16 MB, which no model can use; cut it, or end each text with a line end"
    )
    assert int(grown) < 60_000  # kB


def test_zstd_gives_no_more_than_is_asked_for(tmp_path):
    """A kilobyte may stand for 32 MB, which as lines of one letter would take gigabytes at once."""
    content = b"a\n" * 500_000
    (tmp_path / "x.zst").write_bytes(zstandard.compress(content))
    with (tmp_path / "x.zst").open("rb") as file:
        source = unpacked("x.zst", file)
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
