"""Make options of a command, and their checks, from fields of a dataclass."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field, fields
from typing import Any, NamedTuple

import click

from fastflow.errors import UsageError
from fastflow.values import is_whole, short

MOST = 2**63 - 1


class Setting(NamedTuple):
    """The arguments of ``click.option``, and the check and conversion of a value."""

    option: dict[str, Any]
    is_right: Callable[[Any], bool]
    must: str
    convert: Callable[[Any], Any] = lambda value: value


def name_field(default: str | None, help: str, metavar: str | None = None) -> Any:
    """Make a field for a name."""
    return _field(default, help, Setting({"metavar": metavar}, lambda value: isinstance(value, str), "a name"))


def choice_field(choices: str, help: str) -> Any:
    """Make a field for one of ``choices``; the first is the default."""
    names = choices.split()
    return _field(names[0], help, Setting({"type": click.Choice(names)}, lambda v: v in names, " or ".join(names)))


def switch_field(help: str) -> Any:
    """Make a field that is off by default."""
    return _field(False, help, Setting({"is_flag": True}, lambda value: isinstance(value, bool), "True or False"))


def whole_field(
    default: int | None, help: str, least: int | None = 0, most: int | None = None, metavar: str | None = None
) -> Any:
    """Make a field for a whole number."""
    must = f"{least} to {most}" if most else "a whole number" + ("" if least is None else f" of at least {least}")
    option = {"type": int if least is None else click.IntRange(least, most), "metavar": metavar}

    def is_right(value: Any) -> bool:
        return type(value) is int if least is None else is_whole(value, least, most or MOST)

    return _field(default, help, Setting(option, is_right, must))


def number_field(default: float | None, help: str, most: float | None = None) -> Any:
    """Make a field for a number from 0 to ``most``; None: above 0."""

    def is_right(value: Any) -> bool:
        real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return real and (value > 0 if most is None else 0 <= value <= most)

    must = "a number above 0" if most is None else f"a number from 0 to {most:g}"
    option = {"type": click.FloatRange(0, most, min_open=most is None)}
    return _field(default, help, Setting(option, is_right, must, float))


def _field(default: Any, help: str, setting: Setting) -> Any:
    of_flag = {} if "is_flag" in setting.option else {"default": default}
    option = {"help": help, **setting.option, **of_flag}
    return field(default=default, metadata={"setting": setting._replace(option=option)})


def flag(name: str) -> str:
    """Write ``name`` as an option: batch_size as --batch-size."""
    return "--" + name.replace("_", "-")


def add_options(settings: type) -> Callable[[Any], Any]:
    """Make a decorator that adds the options of the dataclass ``settings`` to a command."""

    def decorate(command: Any) -> Any:
        for entry in reversed(fields(settings)):
            command = click.option(flag(entry.name), **entry.metadata["setting"].option)(command)
        return command

    return decorate


def check_fields(settings: Any) -> None:
    """Check and convert the values of a dataclass; raises a UsageError."""
    for entry in fields(settings):
        value, setting = getattr(settings, entry.name), entry.metadata["setting"]
        if value is None and entry.default is None:
            continue
        if not setting.is_right(value):
            raise UsageError(f"{flag(entry.name)} must be {setting.must}, not {short(value)}")
        object.__setattr__(settings, entry.name, setting.convert(value))
