"""Properties computed at first use; a fork waits until none is being computed.

A lock that another thread holds at a fork stays locked in the child, such as a
``functools.cached_property``'s in Python 3.11, or an import's.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Generic, TypeVar

Made = TypeVar("Made")
# packages that methods import; a fork waits for no others, which may never end
IMPORTED = ("fastflow", "hashlib", "numpy", "safetensors", "tokenizers", "torch", "transformers")
# never hold this lock while waiting for a thread, which may need it
making = threading.RLock()


class late(Generic[Made]):
    """A property computed once, at first use."""

    def __init__(self, make: Callable[[Any], Made]) -> None:
        self._make, self.__doc__ = make, make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Made:
        if instance is None:
            return self  # type: ignore[return-value]  # read from the class, as property
        with making:
            if self._name not in instance.__dict__:
                instance.__dict__[self._name] = self._make(instance)
        made: Made = instance.__dict__[self._name]
        return made


def wait_for_others() -> None:
    """Before a fork, take ``making``, and wait for other threads' imports of IMPORTED."""
    making.acquire()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in IMPORTED and getattr(getattr(module, "__spec__", None), "_initializing", False):
            with suppress(Exception):  # the importing thread raises it
                import_module(name)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=wait_for_others, after_in_parent=making.release, after_in_child=making.release)


def start_thread(work: Callable[[], None], name: str) -> Callable[[], None]:
    """Run ``work`` in a thread, or now if no thread can start; return a function that waits for it."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no memory or no thread left
        work()
        return lambda: None
    return thread.join


class Loading(Generic[Made]):
    """Make a value in a thread; a call waits, then returns the value or raises its error."""

    def __init__(self, make: Callable[[], Made], name: str) -> None:
        self._make = make
        self._found: Made | BaseException
        self._join = start_thread(self._run, name)

    def _run(self) -> None:
        try:
            self._found = self._make()
        except BaseException as error:  # raised again by the call
            self._found = error

    def __call__(self) -> Made:
        self._join()
        if isinstance(self._found, BaseException):
            raise self._found
        return self._found
