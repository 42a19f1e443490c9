"""Write the texts from which the model ``small`` is trained, distinct, in a mixed order, one a line.

    python -m fastflow.bench.research.small_texts --data DIR --out CORPUS.txt

Sentences of the corpora of ``static`` and of data/langs; some of them with words exchanged, left out or denied; made-up
sentences of the captions' words, which differ in who does what; phrases; and paragraphs of up to 256 tokens. No text of
a task is read.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from fastflow.bench.research.static_model import CORPORA, mix_corpora
from fastflow.train.data.corpus import read_texts

PLAIN, COMPOSED, CHANGED, PHRASES, LONG = 40_000, 25_000, 25_000, 8_000, 4_000  # texts of a kind
WIDEST = 1100  # characters of a long text
OPPOSITES = (("from", "to"), ("before", "after"), ("with", "without"), ("is", "is not"), ("are", "are not"),
             ("all", "some"), ("more", "less"), ("in", "out of"))  # fmt: skip
CAPTIONS = "nli-snli-dev-test.txt"
PATTERNS = {
    "noun": r"\b(?:a|an|the) (\w{3,})(?= (?:is|are|in|on|at|with|near|and)\b|[.,])",
    "verb": r"\b(?:is|are) (\w{3,}ing)\b",
    "place": r"\b(?:is|are) \w+ing (\w{2,5}) (?:a|an|the)\b",
    "kind": r"\b(?:a|an|the) (\w{3,}(?<!ing)) (?:man|woman|dog|boy|girl|shirt|person|child|ball|car|people)\b",
}
FRAMES = (  # n, m, o: nouns; v, w: verbs; p: places; k, l: kinds; sentences of a group share their words
    ("a n is v a m", "a k n is v p a m", "the n is v p the m", "a n is v while a m is w"),
    ("a m is v a n", "a k m is v p a n", "the m is v p the n", "a m is v while a n is w", "a m is w while a n is v"),
    ("a n is not v a m", "there is no n v p a m", "nobody is v p the m", "a n is w p a m", "a n without a m is v"),
    ("a k n and a l m", "a l n and a k m", "a n in a k m is v p a o", "two ns are v p a o", "the n p the m", "k n",
     "v a m", "some ns are v and others are w", "a n and a o are v p a m", "a m is v by a n"),
)  # fmt: skip


def compose(captions: str, count: int, draw: random.Random) -> list[str]:
    """Compose ``count`` sentences of the words of ``captions``."""
    found = {name: Counter(re.findall(pattern, captions.lower())) for name, pattern in PATTERNS.items()}
    words = {name: [(w, n**0.9) for w, n in counted.items() if n > 4] for name, counted in found.items()}
    slots = {"n": "noun", "m": "noun", "o": "noun", "v": "verb", "w": "verb", "p": "place", "k": "kind", "l": "kind"}
    out: dict[str, None] = {}
    while len(out) < count:
        own = {slot: draw.choices(*zip(*words[name], strict=True))[0] for slot, name in slots.items()}
        for frames in FRAMES:
            slots_or_words = draw.choice(frames).replace("ns", own["n"] + "s").split()
            text = re.sub(r"\ba (?=[aeiou])", "an ", " ".join(own.get(part, part) for part in slots_or_words))
            out[text.capitalize() + "." if draw.random() < 0.6 else text] = None
    return list(out)


def change(text: str, draw: random.Random) -> str | None:
    """Exchange two words, leave one out, deny or turn what is said."""
    words, kind = text.rstrip(" .?!").split(), draw.random()
    if len(words) < 4:
        return None
    i, j = sorted(draw.sample(range(len(words)), 2))
    if kind < 0.4:
        words[i], words[j] = words[j], words[i]
    elif kind < 0.7:
        del words[i]
    else:
        known = [(one, other) for one, other in OPPOSITES if one in words[1:]]
        if known:
            one, other = draw.choice(known)
            words[words.index(one, 1)] = other
        else:
            words.insert(j, "not")
    return " ".join(words)


def join(lines: Sequence[str], draw: random.Random) -> Iterator[str]:
    """Join two to four paragraphs that follow one another."""
    at = 0
    while at < len(lines):
        count = draw.randint(1, 4)
        text = " ".join(lines[at : at + count])
        at += count
        if 200 < len(text) < WIDEST:
            yield text


def make_texts(data: Path) -> list[str]:
    """Return the texts."""
    draw = random.Random(0)
    captions = list(read_texts([str(data / "corpora" / CAPTIONS)]))
    plain = [*mix_corpora(data), *read_texts([str(data / "langs/en.txt.zst")])]
    plain = list(dict.fromkeys([*captions, *draw.sample(plain, PLAIN)]))
    composed = compose("\n".join(captions), COMPOSED, draw)
    changed = [change(text, draw) for text in draw.sample(plain, CHANGED // 2) + draw.choices(captions, k=CHANGED // 2)]
    phrases = []
    for text in draw.sample(plain, PHRASES):
        words = text.rstrip(" .?!").split()
        start = draw.randrange(len(words))
        phrases.append(" ".join(words[start : start + draw.randint(1, 8)]))
    long = []
    for name in CORPORA:
        if name.endswith(".gz"):
            long += join(list(read_texts([str(data / "corpora" / name)])), draw)
    texts = [*plain, *composed, *filter(None, changed), *phrases, *draw.sample(long, LONG)]
    found = list(dict.fromkeys(texts))
    draw.shuffle(found)
    return found


@click.command(help=__doc__)
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds corpora/ and langs/.")
@click.option("--out", required=True, type=click.Path(path_type=Path))
def main(data: Path, out: Path) -> None:
    """Write the texts."""
    texts = make_texts(data)
    out.write_text("\n".join(texts) + "\n", encoding="utf-8")
    click.echo(f"{len(texts):,} texts")


if __name__ == "__main__":
    main()
