"""Which prompt applies to a call."""

from __future__ import annotations

import pytest

from fastflow.errors import UsageError
from fastflow.model.kinds import Prompts

STORED = Prompts({"query": "q: ", "document": "", "title": "t: "}, "title")


def test_the_prompt_itself_then_the_name_then_the_default():
    assert STORED.resolve("x ", None) == "x "
    assert STORED.resolve("", None) == ""
    assert STORED.resolve(None, "query") == "q: "
    assert STORED.resolve() == "t: "
    assert Prompts(STORED.texts).resolve() == Prompts().resolve() == ""


def test_a_task_never_takes_the_default():
    assert (STORED.of_task("query"), STORED.of_task("document"), Prompts().of_task("query")) == ("q: ", "", "")


@pytest.mark.parametrize("name", ["no", 7, ""])
def test_an_unknown_name(name):
    with pytest.raises(UsageError, match=r"no prompt is called .*: known are query, document, title"):
        STORED.resolve(None, name)
    with pytest.raises(UsageError, match="the model has none"):
        Prompts().resolve(None, name)


def test_both_at_once():
    with pytest.raises(UsageError, match="give prompt or prompt_name, not both"):
        STORED.resolve("x", "query")
