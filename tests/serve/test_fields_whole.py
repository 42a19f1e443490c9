"""Whole numbers of a request: 80.0 is one, as JSON Schema has it, and as some languages write every number."""

from __future__ import annotations

import pytest

from fastflow.serve.fields import Fields, parse
from fastflow.serve.refusals import Refused


@pytest.mark.parametrize("text", ["80", "80.0", "8e1"])
def test_a_whole_number_however_it_is_written(text):
    found = Fields(parse(f'{{"dimensions": {text}}}'.encode()), ("dimensions",)).count("dimensions")
    assert (found, type(found)) == (80, int)


@pytest.mark.parametrize("text", ["80.5", "0.0", "-1.0", "1e400", "true", '"80"'])
def test_another_value_is_refused(text):
    with pytest.raises(Refused, match="dimensions must be a whole number of at least 1"):
        Fields(parse(f'{{"dimensions": {text}}}'.encode()), ("dimensions",)).count("dimensions")
