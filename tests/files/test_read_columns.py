"""Parquet and matrices of vectors: columns, rows and what is refused."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.lib import format as npy

from fastflow import Index, Runtime
from fastflow.errors import FastflowError
from fastflow.files.read import InputFormat, parquet
from fastflow.files.read import matrix as module
from fastflow.files.read.inputs import Input
from fastflow.files.read.matrix import MatrixFile, MatrixRows
from fastflow.files.read.parquet import footer, parquet_records, row_count

from support.commands import run
from support.corpus import regressions
from support.matrices import make_vectors
from support.memory import grown
from support.refusals import refuses


@pytest.fixture
def path(tmp_path, sentences):
    table = pa.table({"key": pa.array(range(100), pa.int64()), "text": sentences[:100], "x": [[i] for i in range(100)]})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=16)
    return tmp_path / "in.parquet"


def read(path, layout=InputFormat(), skip=0):  # noqa: B008 (immutable)
    with Input(str(path)) as source:
        return list(parquet_records(source, layout, skip))


def test_rows_with_ids_and_fields(path, sentences):
    found = read(path, InputFormat(id_field="key", keep=("x",)))
    assert [record.texts for record in found] == [(text,) for text in sentences[:100]]
    assert [record.id for record in found] == list(range(100))
    assert [record.line for record in found] == list(range(100))
    assert [record.kept[0].as_py() for record in found] == [[i] for i in range(100)]
    for kind in (pa.large_string(), pa.dictionary(pa.int8(), pa.string()), pa.string_view()):
        pq.write_table(pa.table({"text": pa.array(["a", "ü", "a"], kind)}), path)
        assert [record.texts[0] for record in read(path)] == ["a", "ü", "a"], kind


@pytest.mark.parametrize("skip", [0, 1, 15, 16, 17, 99, 100])
def test_rows_are_skipped_by_row_groups(path, skip, monkeypatch):
    groups = []
    plain = pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile, "iter_batches", lambda self, *a, **o: groups.append(o["row_groups"][0]) or plain(self, *a, **o)
    )
    assert [record.line for record in read(path, skip=skip)] == list(range(skip, 100))
    assert groups == [group for group in range(7) if min(100, 16 * group + 16) > skip]


@pytest.mark.slow
def test_only_the_columns_asked_for_are_read_and_one_group_at_a_time(tmp_path, path, run_python):
    rows, noise = 2_000, np.random.default_rng(0)
    schema = pa.schema([("text", pa.string()), ("blob", pa.binary())])
    with pq.ParquetWriter(tmp_path / "big.parquet", schema) as writer:
        for _ in range(20):
            blobs = [noise.bytes(4_000) for _ in range(rows)]
            texts = [noise.bytes(1_000).hex() for _ in range(rows)]
            writer.write_table(pa.table({"text": texts, "blob": blobs}, schema))
    before = "from fastflow.files.read.texts import read_records; list(read_records(sys.argv[1]))"
    work = f"assert sum(1 for _ in read_records(sys.argv[2])) == {20 * rows}"  # 80 MB of texts, 160 MB of blobs
    assert grown(run_python, before, work, path, tmp_path / "big.parquet") < 50_000


def test_the_count_and_the_footer_are_those_of_the_file(path):
    with Input(str(path)) as source:
        assert row_count(source) == 100
        assert footer(source) in path.read_bytes()[-len(footer(source)) - 8 :]
        assert len(footer(source)) > 100


TYPED = {
    "when": pa.array([datetime.datetime(2020, 1, 1), None], pa.timestamp("us", "UTC")),
    "price": pa.array([decimal.Decimal("1.25"), None]),
    "deep": pa.array([[{"a": 1}], None]),
    "point": pa.array([[1.0, np.nan], None], pa.list_(pa.float32(), 2)),
    "kind": pa.array(["x", "x"]).dictionary_encode(),
    "n": pa.array([1, None], pa.uint8()),
}


def test_fields_keep_their_types_from_parquet_to_parquet(model, tmp_path):
    pq.write_table(pa.table({"text": ["a", "b"], **TYPED}), tmp_path / "in.parquet")
    arguments = ("--keep", ",".join(TYPED), "--id-field", "n", "-o", tmp_path / "out.parquet", "--quiet")
    result = run("embed", tmp_path / "in.parquet", "-m", model, *arguments)
    assert result.exit_code == 0, result.stderr
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.column_names == ["row", "n", *(name for name in TYPED if name != "n"), "embedding"]
    for name, want in TYPED.items():
        assert repr(found[name].to_pylist()) == repr(want.to_pylist())
        assert found.schema.field(name).type == (pa.string() if name == "kind" else want.type)
    assert np.array_equal(np.array(found["embedding"].to_pylist(), np.float32), Runtime(model).encode(["a", "b"]))
    result = run("embed", tmp_path / "in.parquet", "-m", model, "--keep", "n,deep,point", "--quiet")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [[row[name] for name in ("n", "deep", "point")] for row in rows] == [[1, [{"a": 1}], [1, None]], [None] * 3]


DAY, ZONE = datetime.datetime(2026, 1, 31, 12, 30, 15, 500_000), pa.timestamp("us", "Europe/Berlin")
WRITTEN = [  # a column, and its values in .db and JSON Lines
    (pa.array([DAY, None], pa.timestamp("ms")), ["2026-01-31T12:30:15.500", None]),
    (pa.array([DAY, DAY.replace(microsecond=0)], ZONE), ["2026-01-31T12:30:15.500000Z", "2026-01-31T12:30:15.000000Z"]),
    (pa.array([1, -1], pa.timestamp("ns")), ["1970-01-01T00:00:00.000000001", "1969-12-31T23:59:59.999999999"]),
    (pa.array([0, 253_402_300_800], pa.timestamp("s")), ["1970-01-01T00:00:00.000", "10000-01-01T00:00:00.000"]),
    (pa.array([DAY.date(), None]), ["2026-01-31", None]),
    (pa.array([DAY.date(), None], pa.date64()), ["2026-01-31", None]),
    (pa.array([DAY.time(), None]), ["12:30:15.500000", None]),
    (pa.array([decimal.Decimal("1.50"), decimal.Decimal("-1e5")]), ["1.50", "-100000.00"]),
    (pa.array([decimal.Decimal(10**60), None], pa.decimal256(70, 0)), ["1" + "0" * 60, None]),
    (pa.array([[{"at": DAY.date()}], None]), [[{"at": "2026-01-31"}], None]),
]


def test_times_and_decimals_are_text_that_a_condition_compares(model, tmp_path):
    columns = {f"c{at}": column for at, (column, _) in enumerate(WRITTEN)}
    pq.write_table(pa.table({"text": ["a", "b"], **columns}), tmp_path / "in.parquet")
    words = ("embed", tmp_path / "in.parquet", "-m", model, "--keep", ",".join(columns), "--quiet")
    result = run(*words)
    assert result.exit_code == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    for at, (_, want) in enumerate(WRITTEN):
        assert [line[f"c{at}"] for line in lines] == want
    assert run(*words, "-o", tmp_path / "x.db").exit_code == 0
    with Index(tmp_path / "x.db") as index:
        vector = index.search(np.ones(index.dim), where="c1 > '2026-01-31T12:30:15.1'")
        assert [hit.row for hit in vector] == [0]
        assert vector[0].fields["c7"] == "1.50"


def test_a_repeated_text_is_held_once(tmp_path):
    text = "word " * 200_000
    repeated = pa.DictionaryArray.from_arrays(pa.array([0, 1, None] * 1000, pa.int32()), pa.array([text, "other"]))
    pq.write_table(pa.table({"text": repeated}), tmp_path / "in.parquet")
    with Input(str(tmp_path / "in.parquet")) as source:
        records = parquet_records(source, InputFormat())
        first = next(records)
        assert first.texts == (text,)
        assert next(records).texts == ("other",)
        assert str(next(records)).endswith("row 2: field 'text' is null, not a text; fill it or remove the row")
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 3000, pa.int32()), pa.array([text]))
    pq.write_table(pa.table({"text": repeated}), tmp_path / "in.parquet")
    found = read(tmp_path / "in.parquet")
    assert len(found) == 3000
    assert sum(1 for _ in {id(record.texts[0]) for record in found}) <= 2  # one of each batch


def test_long_rows_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    texts = [f"{i} " * 500 for i in range(200)]
    pq.write_table(pa.table({"text": texts, "n": range(200)}), tmp_path / "in.parquet", use_dictionary=False)
    sizes = []
    plain = pq.ParquetFile.iter_batches
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda self, n, **o: sizes.append(n) or plain(self, n, **o))
    monkeypatch.setattr(parquet, "BYTES", 10_000)
    assert [record.texts[0] for record in read(tmp_path / "in.parquet", InputFormat(field="text"))] == texts
    assert 1 <= sizes[0] <= 20
    monkeypatch.setattr(parquet, "BYTES", 1)
    assert [record.line for record in read(tmp_path / "in.parquet", InputFormat(field="text"))] == list(range(200))


READ = """
import sys
from fastflow.errors import FastflowError
from fastflow.files.read.texts import read_records
try:
    print([record.texts[0] for record in read_records(sys.argv[1])])
