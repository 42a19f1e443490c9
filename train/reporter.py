"""Report a fit: lines, progress bars, and sentences that name options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from string import Formatter
from typing import Any, NamedTuple

from fastflow.console import say
from fastflow.errors import OptionText, UsageError
from fastflow.progress import Progress

WARNING = "WARNING: "  # begins a line that --quiet shows


@dataclass(frozen=True)
class Reporter:
    """``write`` takes a fit's lines; ``bars``: standard error shows progress bars."""

    write: Callable[[str], None] = say
    bars: bool = True

    def progress(self, label: str, total: int | None, unit: str, done: int = 0, about: bool = False) -> Progress:
        return Progress(label, total, unit, shown=self.bars, done=done, about=about)

    def count(self, label: str, texts: Iterable[str]) -> Iterator[str]:
        with self.progress(label, None, "texts") as progress:
            for text in texts:
                yield text
                progress.advance(1)


COMMAND = Reporter()
WARNINGS = Reporter(lambda line: say(line) if line.startswith(WARNING) else None, bars=False)
SILENT = Reporter(lambda line: None, bars=False)


def flag(name: str) -> str:
    """Write ``name`` as an option: batch_size as --batch-size."""
    return "--" + name.replace("_", "-")


class _Named(NamedTuple):
    name: str
    in_python: bool

    def __format__(self, value: str) -> str:
        return f"{self.name}={value}" if self.in_python else f"{flag(self.name)} {value}".rstrip()


class _Fields(dict[str, Any]):
    in_python = False

    def __missing__(self, name: str) -> _Named:
        return _Named(name, self.in_python)


def name_options(template: str, **values: Any) -> OptionText:
    """Fill ``template``, in which {stop:rule} is --stop rule, in Python stop=rule; ``values`` are no options."""
    fields = _Fields(values)
    text = OptionText(template.format_map(fields))
    fields.in_python = True
    text.in_python = OptionText(template.format_map(fields))
    names = (name for _, name, _, _ in Formatter().parse(template) if name and name not in values)
    text.option = text.in_python.option = next(names, "")
    return text


def refuse(template: str, **values: Any) -> UsageError:
    """Return the error for options, which ``name_options`` names."""
    return UsageError(name_options(template, **values))


def name_arguments(message: str) -> str:
    """Name the arguments of a function in place of a command's options."""
    return getattr(message, "in_python", message)
