"""Ray on a real cluster, a CPU each for actors and for files: rows are those of one process."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastflow import Runtime
from fastflow.errors import UsageError
from fastflow.integrations.ray import embed, job_of, mapped

from support.builders import make_sentences
from support.places import USERS
from support.processes import run_limited
from support.rays import CLIENTS, SETTINGS, failing, finished, mortal, started
from support.refusals import refuses

pytestmark = pytest.mark.whole
ROWS, BATCH = 2000, 50


@pytest.fixture(scope="module")
def address():
    home = Path.home() / ".ray"
    before = home.exists()
    with started(cpus=4) as address:  # of a job that failed, Ray keeps an actor as long as this process lives
        yield address
    assert home.exists() == before, "Ray wrote into the home directory"


@pytest.fixture(scope="module")
def texts():
    return make_sentences(ROWS, seed=5)


@pytest.fixture(scope="module")
def source(tmp_path_factory, texts):
    """Two files, each of row groups of 100 rows."""
    folder = tmp_path_factory.mktemp("in")
    for name, start in (("a", 0), ("b", ROWS // 2)):
        part = slice(start, start + ROWS // 2)
        table = pa.table({"key": [f"k{i}" for i in range(ROWS)[part]], "text": texts[part]})
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=100)
    return folder


@pytest.fixture(scope="module")
def want(model, texts):
    return dict(zip(texts, Runtime(model, "cpu").encode(texts), strict=True))


def check_rows(table, want):
    """Every text once, with the bytes that the Runtime gives it."""
    assert sorted(table.column("text").to_pylist()) == sorted(want)
    column = table.column("embedding").combine_chunks()
    vectors = column.flatten().to_numpy().reshape(len(table), -1)
    for text, vector in zip(table.column("text").to_pylist(), vectors, strict=True):
        assert vector.tobytes() == want[text].tobytes(), text


def read(source):
    import ray.data

    return ray.data.read_parquet(str(source))


def test_embeddings_of_a_dataset(address, source, model, want, tmp_path):
    out = embed(read(source), model, "text", batch_size=BATCH, concurrency=2)
    out.write_parquet(str(tmp_path / "out"))
    check_rows(pq.read_table(tmp_path / "out"), want)


def test_an_actor_killed_in_the_middle_loses_and_doubles_nothing(address, source, model, want, texts, tmp_path):
    mark = tmp_path / "killed"
    job = job_of(model, "auto", "text", "embedding", {}, 1)
    dataset = read(source).repartition(20)
    mapped(dataset, mortal(mark, texts[1000]), job, BATCH, 2).write_parquet(str(tmp_path / "out"))
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)
    check_rows(pq.read_table(tmp_path / "out"), want)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"model": "no-such-model"}, "no-such-model: no such model directory"),
        ({"column": "body"}, "the dataset has no column 'body'; its columns are key, text"),
        ({"output_column": "key"}, "has a column 'key' already"),
        ({"batch_size": 0}, "batch_size must be a whole number"),
        ({"concurrency": 0}, "concurrency must be a whole number"),
        ({"dim": 9999}, "dim must be 1 to 256"),
    ],
)
def test_what_cannot_be_is_refused_before_the_cluster_computes(address, source, options, sentence):
    refuses(embed, read(source), sentence, **{"model": None, "column": "text", **options})


def test_the_sentence_of_an_actor_reaches_the_user(address, model):
    import ray

    broken = ray.data.from_items([{"text": "a dog"}, {"text": None}])
    with pytest.raises(ray.exceptions.RayError, match=r"fastflow.errors.FastflowError: the column 'text' is null in 1"):
        embed(broken, model, "text").materialize()


def command(*words, module="fastflow", env=CLIENTS):
    program = f"from {module}.cli import main; main()"
    return run_limited([sys.executable, "-c", program, *words], seconds=300, env=USERS | env)


def test_the_command_writes_a_folder_of_numbered_rows(address, source, model, texts, want, tmp_path):
    options = ["-m", model, "--ray", address, "--id-field", "key", "--keep", "text"]
    done = command("embed", source, "-o", tmp_path / "out", *options)
    assert done.returncode == 0, done.stderr
    assert f"2,000 texts, numbered in the column 'row'; written to {tmp_path / 'out'}" in done.stderr
    table = pq.read_table(tmp_path / "out").sort_by("row")
    assert table.schema.names == ["row", "key", "text", "embedding"]
    assert table.column("row").to_pylist() == list(range(ROWS))
    assert table.column("key").to_pylist() == [f"k{i}" for i in range(ROWS)]
    assert table.column("text").to_pylist() == texts
    check_rows(table, want)
    manifest = json.loads((tmp_path / "out" / "_fastflow.json").read_text())
    assert manifest["rows"] == ROWS
    assert manifest["run"]["fingerprint"] == Runtime(model).fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    again = command("embed", source, "-o", tmp_path / "out", *options)
    assert again.returncode == 1
    assert again.stderr.splitlines()[-1].endswith("out exists and is not empty: remove it, or choose another folder")


def test_a_cluster_that_wants_a_token_is_there_and_says_so(address, source, model, tmp_path):
    once = SETTINGS | {"RAY_gcs_server_port_wait_time_s": "1"}  # of a client: so often it asks, a second apart
    done = command("embed", source, "-m", model, "--ray", address, "-o", tmp_path / "out", env=once)
    assert done.returncode == 1
    message = f"fastflow: --ray {address}: the cluster refuses this client without its token: set RAY_AUTH_MODE=token"
    assert done.stderr.splitlines()[-1] == message
    assert list(tmp_path.iterdir()) == []


def test_a_failure_on_a_node_is_one_sentence_and_leaves_no_whole_folder(address, model, tmp_path):
    schema = pa.schema([pa.field("text", pa.string())])
    with pq.ParquetWriter(tmp_path / "in.parquet", schema, write_statistics=False) as writer:
        writer.write_table(pa.table({"text": ["a dog", None]}, schema))
    done = command("embed", tmp_path / "in.parquet", "-m", model, "--ray", address, "-o", tmp_path / "out", "--quiet")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    where = f"{tmp_path}/in.parquet, row 1"
    said = f"fastflow: {where}: field 'text' is null, not a text; fill it or remove the row"
    assert done.stderr.splitlines()[-1] == said
    assert not (tmp_path / "out").exists()
    assert json.loads((tmp_path / "out.partial" / "_fastflow.json").read_text())["rows"] is None


@pytest.fixture
def context():
    """Ray's settings, put back after the test."""
    import copy

    import ray.data

    before = copy.deepcopy(ray.data.DataContext.get_current())
    yield ray.data.DataContext.get_current()
    ray.data.DataContext._set_current(before)


def test_a_job_that_ended_continues_after_its_checkpoint(address, source, model, want, texts, tmp_path, context):
    """The first run fails at a row near the end; the second computes those that are missing, and all are there once."""
    import ray
    from ray.data.checkpoint import CheckpointConfig

    kept, out = tmp_path / "checkpoint", tmp_path / "out"
    context.checkpoint_config = CheckpointConfig("key", str(kept), delete_checkpoint_on_success=False)
    context.target_max_block_size = 60_000  # several files, of which some are written
    with pytest.raises(UsageError, match="id_column 'key' is not in the dataset; its columns are text"):
        embed(read(source).drop_columns(["key"]), model, "text")
    job = job_of(model, "auto", "text", "embedding", {}, 1)
    with pytest.raises(ray.exceptions.RayError, match="an actor that fails"):
        mapped(read(source), failing(texts[-1], kept), job, BATCH, 1).write_parquet(str(out))
    done = sum(pq.read_metadata(path).num_rows for path in finished(kept))
    assert 0 < done < ROWS
    embed(read(source), model, "text", batch_size=BATCH, concurrency=1).write_parquet(str(out))
    check_rows(pq.read_table(out), want)
