"""Replace texts far longer than the encoder's input by a shorter text with the same first tokens.

The library tokenizes a whole text before it cuts: 320 bytes of memory for each byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fastflow.errors import FastflowError
from fastflow.late import late

if TYPE_CHECKING:
    from fastflow.model.tokenizer.cuts import Cuts

SHARE = 16  # characters tokenized first for each token of the limit; English has 4 to 5 a token
LEAST = 1024
WINDOW = 2**16  # characters read at a time if the first ones hold too few tokens
GROW = 4
LONGEST = 2**20
TOGETHER = 2**18
NEAR = (64, 2048)  # characters before the end, searched first for a cut


class LongTexts:
    """Shorten texts of more than ``size`` characters for a tokenizer limited to ``max_length`` tokens."""

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self.size = max(LEAST, SHARE * max_length)
        self._tokenizer = tokenizer

    @late
    def _cuts(self) -> Cuts | None:
        from fastflow.model.tokenizer.cuts import find_cuts

        return find_cuts(self._tokenizer)

    def together(self, texts: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) of texts for one call: at most TOGETHER characters, or a single text."""
        start = held = 0
        for i, text in enumerate(texts):
            held += len(text)
            if held > TOGETHER and i > start:
                yield start, i
                start, held = i, len(text)
        if texts:
            yield start, len(texts)

    def head(self, text: str) -> str:
        if self._cuts is None and len(text) <= LONGEST:
            return text
        return text[: last(self._cuts, text[: self.size])]

    def enough(self, text: str, is_full: Callable[[str], bool]) -> str:
        """Return a text with the tokens of ``text``, or of its start if ``is_full`` finds more tokens than the limit.

        Raises a FastflowError if LONGEST characters do not suffice.
        """
        have, tried = "", self.size
        for start in range(0, len(text), WINDOW):
            part = text[start : start + WINDOW]
            have += self._shorten(part)
            if len(have) > LONGEST:
                raise FastflowError(
                    f"a text holds {LONGEST} characters that make fewer tokens than the limit, or that the tokenizer "
                    "cannot split safely: shorten the text"
                )
            if len(have) > tried and start + WINDOW < len(text):
                tried = GROW * len(have)
                if (end := last(self._cuts, have)) and is_full(have[:end]):
                    return have[:end]
        return have

    def _shorten(self, part: str) -> str:
        runs = self._cuts and self._cuts.runs
        return runs.sub(lambda run: run[run.lastindex or 0], part) if runs else part


def last(cuts: Cuts | None, text: str) -> int:
    """Return the last possible cut in ``text``; 0 if there is none."""
    if cuts is None:
        return 0
    for near in (*NEAR, len(text)):
        places = [match.start() for match in cuts.at.finditer(text, max(1, len(text) - near))]
        if places:
            return places[-1]
    return 0
