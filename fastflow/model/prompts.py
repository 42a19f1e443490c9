"""The prompts of a model, by name, and the one that applies to a call."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fastflow.errors import UsageError
from fastflow.values import short

TASKS = ("query", "document")  # prompts that every model of Sentence Transformers has, empty if it stores none


class Prompts(NamedTuple):
    """``texts`` by name; ``default`` names the one for a call without any; ``pooled``: their tokens are pooled too."""

    texts: Mapping[str, str] = MappingProxyType({})
    default: str | None = None
    pooled: bool = True

    def resolve(self, prompt: str | None = None, name: Any = None) -> str:
        """The text that goes before every text: ``prompt`` itself, the one called ``name``, or the default.

        Raises a UsageError for both at once, and for a name that the model does not have.
        """
        if prompt is not None:
            if name is not None:
                raise UsageError("give prompt or prompt_name, not both")
            return prompt
        if name is None:
            return "" if self.default is None else self.texts[self.default]
        if not isinstance(name, str) or name not in self.texts:
            known = f"known are {', '.join(self.texts)}" if self.texts else "the model has none"
            raise UsageError(f"no prompt is called {short(name)}: {known}")
        return self.texts[name]

    def of_task(self, name: str) -> str:
        """The prompt of a task, one of TASKS; if the model has none it is empty, and never the default.

        Sentence Transformers 6 documents passage and corpus as other names of document, and never comes to them, for
        every model there has an empty document.
        """
        return self.texts.get(name, "")
