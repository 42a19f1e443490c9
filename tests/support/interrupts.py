"""Runs of ``fastflow embed`` that are interrupted in the middle."""

import pytest

from fastflow import Runtime
from fastflow.files.embed import embed_file
from fastflow.files.run import Run


def stopped(model, inputs, target, settings, given=()):
    """Embed ``inputs`` until the third block of vectors, where Ctrl-C comes."""

    class Interrupt(Runtime):
        def stream(self, texts, **options):
            for number, block in enumerate(super().stream(texts, **options)):
                if number == 2:
                    raise KeyboardInterrupt
                yield block

    with pytest.raises(KeyboardInterrupt):
        embed_file(Interrupt(model), inputs, target, settings, Run(quiet=True, given=given))