except FastflowError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("the name of a column is not UTF-8", "['a', 'dog', '']"),  # of one that is not read
        ("pyarrow ends the process if the description of a column is asked for", "row 2: cannot be read"),
        ("the footer counts other rows than the groups", "is damaged: its footer counts -4 rows, and its groups 3"),
        ("a group has fewer texts than rows", "is damaged: a row group should end at row 3, and ends at 0"),
        ("an index lies beyond the end of its dictionary", "row 1: cannot be read: In column 0: Invalid: Dictionary"),
    ],
)
def test_a_damaged_description_is_no_end_of_the_process(tmp_path, run_python, fault, sentence):
    (tmp_path / "in.parquet").write_bytes(regressions("parquet")[fault][1:])
    done = run_python(READ, tmp_path / "in.parquet")
    assert done.returncode == 0, done.stderr
    assert sentence in done.stdout


def saved(path, array, version=None):
    with open(path, "wb") as file:
        npy.write_array(file, array, version, allow_pickle=array.dtype.hasobject)
    return str(path)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4", ">f8"])
def test_rows_are_native_float32(tmp_path, dtype, order):
    x = make_vectors(50, 7).astype(np.float16)
    with MatrixFile(saved(tmp_path / "x.npy", np.array(x.astype(dtype), order=order))) as source:
        assert source.matrix.shape == (50, 7)
        for rows in (slice(0, 50), slice(3, 9), slice(0, None, 7), np.array([4, 4, 49, 0])):
            found = source.matrix[rows]
            assert found.dtype == np.float32
            assert found.flags.c_contiguous
            assert found.flags.writeable  # PyTorch takes no other
            assert np.array_equal(found, x[rows].astype(np.float32))
        blocks = list(source.blocks(16, 10))
        assert [len(block) for block in blocks] == [16, 16, 8]
        assert np.array_equal(np.concatenate(blocks), x[10:].astype(np.float32))
    for version, count in (((1, 0), 1), ((2, 0), 1), ((1, 0), 0), ((2, 0), 0)):
        with MatrixFile(saved(tmp_path / "x.npy", x[:count], version)) as source:
            assert source.matrix.shape == source.matrix[0:9].shape == (count, 7)
            assert len(list(source.blocks(4))) == count


