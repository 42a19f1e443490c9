"""Nearest rows of a file of embeddings by brute force, without a server or an index to build."""

from __future__ import annotations

from fastflow.search.index import Index as Index
from fastflow.search.source import Hit as Hit
