"""Ray Data: a Dataset with one more column, the embeddings, computed by actors that hold one Runtime each.

>>> import ray.data
>>> from fastflow.integrations.ray import embed
>>> embed(ray.data.read_parquet("corpus.parquet"), None, "text", concurrency=4).write_parquet("vectors")
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastflow.errors import FastflowError, UsageError
from fastflow.files.encoding import stored
from fastflow.files.read.records import listed
from fastflow.integrations.ray_cluster import check_column, ray_data, texts_of
from fastflow.model.artifact import DEFAULT, named
from fastflow.runtime import Runtime
from fastflow.stages.vectors import check_count, check_truncation
from fastflow.streaming import WINDOW

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray
    from ray.data import Dataset


@dataclass(frozen=True)
class Job:
    """What every actor is told to do; ``model`` is a path or a Hub id, None for the model in the package.

    ``numbers``: fingerprint, backend and dtype of the model as the driver opened it; an actor that finds others raises.
    """

    model: str | None
    numbers: dict[str, str]
    column: str
    output_column: str
    options: dict[str, Any]  # of Runtime.encode
    threads: int


class Embedder:
    """The actor: a pyarrow.Table -> the same rows with their embeddings, a list of fixed size, as last column.

    Raises a FastflowError if the model on its node is not the driver's, and for a column without texts.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._runtime = open_checked(job)

    def __call__(self, table: pa.Table) -> pa.Table:
        job = self._job
        check_column(table.schema.names, table.schema.types, job.column, job.output_column)
        vectors = self._runtime.encode(texts_of(table, job.column), **job.options)
        return table.append_column(job.output_column, fixed_lists(stored(vectors)))


def embed(
    dataset: Dataset,
    model: str | os.PathLike[str] | None,
    column: str,
    *,
    output_column: str = "embedding",
    precision: str = "float32",
    dim: int | None = None,
    normalize: bool = False,
    prompt: str | None = None,
    dtype: str = "auto",
    batch_size: int = WINDOW,
    num_cpus: int = 1,
    concurrency: int | None = None,
) -> Dataset:
    """The ``dataset`` with the embeddings of the texts in ``column`` as one more column, a list of fixed size.

    Each row has the bytes that ``Runtime.encode`` gives its text. Like every transformation of a Dataset this one is
    lazy; Ray does not keep the order of rows unless its ``preserve_order`` is set.

    ``model``: a directory that every node has under this path, a Hub id in every node's cache, or None for the model in
    the package. Each actor opens it and raises if its fingerprint or arithmetic is not the driver's. ``precision``,
    ``dim``, ``normalize``, ``prompt`` and ``dtype`` are those of ``fastflow embed``.
    ``num_cpus``: CPUs of an actor and threads of its Runtime, whatever OMP_NUM_THREADS is. ``concurrency``: the most
    actors; None leaves it to Ray. ``batch_size``: the rows that an actor takes at once.

    Raises a FastflowError, before anything is computed, for a model that cannot be opened, a column that is not there
    or holds no text, and options that the model does not have.
    """
    data = ray_data("fastflow.integrations.ray.embed")
    if not isinstance(dataset, data.Dataset):
        raise UsageError(f"embed takes a ray.data.Dataset, not {type(dataset).__name__}")
    check_count("batch_size", batch_size)
    options = {"precision": precision, "truncate_dim": dim, "normalize_embeddings": normalize, "prompt": prompt}
    job = job_of(model, dtype, column, output_column, options, num_cpus)
    if (schema := dataset.schema()) is not None:
        check_column(schema.names, schema.types, column, output_column)
        check_checkpoint(dataset, schema.names)
    return mapped(dataset, Embedder, job, batch_size, concurrency)


def mapped(
    dataset: Dataset, actor: type[Embedder], job: Job, batch_size: int = WINDOW, concurrency: int | None = None
) -> Dataset:
    """``dataset`` through a pool of at most ``concurrency`` actors."""
    check_count("concurrency", concurrency)
    data = ray_data("fastflow.integrations.ray")
    return dataset.map_batches(
        actor,
        fn_constructor_kwargs={"job": job},
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=data.ActorPoolStrategy(min_size=1, max_size=concurrency),
        num_cpus=job.threads,
        udf_modifying_row_count=False,
    )


def job_of(
    model: str | os.PathLike[str] | None,
    dtype: str,
    column: str,
    output_column: str,
    options: dict[str, Any],
    threads: int,
    dim: str = "dim",
) -> Job:
    """The job, once the driver has opened the model and tried the options on no text; ``dim`` names truncate_dim."""
    check_count("num_cpus", threads)
    place = None if model is None or named(str(model)) == DEFAULT else os.fspath(model)
    if place is not None and os.path.exists(place):
        place = os.path.abspath(place)  # an actor has another working directory
    with Runtime(place, "cpu", dtype, threads) as runtime:
        check_truncation(options.get("truncate_dim"), runtime._opened.width, dim)
        runtime.encode([], **options)
        return Job(place, numbers_of(runtime), column, output_column, options, threads)


def numbers_of(runtime: Runtime) -> dict[str, str]:
    """The properties that decide a model's vectors: fingerprint, backend and arithmetic."""
    return {"fingerprint": runtime.fingerprint, "backend": runtime.backend, "dtype": str(runtime.info()["dtype"])}


def open_checked(job: Job) -> Runtime:
    """The Runtime of an actor; raises a FastflowError if it is not what the driver opened."""
    runtime = Runtime(job.model, "cpu", job.numbers["dtype"], job.threads)
    for name, here in numbers_of(runtime).items():
        if here != job.numbers[name]:
            mend = "give every node the same files" if name == "fingerprint" else "install fastflow there as here"
            raise FastflowError(
                f"{job.model or 'the model in the package'} has the {name} {here} on the node {os.uname().nodename}, "
                f"and {job.numbers[name]} where the job was started: {mend}"
            )
    return runtime


def check_checkpoint(dataset: Dataset, names: list[str]) -> None:
    """Raise a UsageError where Ray's checkpointing is on, and its id column is not in the data."""
    config = dataset.context.checkpoint_config
    if config is not None and config.id_column not in names:
        raise UsageError(
            f"the checkpoint's id_column {config.id_column!r} is not in the dataset; its columns are {listed(names)}"
        )


def fixed_lists(vectors: NDArray[Any]) -> pa.FixedSizeListArray:
    """(n, D') as an Arrow array of n lists; their field has Parquet's name for it."""
    import pyarrow as pa

    kind = pa.list_(pa.field("element", pa.from_numpy_dtype(vectors.dtype)), vectors.shape[1])
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), type=kind)
