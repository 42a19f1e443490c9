"""Packed inputs: gz and zst give the same lines, and a file that is cut off or damaged is an error that names it."""

from __future__ import annotations

import gzip

import pytest
import zstandard

from fastflow.errors import FastflowError
from fastflow.files.read.compressed import unpacked
from fastflow.files.read.inputs import without_packing
from fastflow.files.read.texts import read_records

from support.memory import grown


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
