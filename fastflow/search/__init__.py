"""Find the nearest rows of a file of embeddings, by brute force."""

from __future__ import annotations

from fastflow.search.index import Index as Index
from fastflow.search.source import Hit as Hit
