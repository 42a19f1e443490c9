"""Recognise short posts, on which token weights and calibrations harm: few words, and many that no list has."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from fastflow.model.tokenizer.fragmentation import WORD
from fastflow.train.data.background import COMMON, Words

SHORT = 12  # words of the median text
UNLISTED = 0.14  # least share of words that are not in the list: posts have 0.16 to 0.19, captions 0.02, news 0.07
USUAL = 0.5  # least share of common words: titles, which have as many unlisted words, have 0.36 to 0.45
LOOKED_AT, ENOUGH = 1000, 500  # texts; words


def recognise_posts(texts: Sequence[str], words: Words | None) -> str | None:
    """Return the reason to take ``texts`` for short posts of the language of ``words``, else None."""
    if words is None:
        return None
    some = texts[:: -(-len(texts) // LOOKED_AT)]
    found = [word for text in some for word in WORD.findall(text.lower())]
    if len(found) < ENOUGH:
        return None
    length = median(len(text.split()) for text in some)
    listed = {word.lower() for word in words.shares}
    usual = {word.lower() for word, share in words.shares.items() if share >= COMMON}
    known, common = (sum(word in some for word in found) / len(found) for some in (listed, usual))
    if length > SHORT or 1 - known < UNLISTED or common < USUAL:
        return None
    return (
        f"these texts look like short posts: {length:.0f} words in the median, and {1 - known:.0%} of all words are in "
        "no list of the language. On paraphrases of such posts the usual fit of the encoder in the package has an "
        "average precision of 55, and the mean of its first and last layer, every token counting 1, has 67"
    )
