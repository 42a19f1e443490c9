"""Ray Data: a Dataset with one more column, the embeddings, computed by actors that hold one Runtime each.

>>> import ray.data
>>> from fastflow.integrations.ray import embed
>>> embed(ray.data.read_parquet("corpus.parquet"), None, "text", concurrency=4).write_parquet("vectors")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastflow.errors import FastflowError, UsageError
from fastflow.files.encoding import stored
from fastflow.files.read.records import listed
from fastflow.integrations.ray_cluster import check_column, ray_data, sentences, texts_of
from fastflow.model.artifact import DEFAULT, named
from fastflow.options import WINDOW
from fastflow.runtime import Runtime
from fastflow.stages.vectors import check_count, check_truncation
from fastflow.values import short

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray
    from ray.data import Dataset

    from fastflow.integrations.ray_fit import Pool
    from fastflow.train.distil.result import Distilled
    from fastflow.train.ship.fit import Fit


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


def fit(
    dataset: Dataset,
    encoder: str | os.PathLike[str],
    column: str,
    method: str = "auto",
    *,
    num_cpus: int = 1,
    concurrency: int | None = None,
    progress: bool | Callable[[str], None] | None = None,
    **options: Any,
) -> Fit:
    """Calibrate ``encoder`` on the texts in ``column``, as ``fastflow.fit`` does; the same bits on any number of nodes.

    Closed forms, such as whiten,recolour, are fitted to the statistics of all texts, in two passes. A flow, which
    ``auto`` is, trains here on ``sample`` distinct texts, 100,000 unless asked otherwise, chosen by a hash of the text.
    ``encoder`` is a directory that every node has, a Hub id, or ``default``. ``options`` are those of ``fastflow.fit``;
    ``num_cpus`` and ``concurrency`` those of ``embed``, None for all CPUs of the cluster but one.
    Raises a FastflowError as ``fastflow.fit`` does, for a column without texts, and for texts that differ between the
    passes.
    """
    if not isinstance(encoder, str | os.PathLike):
        raise UsageError(f"an encoder is a directory, a Hub id or 'default', not {short(encoder)}: give 'default'")
    texts, workers = _read(dataset, column, num_cpus, concurrency, "fit")
    from fastflow.train.python import fit_sharded

    place = os.path.abspath(encoder) if os.path.isdir(encoder) else os.fspath(encoder)
    with sentences():
        return fit_sharded(texts, place, {"method": method, **options}, progress, workers)


def distill(
    dataset: Dataset,
    model: str | os.PathLike[str],
    column: str,
    dim: int | None = None,
    words: int = 0,
    dtype: str = "float32",
    penalty: float | None = None,
    seed: int = 0,
    progress: bool | Callable[[str], None] | None = None,
    *,
    num_cpus: int = 1,
    concurrency: int | None = None,
) -> Distilled:
    """Make a token table of ``model`` by the texts in ``column``, as ``fastflow.distill`` does, to the same bits.

    Actors run the model, whose files every node has; the driver adds up and solves. ``num_cpus`` and ``concurrency``
    are those of ``fit``. Raises a FastflowError as ``fastflow.distill`` does, and for a column without texts.
    """
    options = {"dim": dim, "words": words, "dtype": dtype, "penalty": penalty, "seed": seed}
    texts, workers = _read(dataset, column, num_cpus, concurrency, "distill")
    from fastflow.train.distil.python import distil_texts

    with sentences():
        return distil_texts(model, texts, options, progress, workers)


def _read(
    dataset: Dataset, column: str, num_cpus: int, concurrency: int | None, function: str
) -> tuple[Callable[[], Iterator[str]], Pool]:
    """The texts of ``column`` as often as they are asked for, and actors that work on them for ``function``."""
    data = ray_data(f"fastflow.integrations.ray.{function}")
    if not isinstance(dataset, data.Dataset):
        raise UsageError(f"{function} takes a ray.data.Dataset, not {type(dataset).__name__}")
    from fastflow.train.options import check_extra

    check_extra(f"fastflow.integrations.ray.{function}")
    from fastflow.integrations.ray_fit import Pool, texts_in_order

    return texts_in_order(dataset, column), Pool(num_cpus, concurrency, reading=1)


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
        check_truncation(options.get("truncate_dim"), runtime.session.width, dim)
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
