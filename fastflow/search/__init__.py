"""Nearest rows of a file of embeddings by brute force: no server, no index to build.

``Index`` opens a file and is all that callers need; ``Hit`` is a row that it found.
"""

from __future__ import annotations

from fastflow.search.index import Index as Index
from fastflow.search.source import Hit as Hit
