"""Train a model on texts with an encoder, or on vectors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fastflow.train.options import DEFAULTS, Paths, check_extra

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from fastflow.train.distil.deep import DistilledLayers
    from fastflow.train.distil.run import Distilled
    from fastflow.train.export.result import Fit
    from fastflow.types import Calibration, FitOptions


def fit(
    texts: Iterable[str] | NDArray[Any],
    encoder: str | os.PathLike[str] = "untuned",
    method: str = DEFAULTS.method,
    pooling: str = DEFAULTS.pooling,
    token_weights: str = DEFAULTS.token_weights,
    seed: int = DEFAULTS.seed,
    eval: Paths | None = None,
    progress: bool | Callable[[str], None] | None = None,
    *,
    groups: Iterable[Any] | None = None,
    cache_folder: str | os.PathLike[str] | None = None,
    log_dir: str | os.PathLike[str] | None = None,
    calibration: Calibration | None = None,
    **options: Unpack[FitOptions],
) -> Fit:
    """Calibrate an encoder on texts, without labels, as fastflow-train does.

    It needs the ``train`` extra.

    Args:
        texts: An iterable of str, never paths; blank ones are left out, repeated ones count once. Or vectors (N, D) of
            float16, float32 or float64, without options that need an encoder or texts.
        encoder: A BERT-family encoder or a token table: a directory, a Hub id, ``untuned``, ``small`` or ``static``.
        method: auto; none, for token weights only; or a chain of standardize, whiten[:K], components[:K],
            nullspace[:K], flow, recolour, such as ``whiten:128,flow``. ``auto`` is groups if they are given, else a
            flow for texts, and nullspace for vectors. Recolour follows a flow, unless ``latent=True``.
        pooling: auto, last, first-last or another that fastflow-train names.
        token_weights: auto, sif or none.
        seed: Equal seeds give equal models.
        eval: Files or folders of scored pairs, to measure Spearman on.
        progress: True shows lines and bars on standard error; a function takes every line. Warnings are UserWarnings.
        groups: The group of each text or vector, such as its language; the method groups[:K], perhaps first in a chain,
            removes the directions between the groups' means.
        cache_folder: A folder that keeps pooled embeddings; None keeps them in memory.
        log_dir: A folder for TensorBoard's scalars.
        calibration: In place of a method, an object with ``fit(X)`` and ``transform(X)``, X float32 (n, D), such as
            scikit-learn's PCA. A linear map can be saved and exported; any other runs in Python only.
        **options: Other options of fastflow-train, such as ``depth`` or ``background``.

    Returns:
        A Fit: ``report``, ``stages``, ``save(directory)``, ``runtime()``.

    Raises:
        UsageError: An option is wrong.
        FastflowError: Texts, vectors or encoder cannot be fitted.

    Example:
        >>> import numpy as np
        >>> vectors = np.random.default_rng(0).normal(size=(500, 32))
        >>> fit = fastflow.fit(vectors)
        >>> fit.runtime().transform(vectors[:3]).shape
        (3, 32)
        >>> fit = fastflow.fit(open("corpus.txt"), "my-bert")  # doctest: +SKIP
        >>> fit.save("my-model")  # doctest: +SKIP
    """
    check_extra("fastflow.fit")
    from fastflow.train.arguments import run_fit

    named = {"method": method, "pooling": pooling, "token_weights": token_weights, "seed": seed}
    beside = {"own": calibration, "groups": groups}
    return run_fit(texts, encoder, named | options, eval, progress, cache_folder, log_dir, **beside)


def distill(
    model: str | os.PathLike[str],
    texts: Iterable[str],
    dim: int | None = None,
    words: int = 0,
    dtype: str = "float32",
    penalty: float | None = None,
    seed: int = DEFAULTS.seed,
    progress: bool | Callable[[str], None] | None = None,
    *,
    layers: int = 0,
    minutes: float = 30.0,
    start: str | None = None,
) -> Distilled | DistilledLayers:
    """Make a token table, or a BERT of a few layers, that approximates a model, as ``fastflow distill`` does.

    It needs the ``train`` extra.

    Args:
        model: The teacher: the path of a model of texts, ``default`` or ``static``.
        texts: An iterable of str in a fixed order, never paths; blank ones are left out.
        dim: Dimensions of a vector; None: the teacher's.
        words: How many frequent words that the tokenizer splits get own vectors.
        dtype: The table's storage: float32, float16 or int8.
        penalty: How strongly vectors are held near a first estimate; None: the best on held-out sentences.
        seed: Chooses the held-out sentences.
        progress: As in ``fit``.
        layers: Layers of the model; 0: a table.
        minutes: How long layers are trained.
        start: A table, or a model with layers, to begin at; None: a table of the texts.

    Returns:
        A Distilled or DistilledLayers: ``report``, ``save(directory)``, ``runtime()``.

    Raises:
        UsageError: An option is wrong.
        FastflowError: The teacher cannot run, or the texts are too few.

    Example:
        >>> table = fastflow.distill("untuned", open("corpus.txt"))  # doctest: +SKIP
        >>> table.save("my-table")  # doctest: +SKIP
    """
    check_extra("fastflow.distill")
    from fastflow.train.arguments import run_distil

    options = {"dim": dim, "words": words, "dtype": dtype, "penalty": penalty, "seed": seed}
    options |= {"layers": layers, "minutes": minutes, "start": start}
    return run_distil(model, texts, options, progress)