def test_a_bad_row_has_its_number_in_the_whole():
    x = make_vectors(60, 4).astype(np.float64)
    x[41, 2] = np.nan
    matrix = MatrixRows(x, "v.npy")
    for part, rows in (
        (matrix, slice(40, 50)), (matrix, slice(1, None, 10)), (matrix, np.array([3, 41])),
        (matrix.take(np.array([0, 41, 42])), slice(0, 3)),
        (matrix.take(np.arange(30, 50)).take(np.array([1, 11])), slice(0, 2)),
    ):  # fmt: skip
        with pytest.raises(FastflowError, match=r"^v\.npy, row 41: holds NaN or infinity"):
            part[rows]
    assert matrix.take(np.arange(30, 50)).number(11) == 41
    assert len(matrix[0:41]) == 41
    x[41, 2] = -1e39
    with pytest.raises(FastflowError, match=r"row 41: holds NaN or infinity, or what float32 cannot hold"):
        matrix[40:44]
    x[41, 2:] = np.finfo(np.float32).max, np.finfo(np.float32).tiny
    assert np.isfinite(matrix[40:44]).all()
    with pytest.raises(FastflowError, match=r"^v: a masked array would be read without its mask"):
        MatrixRows(np.ma.masked_less(x, 0), "v")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(4, np.float32), r"a matrix \(N, D\), and this has the shape \(4,\)"),
        (np.float32(3), r"the shape \(\)"),
        (np.zeros((2, 3, 4)), r"the shape \(2, 3, 4\)"),
        (np.zeros((5, 0)), r"the shape \(5, 0\)"),
        (np.zeros((2, 3), np.int64), "float16, float32, float64, and this holds 'int64'"),
        (np.zeros((2, 3), np.uint8), "holds 'uint8'"),
        (np.zeros((2, 3), complex), "holds 'complex128'"),
        (np.zeros((2, 3), "U3"), "holds 'str"),
        (np.zeros((2, 3), "f4,f4"), "holds 'void"),
        (np.array([[1, "a"]], object), "holds 'object'"),
    ],
)
def test_an_array_of_another_kind(tmp_path, array, message):
    with pytest.raises(FastflowError, match=rf"x\.npy: vectors .*{message}"):
        MatrixFile(saved(tmp_path / "x.npy", np.asarray(array)))


