"""The page of the Python API: made of docstrings that name every argument, and whose examples run."""

import doctest
import inspect
import re

import pytest
from api_page import HEAD, SUBJECTS, list_methods, list_properties, main, make_page, split_docstring, split_section
from click.testing import CliRunner

import fastflow
from fastflow.backends.choose import BACKENDS, DTYPES

from support.places import ROOT

CALLS = {
    **{f"fastflow.{name}": call for name, call, _ in SUBJECTS},
    **{f"{kind.__name__}.{name}": method for _, _, kind in SUBJECTS for name, method in list_methods(kind)},
}


def sample(first, *rest):
    """Add numbers.

    All of them.

    Args:
        first: A number,
            of any size.
        *rest: More: as many as you like.

    Returns:
        The sum.
    """


def test_the_sections_of_a_docstring():
    found = split_docstring(sample.__doc__)
    assert list(found) == ["", "Args", "Returns"]
    assert found[""] == "Add numbers.\n\nAll of them."
    assert split_section(found["Args"]) == {"first": "A number, of any size.", "*rest": "More: as many as you like."}


def test_the_page_is_that_of_the_docstrings(tmp_path):
    done = CliRunner().invoke(main, ["--out", str(tmp_path / "api.md")], catch_exceptions=False)
    assert done.exit_code == 0
    assert (tmp_path / "api.md").read_text() == make_page()
    again = "docs/api.md is older than the docstrings: python release/api_page.py --out docs/api.md"
    assert (ROOT / "docs" / "api.md").read_text(encoding="utf-8") == make_page(), again


def test_everything_that_is_exported_is_on_the_page():
    results = ("Duplicates", "FastflowError", "FastflowWarning", "Hit", "UsageError")  # not called
    exported = {name for name in fastflow.__all__ if callable(getattr(fastflow, name))} - set(results)
    assert exported == {name for name, _, _ in SUBJECTS}
    assert {"Runtime.encode", "Runtime.similarity", "Index.search", "Fit.save"} <= set(CALLS)


@pytest.mark.each
@pytest.mark.parametrize("name", CALLS)
def test_a_docstring_names_every_argument_and_what_comes_back(name):
    call, found = CALLS[name], split_docstring(CALLS[name].__doc__)
    signature = inspect.signature(call)
    kinds = {inspect.Parameter.VAR_KEYWORD: "**", inspect.Parameter.VAR_POSITIONAL: "*"}
    asked = [kinds.get(p.kind, "") + p.name for p in signature.parameters.values() if p.name != "self"]
    assert list(split_section(found.get("Args", ""))) == asked
    comes_back = not inspect.isclass(call) and signature.return_annotation not in (None, "None")
    assert comes_back == bool({"Returns", "Yields"} & set(found))
    assert "raises" not in found[""].lower(), "a section of its own"


KINDS = [kind for _, _, kind in SUBJECTS if kind not in (fastflow.Duplicates, type(None))]  # fields, and a list


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_property_has_a_sentence(kind):
    assert list_properties(kind)
    assert all(text.endswith(".") for text in list_properties(kind).values())


@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if ">>>" in call.__doc__])
def test_the_examples_run(name):
    tests = doctest.DocTestFinder(recurse=False).find(CALLS[name], name, globs={"fastflow": fastflow})
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    assert [runner.run(test).failed for test in tests] == [0]


def test_the_table_of_dtypes_is_that_of_the_backends():
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| ([\w, ]+) \|$", HEAD.partition("`dtype=` of Runtime")[2], re.M))
    assert rows.pop("auto") == rows.pop("float32") == "all"
    assert {name: set(backends.split(", ")) for name, backends in rows.items()} == {
        dtype: {name for name, kind in BACKENDS.items() if dtype in kind.dtypes}
        for dtype in DTYPES
        if dtype not in ("auto", "float32")
    }
