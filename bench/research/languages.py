"""Write the commonest words of each language, or measure how its texts are noticed.

python -m fastflow.bench.research.languages --data DIR --write
python -m fastflow.bench.research.languages --data DIR --english DIR --out bench/results/languages.json

DIR has files of sentences, LANGUAGE.txt.zst: the lines with even numbers give the words, the others the texts.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from fastflow.bench.measure.machine import describe
from fastflow.bench.report.table import write_json
from fastflow.evaluation.evaluate import find_tasks
from fastflow.files.read import Layout
from fastflow.files.read.texts import read_records
from fastflow.model.locate import DEFAULT
from fastflow.model.tokenizer import Tokenizer
from fastflow.model.tokenizer.fragmentation import WORD, warn_of_unsuited
from fastflow.model.tokenizer.languages import FILE, JUDGED, load_languages

NAMES = {
    "en": "English", "de": "German", "fr": "French", "es": "Spanish", "it": "Italian", "pt": "Portuguese",
    "nl": "Dutch", "ca": "Catalan", "ro": "Romanian", "da": "Danish", "no": "Norwegian", "sv": "Swedish",
    "fi": "Finnish", "hu": "Hungarian", "pl": "Polish", "cs": "Czech", "ru": "Russian", "uk": "Ukrainian",
    "bg": "Bulgarian", "tr": "Turkish", "id": "Indonesian", "vi": "Vietnamese", "ar": "Arabic", "fa": "Persian",
    "el": "Greek", "he": "Hebrew", "hi": "Hindi", "ko": "Korean",
}  # fmt: skip
LETTERS = {"ja": "Japanese", "zh": "Chinese"}  # without spaces between words
COUNT = 290
HEAD = "# Words of treebanks, Common Voice and others: python -m fastflow.bench.research.languages --data DIR --write"
DRAWS, TEXTS, CHARACTERS = 50, 100, 300


def read_texts(path: Path) -> list[str]:
    """Return the texts of a file of lines, or of a task."""
    if path.is_dir() or path.suffix == ".tsv":
        return [text for task in find_tasks([path]) for text in task.texts]
    return [record.texts[0] for record in read_records(str(path), Layout("txt")) if record.texts[0].strip()]


def count_words(texts: list[str]) -> list[str]:
    """Return the COUNT commonest words, each as it is mostly written inside a sentence."""
    counts: Counter[str] = Counter()
    written: dict[str, Counter[str]] = {}
    for text in texts:
        for place, word in enumerate(WORD.findall(text)):
            counts[word.lower()] += 1
            if place:
                written.setdefault(word.lower(), Counter())[word] += 1
    return [written[word].most_common(1)[0][0] if word in written else word for word, _ in counts.most_common(COUNT)]


def draw_texts(texts: list[str]) -> Iterator[list[str]]:
    """Yield DRAWS lists of TEXTS texts, then DRAWS of consecutive texts of CHARACTERS together."""
    rng = random.Random(0)
    yield from (rng.sample(texts, min(TEXTS, len(texts))) for _ in range(DRAWS))
    for start in (rng.randrange(len(texts)) for _ in range(DRAWS)):
        yield [" ".join((texts[start:] + texts)[:CHARACTERS])[:CHARACTERS]]


def measure_texts(vocabulary: Tokenizer, texts: list[str], name: str) -> dict[str, float]:
    """Return the shares of draws that are warned of, and that are named ``name``."""
    said = [warn_of_unsuited(vocabulary, drawn) or "" for drawn in draw_texts(texts)]
    found: dict[str, float] = {}
    for size, some in (("100 texts", said[:DRAWS]), ("300 characters", said[DRAWS:])):
        found[f"{size}, warned"] = sum(map(bool, some)) / DRAWS
        found[f"{size}, named"] = sum(f"look like {name}, " in each for each in some) / DRAWS
    return found


@click.command()
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds LANGUAGE.txt.zst.")
@click.option("--write", "is_written", is_flag=True, help="Write the words into the package.")
@click.option("--english", multiple=True, type=click.Path(exists=True, path_type=Path), help="English texts.")
@click.option("--shared", type=click.Path(exists=True, path_type=Path), help="A multilingual encoder.")
@click.option("--out", type=click.Path(path_type=Path), help="Writes OUT.json.")
def main(data: Path, is_written: bool, english: tuple[Path, ...], shared: Path | None, out: Path | None) -> None:
    """Write the words, or measure the warning on texts of each language and on English texts."""
    texts = {name: read_texts(data / f"{code}.txt.zst") for code, name in (NAMES | LETTERS).items()}
    if is_written:
        lines = [" ".join([name, *count_words(texts[name][::2])]) for name in NAMES.values()]
        FILE.write_text("\n".join([HEAD, *lines]) + "\n", encoding="utf-8")
    if out is None:
        return
    vocabulary, rows = Tokenizer(DEFAULT / "0_Transformer", 128), []
    others = {"default": vocabulary} | ({"multilingual": Tokenizer(shared, 128)} if shared else {})
    for name in texts:
        common = load_languages().get(name, ())[:JUDGED]
        pieces = {f"pieces, {other}": each.pieces(common)[0] / len(common) for other, each in others.items() if common}
        rows.append({"texts": name, **measure_texts(vocabulary, texts[name][1::2], name), **pieces})
    rows += [{"texts": path.name, **measure_texts(vocabulary, read_texts(path), "English")} for path in english]
    command = "python -m fastflow.bench.research.languages --data .../langs --english FILE ... --shared TEACHER"
    write_json({"machine": describe(), "command": f"{command} --out {out}", "rows": rows}, out)


if __name__ == "__main__":
    main()
