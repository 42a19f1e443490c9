"""``fastflow export``."""

from __future__ import annotations

from pathlib import Path

import click

from fastflow.console import say


@click.command()
@click.argument("model")
@click.option(
    "--to",
    required=True,
    type=click.Choice(["st", "onnx", "model2vec", "adapter"]),
    help="st: a directory of Sentence Transformers; onnx: one graph from token ids to the embedding, for ONNX Runtime "
    "and fastembed; model2vec: of a token table; adapter: a calibrated model without the weights of its encoder.",
)
@click.option(
    "-o", "--output", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The directory to make."
)
@click.option("--dim", type=click.IntRange(1), metavar="N", help="Keep N numbers of a vector, as embed --dim does.")
@click.option("--normalize", is_flag=True, help="Vectors of length 1, as embed --normalize gives them.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "int8"]),
    default="float32",
    help="Of onnx: how the encoder multiplies, and a table of tokens is stored.",
)
def export(model: str, to: str, output: Path, dim: int | None, normalize: bool, dtype: str) -> None:
    """Write a model in the format of another library.

    MODEL is any model of texts that fastflow runs; 'default' and 'static' are those in the package. A part that the
    format cannot hold is an error that names it.

    \b
    fastflow export default --to st -o default-st
    fastflow verify default --with st default-st
    fastflow export default --to onnx -o default-onnx --dtype int8
    """
    from fastflow.exports.export import export as write

    made = write(model, to, output, dim, normalize, dtype)
    say(f"fastflow: {made.dim} numbers a vector, {made.size / 1e6:.1f} MB; written to {made.path}")
