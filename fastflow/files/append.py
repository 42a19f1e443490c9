"""Write texts of a program into a .db, as ``fastflow embed --append`` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastflow.errors import UsageError
from fastflow.files import Settings
from fastflow.files.embed import describe_file, numbers_of
from fastflow.files.read import Layout, Record
from fastflow.files.read.sources import Row
from fastflow.files.windows import Encoder, characters
from fastflow.files.write import Block
from fastflow.files.write.appending import AppendedFile, has_run
from fastflow.files.write.database_schema import reading, run_of
from fastflow.options import WINDOW, check_texts, cut_windows, iterate_in_order
from fastflow.runtime import Runtime


def append_texts(
    runtime: Runtime, path: Path, texts: Sequence[str], ids: Sequence[Any] | None, fields: Mapping[str, Sequence[Any]]
) -> dict[str, int]:
    """Embed ``texts`` as the .db ``path`` was made; return the counts of rows written."""
    texts = list(check_texts(iterate_in_order(texts)))
    for name, values in (("ids", ids), *fields.items()):
        if values is not None and len(values) != len(texts):
            raise UsageError(f"{name} has {len(values)} values for {len(texts)} texts: give one for each text")
    run = _read_run(path)
    if (ids is None) != (run["id_field"] is None):
        raise UsageError(f"{path} has {'no ids: leave ids out' if run['id_field'] is None else 'ids: give ids='}")
    layout = Layout(field=run["text_field"], id_field=run["id_field"], keep=tuple(fields))
    settings = Settings(layout, run["precision"], run["truncate_dim"], bool(run["normalized"]), prompt=run["prompt"])
    encoder = Encoder(runtime, settings, WINDOW)

    def embed(at: Sequence[int]) -> Block:
        given = [texts[i] for i in at]
        named = {} if ids is None else {str(run["id_field"]): [ids[i] for i in at]}
        return Block(at, given, encoder(given), named, {name: [v[i] for i in at] for name, v in fields.items()})

    key = numbers_of(runtime, settings.precision, settings.normalize)
    with AppendedFile(path, key, layout, "text", False) as writer:
        writer.about = describe_file(runtime, settings)
        writer.write(embed([]))
        kept = zip(*fields.values(), strict=True) if fields else [()] * len(texts)
        records = zip(texts, ids or [None] * len(texts), kept, strict=True)
        rows = (Row(i, "Index.add", Record((text,), each, i, more)) for i, (text, each, more) in enumerate(records))
        for some in cut_windows(writer.pick_changed(rows, WINDOW), WINDOW, characters):
            writer.write(embed([row.number for row in some]))
        writer.finish()
    return writer.counts


def delete_rows(path: Path, keys: Sequence[Any]) -> int:
    """Delete rows by ids, or in a file without ids by texts; return their number."""
    layout = Layout(id_field=_read_run(path)["id_field"])
    with AppendedFile(path, {}, layout, "text", False) as writer:
        return writer.delete(list(iterate_in_order(keys)))


def _read_run(path: Path) -> dict[str, Any]:
    has_run(path)
    with reading(path) as db:
        return dict.fromkeys(("id_field", "text_field", "truncate_dim", "normalized", "prompt")) | run_of(db, path)
