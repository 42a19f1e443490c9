"""A field of a dataclass of options: its kind, range and help, of which a command and the checks of values are made."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field, fields
from typing import Any, NamedTuple

import click

from fastflow.errors import UsageError
from fastflow.values import is_whole, short

MOST = 2**63 - 1  # of a whole number


class Setting(NamedTuple):
    """``option`` is that of the command; ``right`` is true of values that fit ``must``, which ``put`` then converts."""

    option: dict[str, Any]
    right: Callable[[Any], bool]
    must: str
    put: Callable[[Any], Any] = lambda value: value


def named(default: str | None, help: str, metavar: str | None = None) -> Any:
    """A field that holds a name."""
    return _field(default, help, Setting({"metavar": metavar}, lambda value: isinstance(value, str), "a name"))


def choice(choices: str, help: str) -> Any:
    """A field that holds one of ``choices``, words of which the first is the default."""
    names = choices.split()
    return _field(names[0], help, Setting({"type": click.Choice(names)}, lambda v: v in names, " or ".join(names)))


def switch(help: str) -> Any:
    """A field that is off by default."""
    return _field(False, help, Setting({"is_flag": True}, lambda value: isinstance(value, bool), "True or False"))


def whole(default: int | None, help: str, least: int | None = 0, most: int | None = None, metavar: str = "") -> Any:
    """A field that holds a whole number."""
    must = f"{least} to {most}" if most else "a whole number" + ("" if least is None else f" of at least {least}")
    option = {"type": int if least is None else click.IntRange(least, most), "metavar": metavar or None}
    return _field(
        default, help,
        Setting(option, lambda v: type(v) is int if least is None else is_whole(v, least, most or MOST), must),
    )  # fmt: skip


def number(default: float | None, help: str, most: float | None = None) -> Any:
    """A field that holds a number from 0 to ``most``, or any above 0."""

    def right(value: Any) -> bool:
        real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return real and (value > 0 if most is None else 0 <= value <= most)

    must = "a number above 0" if most is None else f"a number from 0 to {most:g}"
    return _field(
        default, help, Setting({"type": click.FloatRange(0, most, min_open=most is None)}, right, must, float)
    )  # fmt: skip


def _field(default: Any, help: str, setting: Setting) -> Any:
    of_flag = {} if "is_flag" in setting.option else {"default": default}
    option = {"help": help, **setting.option, **of_flag}
    return field(default=default, metadata={"setting": setting._replace(option=option)})


def flag(name: str) -> str:
    """The option ``name`` as the command writes it."""
    return "--" + name.replace("_", "-")


def options_of(settings: type) -> Callable[[Any], Any]:
    """A decorator of a command: every option of the dataclass ``settings``, in its order."""

    def decorate(command: Any) -> Any:
        for entry in reversed(fields(settings)):
            command = click.option(flag(entry.name), **entry.metadata["setting"].option)(command)
        return command

    return decorate


def check(settings: Any) -> None:
    """Convert every value of the dataclass ``settings``; a UsageError for one that it cannot have.

    None is a value if it is the default; then the help names what decides.
    """
    for entry in fields(settings):
        value, setting = getattr(settings, entry.name), entry.metadata["setting"]
        if value is None and entry.default is None:
            continue
        if not setting.right(value):
            raise UsageError(f"{flag(entry.name)} must be {setting.must}, not {short(value)}")
        object.__setattr__(settings, entry.name, setting.put(value))