def header(shape, descr="<f4"):
    out = io.BytesIO()
    out.write(npy.magic(1, 0))
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}".ljust(117).encode() + b"\n"
    return out.getvalue() + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a .npy file: EOF"),
        (b"\x93NUMPY", "is not a .npy file: EOF"),
        (b"a text\n" * 9, "is not a .npy file: the magic string is not correct"),
        (b"PK\x03\x04" + bytes(200), "is not a .npy file"),
        (b"\x93NUMPY\x03\x00" + bytes(80), "version 3.0 of .npy is of tables"),
        (header((3, 4)) + bytes(47), "is damaged: its header says (3, 4) of float32, and its 175 bytes differ"),
        (header((3, 4)) + bytes(49), "is damaged"),
        (header((2**62, 4)), "is damaged"),
        (header((10**30, 4)), "is damaged"),
        (header((3, 2**40)), "the shape"),
        (header((-1, 4)), "the shape"),
        (header((3, -4)), "the shape"),
        (header("x"), "is not a .npy file: shape is not valid"),
        (header((3, 4), "<f3"), "is not a .npy file"),
        (header((3, 4), "|O") + b"cos\nsystem\n(S'true'\ntR.", "this holds 'object'"),
        (header((3, 4)).replace(b"shape", b"sha\xffe"), "is not a .npy file"),
        (b"\x93NUMPY\x01\x00\xff\xff" + b"[" * 65_535, "is not a .npy file"),
        (header((3, 4)).replace(b"),", b"(,"), "is not a .npy file"),  # tokenize raises TokenError
        (header((3, 4)).replace(b" 'shape'", b"b'shape'"), "is not a .npy file"),  # TypeError: its keys have no order
    ],
)
def test_a_file_that_lies(tmp_path, content, message):
    (tmp_path / "x.npy").write_bytes(content)
    refuses(MatrixFile, str(tmp_path / "x.npy"), message)


def test_paths_of_no_matrix(tmp_path):
    (tmp_path / "folder.npy").mkdir()
    for path in ("-", "x.npz", "x.npy.gz"):
        refuses(MatrixFile, path, "vectors come as a .npy file")
    for name, why in {"absent": "No such file", "folder": "Is a dir"}.items():
        refuses(MatrixFile, str(tmp_path / f"{name}.npy"), f"cannot be opened: {why}")


@pytest.mark.parametrize("change", ["longer", "shorter", "touched"])
def test_a_file_that_changes_while_it_is_read(tmp_path, change):
    path = tmp_path / "x.npy"
    with MatrixFile(saved(path, make_vectors(4000, 16))) as source:
        blocks = source.blocks(100)
        next(blocks)
        size = path.stat().st_size
        if change == "touched":
            os.utime(path, ns=(1, 1))
        else:
            os.truncate(path, 8192 if change == "shorter" else size + 4)  # in place, as another program would
        with pytest.raises(FastflowError, match="was changed while it was read"):
            next(blocks)
        with pytest.raises(FastflowError, match="was changed while it was read"):
            source.matrix[3990:]


def test_pages_are_given_back_and_rows_stay_right(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "HELD", 1000)
    x = make_vectors(3000, 16)
    with MatrixFile(saved(tmp_path / "x.npy", x)) as source:
        assert np.array_equal(np.concatenate(list(source.blocks(64))), x)
        rows = np.random.default_rng(0).permutation(3000)
        assert np.array_equal(np.concatenate([source.matrix[rows[i : i + 50]] for i in range(0, 3000, 50)]), x[rows])


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path, run_python):
    path, rows = tmp_path / "x.npy", 1 << 20
    path.write_bytes(header((rows, 128)))
    os.truncate(path, 128 + rows * 512)  # 512 MB, none of it on disk
    before = "from fastflow.files.read.matrix import MatrixFile; source = MatrixFile(sys.argv[1])"
    work = "with source: sum(float(block[0, 0]) for block in source.blocks(4096))"
    assert grown(run_python, before, work, path) < 150_000
