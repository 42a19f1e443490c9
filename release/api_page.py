"""docs/api.md: the calls that ``import fastflow`` offers, from their docstrings.

python release/api_page.py --out docs/api.md
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

import fastflow
from fastflow.atomic import replace_text
from fastflow.exports.export import Exported
from fastflow.train.arguments import COMMAND_ONLY
from fastflow.train.distil.run import Distilled
from fastflow.train.export.result import Fit
from fastflow.train.options import TrainOptions

HEADING = re.compile(r"^(Args|Returns|Yields|Raises|Example):\n", re.M)
ENTRY = re.compile(r"^    (\*{0,2}\w+(?:, \w+)*): ", re.M)
SUBJECTS: tuple[tuple[str, Any, type], ...] = (  # the name in fastflow, the call, and the class of its result
    ("Runtime", fastflow.Runtime, fastflow.Runtime), ("Index", fastflow.Index, fastflow.Index),
    ("Reranker", fastflow.Reranker, fastflow.Reranker),
    ("duplicates", fastflow.duplicates, fastflow.Duplicates), ("groups", fastflow.groups, type(None)),
    ("fit", fastflow.fit, Fit), ("distill", fastflow.distill, Distilled), ("export", fastflow.export, Exported),
)  # fmt: skip
HEAD = """# The Python API

Every public call of `import fastflow`, made from its docstring by `python release/api_page.py --out
docs/api.md`. Most programs need `Runtime.encode` and `Runtime.similarity`, and `Index.search` to find rows of a file;
`fastflow.fit` calibrates. `B` texts give `(B, D')` numbers: `D` is the width of a pooled vector, which the calibration
turns into an embedding of `D'`. Errors are a `fastflow.FastflowError`; wrong usage is a `fastflow.UsageError`, a
subclass; a warning is a `fastflow.FastflowWarning`. Types of arguments and results are in `fastflow.types`.

| `precision=` | `encode` returns | bytes of 256 dimensions |
| --- | --- | ---: |
| `float32` | float32 (B, D'); float64 of a Runtime with `dtype="float64"` | 1,024 |
| `float16` | float16 (B, D') | 512 |
| `int8`, `uint8` | int8 or uint8 (B, D') | 256 |
| `binary`, `ubinary` | int8 or uint8 (B, D'/8), the signs of eight dimensions in a byte | 32 |

| `dtype=` of Runtime | arithmetic of the encoder | backends |
| --- | --- | --- |
| `auto` | bfloat16 if the processor multiplies it and the model's record allows it, else float32 | all |
| `float32` | float32 | all |
| `bfloat16` | products in bfloat16 | cpu, triton, torch |
| `float16` | products in float16 | triton |
| `int8` | products in int8 | cpu |
| `float64` | float64 | reference, torch |

`Index` searches a `.db`, which `fastflow embed INPUT -o OUT.db` makes ([search.md](search.md)), or a `.npy` of floats.
"""


def split_docstring(doc: str) -> dict[str, str]:
    """Split a docstring in Google's form by section; "": the text before the first."""
    first, *rest = HEADING.split(inspect.cleandoc(doc))
    return {"": first.strip(), **{name: text.rstrip() for name, text in zip(rest[::2], rest[1::2], strict=True)}}


def split_section(section: str) -> dict[str, str]:
    """Return the names of a section, and the text of each on one line."""
    _, *found = ENTRY.split(section)
    texts = {names: " ".join(text.split()) for names, text in zip(found[::2], found[1::2], strict=True)}
    return {name: text for names, text in texts.items() for name in names.split(", ")}


def list_methods(thing: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public methods by name, a class's own before its bases'."""
    for base in thing.__mro__:
        for name, value in vars(base).items():
            hidden = name.startswith("_") or getattr(value, "__isabstractmethod__", False)
            if inspect.isfunction(value) and not hidden:
                yield name, value


def list_properties(thing: Any) -> dict[str, str]:
    """Return the public properties and their docstrings."""
    return {
        name: " ".join(inspect.cleandoc(value.fget.__doc__ or "").split())
        for base in thing.__mro__
        for name, value in vars(base).items()
        if isinstance(value, property) and not name.startswith("_") and value.fget is not None
    }


def describe_call(title: str, level: int, thing: Any) -> str:
    """Return a call as Markdown."""
    found, signature = split_docstring(thing.__doc__), inspect.signature(thing)
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "self"]
    shown = str(signature.replace(parameters=plain, return_annotation=signature.empty))
    out = [f"{'#' * level} {title}", f"```text\n{title}{shown}\n```", _to_code(found[""])]
    if "Args" in found:
        out.append("\n".join(_list_arguments(split_section(found["Args"]))))
    for heading in ("Returns", "Yields"):
        if heading in found:
            out.append(f"*{heading}*: {_to_code(' '.join(found[heading].split()))}")
    if "Raises" in found:
        out.append("*Raises*: " + " ".join(f"`{n}`: {_to_code(t)}" for n, t in split_section(found["Raises"]).items()))
    if "Example" in found:
        out.append(f"```pycon\n{inspect.cleandoc(found['Example']).replace('  # doctest: +SKIP', '')}\n```")
    return "\n\n".join(out)


def make_page() -> str:
    """Return the whole page."""
    out = [HEAD.strip()]
    for name, call, result in SUBJECTS:
        out.append(describe_call(f"fastflow.{name}", 2, call))
        out += [describe_call(f"{result.__name__}.{method}", 3, function) for method, function in list_methods(result)]
        if call is fastflow.fit:
            out.append("\n".join(["### Options of fastflow.fit\n", *_list_options()]))
        known = [f"- `{name}`: {_to_code(text)}" for name, text in list_properties(result).items()]
        out += ["\n".join([f"### Properties of {result.__name__}\n", *known])] * bool(known)
    return "\n\n".join(out) + "\n"


def _list_arguments(found: dict[str, str]) -> Iterator[str]:
    """A line for each text, with all names that share it."""
    for text in dict.fromkeys(found.values()):
        yield f"- {', '.join(f'`{name}`' for name, other in found.items() if other == text)}: {_to_code(text)}"


def _list_options() -> Iterator[str]:
    """A Markdown item for each option of ``fastflow.fit``: name, default, help."""
    for entry in fields(TrainOptions):
        if entry.name not in COMMAND_ONLY:
            yield f"- `{entry.name}={entry.default!r}`: {' '.join(entry.metadata['setting'].option['help'].split())}"


def _to_code(text: str) -> str:
    return text.replace("``", "`")


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(out: Path) -> None:
    """Write the page."""
    replace_text(out, make_page())


if __name__ == "__main__":
    main()
