"""Find the nearest rows of a file of embeddings, by brute force."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastflow.errors import FastflowError
from fastflow.search.index import Index as Index
from fastflow.search.source import Hit as Hit


def to_pandas(hits: Sequence[Hit]) -> Any:
    """Return hits as a DataFrame: a column for each part of a Hit, and for each kept field."""
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise FastflowError("hits as a DataFrame need pandas: pip install pandas") from error
    return DataFrame([{**hit._asdict(), **hit.fields} for hit in hits]).drop(columns="fields", errors="ignore")
