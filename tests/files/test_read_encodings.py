"""Inputs in another encoding than UTF-8: every codec of Python that makes text reads what it wrote."""

from __future__ import annotations

import pytest

from fastflow.errors import UsageError
from fastflow.files.read.encodings import parse_encoding
from fastflow.files.read.records import Layout
from fastflow.files.read.texts import read_records

CODECS = ["latin-1", "cp1252", "utf-16", "utf-16-le", "utf-32", "utf-8-sig", "cp037", "shift_jis", "utf-7"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("chunk", [1, 7, 1 << 16])
def test_every_codec_reads_what_it_wrote(tmp_path, monkeypatch, codec, chunk):
    monkeypatch.setattr("fastflow.files.read.inputs.CHUNK", chunk)
    accents = "ひらがな" if codec == "shift_jis" else "déjà vu"
    path = tmp_path / "x.csv"
    path.write_bytes(f'text,n\r\n"{accents}\r\nover lines",1\nplain,2\n'.encode(codec))
    layout = Layout(keep=("n",), encoding=parse_encoding(codec))
    assert [(*record.texts, *record.kept) for record in read_records(str(path), layout)] == [
        (f"{accents}\r\nover lines", "1"), ("plain", "2"),
    ]  # fmt: skip


@pytest.mark.parametrize("given", ["cp12520", "base64", "rot13", "idna", "", "a\0b", "undefined"])
def test_what_is_no_encoding_is_refused(given):
    with pytest.raises(UsageError, match="Python knows no such encoding; name one such as cp1252"):
        parse_encoding(given)


def test_names_of_an_encoding_are_one():
    assert {parse_encoding(name) for name in ("latin1", "latin-1", "ISO_8859-1")} == {"iso8859-1"}
    assert {parse_encoding(name) for name in (None, "UTF-8", "utf8", "U8")} == {None}
