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
    cache: str | os.PathLike[str] | None = None,
    log_dir: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Fit:
    """Calibrate an encoder on texts, without labels: the model that fastflow-train makes of the same texts.

    It needs the ``train`` extra (torch, transformers).

    Args:
        texts: An iterable of str, never paths; blank ones are left out and repeated ones count once. Or an array (N, D)
            of float16, float32 or float64, vectors made elsewhere: the model then has no encoder and calibrates vectors
            alone, options that need an encoder or texts are refused by name, ``auto`` is one fixed method, and ``stop``
            is likelihood (of held-out vectors) or budget.
        encoder: A directory, a Hub id, or ``default``, the encoder in the package.
        method: auto; none, token weights alone, for texts only; or a chain of standardize, whiten[:K], components[:K],
            nullspace[:K], flow, recolour, such as ``whiten:128`` or ``flow,recolour``. ``auto`` is a flow with recolour
            for texts, and nullspace for vectors. A flow gets recolour after it, unless ``latent=True``.
        pooling: auto, last, first-last or another that fastflow-train names.
        token_weights: auto, sif or none.
        seed: Of every random choice; equal seeds give equal models.
        eval: A file or folder of scored pairs, or several, to measure Spearman on.
        progress: True shows the command's lines and bars on standard error; a function takes every line; None shows
            none. Warnings of the report, and the refusal of a named method, are UserWarnings in any case.
        cache: A folder that keeps pooled embeddings, float32 (n, D). None holds them in memory and writes no file.
        log_dir: A folder for TensorBoard's scalars.
        **options: The other options of fastflow-train by name: ``epochs``, ``max_length``, ``background``, ``stop`` ...

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
    check_extra("fastflow.fit")
    from fastflow.train.python import fit_texts

    named = {"method": method, "pooling": pooling, "token_weights": token_weights, "seed": seed}
    return fit_texts(texts, encoder, {**named, **options}, eval, progress, cache, log_dir)
