"""Write embeddings to a .csv, as RFC 4180 quotes it."""

from __future__ import annotations

import csv
import io
from typing import IO

from fastflow.files.write import Block, number_list
from fastflow.files.write.json_columns import as_text
from fastflow.files.write.outputs import OutputFile


class CsvFile(OutputFile):
    """Writes .csv: row, id, text, kept fields, ``embedding``; cells are text or JSON, null is empty."""

    own = ("row", "text", "embedding")

    def encode(self, block: Block) -> bytes:
        columns = {"row": block.rows, **block.ids, "text": block.texts, **block.kept}
        cells = [as_text(values) for values in columns.values()]
        out = io.StringIO(newline="")
        writer = csv.writer(out)
        if self._handle.tell() == 0:
            writer.writerow([*columns, "embedding"])
        writer.writerows(zip(*cells, map(number_list, block.vectors), strict=True))
        return out.getvalue().encode("utf-8")


def read_head(handle: IO[bytes]) -> bytes:
    """Read the header; its names may hold line ends."""
    head = handle.readline()
    while head.count(b'"') % 2:
        head += handle.readline()
    return head
