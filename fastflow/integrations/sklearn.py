"""scikit-learn: texts to embeddings as the first step of a Pipeline.

>>> from sklearn.linear_model import LogisticRegression
>>> from sklearn.pipeline import make_pipeline
>>> from fastflow.integrations.sklearn import FastflowTransformer
>>> texts = ["A cat sat.", "A dog ran.", "Shares fell.", "The bank lent."]
>>> make_pipeline(FastflowTransformer(), LogisticRegression()).fit(texts, [0, 0, 1, 1]).predict(["A kitten."])
array([0])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastflow.errors import UsageError
from fastflow.integrations.adapter import Source, check_fingerprint, ensure_runtime, library

with library("scikit-learn"):
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted

if TYPE_CHECKING:
    from fastflow.types import Matrix


class FastflowTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Transform texts to (B, dim); ``model``: a Runtime, path or Hub id; None is the packaged model.

    The other arguments are as in ``Runtime.encode``. ``fit`` only opens the model. A pickle opens its path again, and
    refuses another model.
    """

    def __init__(
        self,
        model: Source = None,
        *,
        truncate_dim: int | None = None,
        normalize_embeddings: bool = False,
        prompt_name: str | None = None,
    ) -> None:
        self.model = model
        self.truncate_dim = truncate_dim
        self.normalize_embeddings = normalize_embeddings
        self.prompt_name = prompt_name

    def fit(self, X: Any, y: Any = None) -> FastflowTransformer:  # noqa: N803, RUF100
        self.runtime_ = ensure_runtime(self.model)
        self.fingerprint_ = self.runtime_.fingerprint
        self._n_features_out = self.runtime_.encode([], truncate_dim=self.truncate_dim).shape[1]
        return self

    def transform(self, X: Any) -> Matrix:  # noqa: N803, RUF100
        check_is_fitted(self)
        if isinstance(X, str) or getattr(X, "ndim", 1) != 1:
            raise UsageError(
                "X must be one column of texts: give a ColumnTransformer 'text' as the column, not ['text']"
            )
        found: Matrix = self.runtime_.encode(
            X,
            truncate_dim=self.truncate_dim,
            normalize_embeddings=self.normalize_embeddings,
            prompt_name=self.prompt_name,
        )
        return found

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "runtime_" in state:
            check_fingerprint(self.runtime_, self.fingerprint_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags
