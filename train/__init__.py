"""Training: a corpus and a frozen encoder, or vectors alone -> a calibrated model.

It needs the ``train`` extra (torch, transformers).

``fit`` is the way in from Python; ``fits.fitting.calibrate`` is the map of a fit, one line a step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fastflow.train.options import DEFAULTS, Paths, check_extra

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fastflow.train.distil.result import Distilled
    from fastflow.train.ship.fit import Fit


def fit(
    texts: Iterable[str] | NDArray[Any],
    encoder: str | os.PathLike[str] = "default",
    method: str = DEFAULTS.method,
    pooling: str = DEFAULTS.pooling,
    token_weights: str = DEFAULTS.token_weights,
    seed: int = DEFAULTS.seed,
    eval: Paths | None = None,
    progress: bool | Callable[[str], None] | None = None,
    *,
    cache_folder: str | os.PathLike[str] | None = None,
    log_dir: str | os.PathLike[str] | None = None,
    stop: str | None = None,
    max_length: int | None = DEFAULTS.max_length,
    levels: int = DEFAULTS.levels,
    depth: int | None = DEFAULTS.depth,
    width: int | None = DEFAULTS.width,
    coupling: str = DEFAULTS.coupling,
    permutation: str = DEFAULTS.permutation,
    spectrum: float | None = DEFAULTS.spectrum,
    mean_share: float | None = DEFAULTS.mean_share,
    demoted: int | None = DEFAULTS.demoted,
    latent: bool = DEFAULTS.latent,
    background: int | None = DEFAULTS.background,
    background_words: str | None = DEFAULTS.background_words,
    init: str = DEFAULTS.init,
    encoder_dropout: bool = DEFAULTS.encoder_dropout,
    epochs: float = DEFAULTS.epochs,
    batch_size: int = DEFAULTS.batch_size,
    lr: float = DEFAULTS.lr,
    sample: int | None = DEFAULTS.sample,
    sentences: bool = DEFAULTS.sentences,
    stream: bool = DEFAULTS.stream,
    device: str = DEFAULTS.device,
    **unknown: object,
) -> Fit:
    """Calibrate an encoder on texts, without labels: the model that fastflow-train makes of the same texts.

    It needs the ``train`` extra (torch, transformers).

    Args:
        texts: An iterable of str, never paths; blank ones are left out and repeated ones count once. Or an array (N, D)
            of float16, float32 or float64, vectors made elsewhere: the model then has no encoder and calibrates vectors
            alone, options that need an encoder or texts are refused by name, ``auto`` is one fixed method, and ``stop``
            is likelihood (of held-out vectors) or budget.
        encoder: A BERT-family encoder, or a token table: a directory or a Hub id; ``default`` and ``static`` are those
            in the package.
        method: auto; none, token weights alone, for texts only; or a chain of standardize, whiten[:K], components[:K],
            nullspace[:K], flow, recolour, such as ``whiten:128`` or ``flow,recolour``. ``auto`` is a flow with recolour
            for texts, and nullspace for vectors. A flow gets recolour after it, unless ``latent=True``.
        pooling: auto, last, first-last or another that fastflow-train names.
        token_weights: auto, sif or none.
        seed: Of every random choice; equal seeds give equal models.
        eval: A file or folder of scored pairs, or several, to measure Spearman on.
        progress: True shows the command's lines and bars on standard error; a function takes every line; None shows
            none. Warnings of the report, and the refusal of a named method, are UserWarnings in any case.
        cache_folder: A folder that keeps pooled embeddings, float32 (n, D). None holds them in memory, without a
            file.
        log_dir: A folder for TensorBoard's scalars.
        stop: rule, budget or likelihood. None: rule for texts, and likelihood for vectors.
        max_length: The tokens after which a text is cut. None: 128, or the encoder's limit.
        levels: Of a flow.
        depth: Steps in a level of a flow. None: 3, or 6 with a background or from 20,000 texts.
        width: Hidden units of a flow's coupling nets. None: 32, or 64 with a background or from 20,000 texts.
        coupling: Of a flow: additive or affine.
        permutation: Of a flow: reversal, random or lu, which is learned.
        spectrum: Of recolour: 1, all directions count the same, to 0, as in the encoder. None: by the token weights.
        mean_share: Of recolour: the average cosine of unrelated texts. None: by the token weights.
        demoted: Of recolour: the leading directions that count like the last. None: by the token weights.
        latent: Whether a flow's Gaussian latent is the embedding, as in the paper; no recolour follows.
        background: Sentences of random words that recolour is fitted to with the texts. None: the usual ones.
        background_words: A file of the words of the texts' language and how often each occurs. None: English.
        init: Of a flow: data or glorot.
        encoder_dropout: Whether a flow sees the encoder with its dropout, which is slow.
        epochs: Of a flow: passes over the texts, or a part of one.
        batch_size: Of a flow: texts in a step.
        lr: Of a flow: learning rate.
        sample: The distinct texts to draw at random. None: all.
        sentences: Whether to cut texts into sentences first.
        stream: Whether to read the texts once, in constant memory; not for a flow.
        device: Where the encoder runs: cpu or cuda.
        **unknown: Refused: there are no other options.

    Returns:
        A Fit: ``report``, ``stages``, ``save(directory)``, ``runtime()``.

    Raises:
        UsageError: An option is wrong.
        FastflowError: Nothing can be fitted to the texts, the vectors or the encoder.

    Example:
        >>> import numpy as np
        >>> vectors = np.random.default_rng(0).normal(size=(500, 32)).astype(np.float32)
        >>> fit = fastflow.fit(vectors)
        >>> fit.runtime().transform(vectors[:3]).shape
        (3, 32)
        >>> fit.save("my-model")  # doctest: +SKIP
        >>> fit = fastflow.fit(open("corpus.txt"), "my-bert")  # doctest: +SKIP
    """
    given = dict(locals())
    check_extra("fastflow.fit")
    from fastflow.train.python import fit_texts, options_of

    return fit_texts(texts, encoder, options_of(given), eval, progress, cache_folder, log_dir)


def distill(
    model: str | os.PathLike[str],
    texts: Iterable[str],
    dim: int | None = None,
    words: int = 0,
    dtype: str = "float32",
    penalty: float | None = None,
    seed: int = DEFAULTS.seed,
    progress: bool | Callable[[str], None] | None = None,
) -> Distilled:
    """Make a token table that follows a model, without labels: the model that ``fastflow distill`` makes of the texts.

    It needs the ``train`` extra (torch, transformers, scipy).

    Args:
        model: The teacher: the path of any model of texts that fastflow runs; ``default`` and ``static`` are those in
            the package.
        texts: An iterable of str in a fixed order, never paths; blank ones are left out.
        dim: The numbers of a vector; None for as many as the teacher's.
        words: How many of the most frequent words that the tokenizer cuts into pieces get rows of their own.
        dtype: How the table is stored: float32, float16 or int8.
        penalty: How closely the table stays at its prior. None: what follows the teacher best on held-out sentences.
        seed: Chooses the sentences that are held out.
        progress: As in ``fit``.

    Returns:
        A Distilled: ``report``, ``save(directory)``, ``runtime()``.

    Raises:
        UsageError: An option is wrong.
        FastflowError: The teacher cannot run, or the texts are too few.

    Example:
        >>> texts = [f"A {colour} {animal}." for colour in ("red", "green", "blue") for animal in ("cat", "dog") * 40]
        >>> fastflow.distill("default", texts).runtime().encode(texts[:3]).shape  # doctest: +SKIP
        (3, 256)
    """
    check_extra("fastflow.distill")
    from fastflow.train.distil.python import distil_texts

    options = {"dim": dim, "words": words, "dtype": dtype, "penalty": penalty, "seed": seed}
    return distil_texts(model, texts, options, progress)
