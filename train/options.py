"""Every option of a fit with its default, help and check."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fastflow.console import say
from fastflow.errors import UsageError, missing_extra
from fastflow.train.reporter import flag, refuse
from fastflow.values import is_whole, short

if TYPE_CHECKING:
    from fastflow.transforms.calibration import Stage

METHODS = (
    "flow, whiten[:K], standardize, components[:K], nullspace[:K], groups[:K], none, auto, or a chain such as "
    "whiten:128,flow or whiten,recolour"
)


@dataclass(frozen=True)
class Method:
    """One method of a chain: its kind, K as ``dims``, and the ``stage`` of one that is fitted already."""

    kind: str
    dims: int | None = None
    stage: Stage | None = None


def parse_method(text: str) -> list[Method]:
    """Parse ``whiten:128,flow`` or ``whiten:128+flow``; ``none`` has no link."""
    if text == "none":
        return []
    if text == OWN:
        return [Method(OWN)]
    links = []
    for part in re.split("[,+]", text):
        match = re.fullmatch(r"(flow|standardize|whiten|recolour|components|nullspace|groups)(?::(\d+))?", part.strip())
        if not match or (match[2] and match[1] in ("flow", "standardize", "recolour")):
            raise UsageError(f"unknown method {part.strip()!r}; use {METHODS}")
        links.append(Method(match[1], int(match[2]) if match[2] else None))
    if any(link.kind == "groups" for link in links[1:]):
        raise UsageError(f"method {text!r}: groups comes first, before what is fitted to the vectors without them")
    if any(link.kind == "recolour" for link in links[:-1]) or links[0].kind == "recolour":
        raise UsageError(f"method {text!r}: recolour comes last, after the calibration whose spectrum it gives back")
    return links


def name_grouped(method: str, given: bool) -> str:
    """Name the method if groups are ``given`` or not; raises a UsageError unless both go together."""
    method = "groups" if given and method == "auto" else method
    if given and not method.startswith("groups"):
        raise refuse("{groups} is of the method groups, which {method:{name}} does not begin with", name=method)
    if method.startswith("groups") and not given:
        raise refuse("{method:groups} needs the group of each text: give {groups}, or, of files, a file a group")
    return method


def check_groups(groups: Sequence[Any] | None, rows: Sized) -> None:
    """Raise a UsageError unless there is a group for each of ``rows``, or none at all."""
    if groups is not None and len(groups) != len(rows):
        raise refuse(f"{{groups}} has {len(groups)} groups for {len(rows)} rows: give one each")


def complete_chain(links: list[Method], latent: bool) -> list[Method]:
    """Add recolour if the last link is a flow, unless its output is wanted: ``latent``."""
    if links and links[-1].kind == "flow" and not latent:
        return [*links, Method("recolour")]
    return links


MOST = 2**63 - 1
OWN = "own"  # the method of ``fastflow.fit(..., calibration=...)``
PRESETS: dict[str, dict[str, Any]] = {  # the recipes of other papers
    "paper": {
        "method": "flow", "pooling": "first-last", "token_weights": "none", "latent": True, "stop": "budget",
        "depth": 3, "width": 32, "init": "glorot",
    },
    "whitening": {"method": "whiten", "pooling": "first-last", "token_weights": "none", "stop": "budget"},
}  # fmt: skip
PRESETS["simcse-eval"] = PRESETS["paper"] | {"pooling": "first-last-avg"}


class Setting(NamedTuple):
    """The arguments of ``click.option``, and the check and conversion of a value."""

    option: dict[str, Any]
    is_right: Callable[[Any], bool]
    must: str
    convert: Callable[[Any], Any] = lambda value: value


def name_field(default: str | None, help: str, metavar: str | None = None) -> Any:
    """Make a field for a name."""
    return _field(default, help, Setting({"metavar": metavar}, lambda value: isinstance(value, str), "a name"))


def choice_field(choices: str, help: str) -> Any:
    """Make a field for one of ``choices``; the first is the default."""
    names = choices.split()
    return _field(names[0], help, Setting({"type": click.Choice(names)}, lambda v: v in names, " or ".join(names)))


def switch_field(help: str) -> Any:
    """Make a field that is off by default."""
    return _field(False, help, Setting({"is_flag": True}, lambda value: isinstance(value, bool), "True or False"))


def whole_field(
    default: int | None, help: str, least: int | None = 0, most: int | None = None, metavar: str | None = None
) -> Any:
    """Make a field for a whole number."""
    must = f"{least} to {most}" if most else "a whole number" + ("" if least is None else f" of at least {least}")
    option = {"type": int if least is None else click.IntRange(least, most), "metavar": metavar}

    def is_right(value: Any) -> bool:
        return type(value) is int if least is None else is_whole(value, least, most or MOST)

    return _field(default, help, Setting(option, is_right, must))


def number_field(default: float | None, help: str, most: float | None = None) -> Any:
    """Make a field for a number from 0 to ``most``; None: above 0."""

    def is_right(value: Any) -> bool:
        real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return real and (value > 0 if most is None else 0 <= value <= most)

    must = "a number above 0" if most is None else f"a number from 0 to {most:g}"
    option = {"type": click.FloatRange(0, most, min_open=most is None)}
    return _field(default, help, Setting(option, is_right, must, float))


def _field(default: Any, help: str, setting: Setting) -> Any:
    of_flag = {} if "is_flag" in setting.option else {"default": default}
    option = {"help": help, **setting.option, **of_flag}
    return field(default=default, metadata={"setting": setting._replace(option=option)})


def add_options(settings: type) -> Callable[[Any], Any]:
    """Make a decorator that adds the options of the dataclass ``settings`` to a command."""

    def decorate(command: Any) -> Any:
        for entry in reversed(fields(settings)):
            command = click.option(flag(entry.name), **entry.metadata["setting"].option)(command)
        return command

    return decorate


def check_fields(settings: Any) -> None:
    """Check and convert the values of a dataclass; raises a UsageError."""
    for entry in fields(settings):
        value, setting = getattr(settings, entry.name), entry.metadata["setting"]
        if value is None and entry.default is None:
            continue
        if not setting.is_right(value):
            text = "{" + entry.name + "} must be {must}, not {given}"
            raise refuse(text, must=setting.must, given=short(value))
        object.__setattr__(settings, entry.name, setting.convert(value))


Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
SHAPE = ("levels", "depth", "width", "coupling", "permutation")
# bench/results/verdicts.md compares these values
SMALL, LARGE = {"depth": 3, "width": 32}, {"depth": 6, "width": 64}  # shapes of a flow
LARGE_CORPUS = 20_000  # texts for a LARGE flow
BACKGROUND = (3_000, 10_000)  # sentences of random words: least and most
SHARE, BROAD_SHARE = 4, 8  # background sentences for a text: of random words; half random, half English
FEWEST = 100  # texts for which ``auto`` fits a flow
COLOURS = {  # recolour's defaults by token weights
    "sif": {"spectrum": 0.5, "mean_share": 0.1, "demoted": 0},
    "none": {"spectrum": 0.75, "mean_share": 0.0, "demoted": 2},
}


def _by_size(name: str) -> str:
    return f"  [default: {SMALL[name]}; {LARGE[name]} with a background or from {LARGE_CORPUS:,} texts]"


def _by_weights(name: str) -> str:
    return f"  [default: {COLOURS['sif'][name]:g}; {COLOURS['none'][name]:g} without token weights]"


@dataclass(frozen=True)
class TrainOptions:
    """The options of fastflow-train; raises a UsageError for a value out of range."""

    method: str = name_field(
        "auto",
        "auto: the recommended method, which is flow; whiten,recolour with --stream, nullspace:10 for vectors, and "
        f"none for an encoder that was tuned for similarity or for fewer than {FEWEST:,} texts; groups with --groups. "
        "Else flow, whiten[:K], standardize, components[:K], nullspace[:K], groups[:K], none, or a chain such as "
        "whiten:128,flow.",
    )
    preset: str = choice_field(
        f"none {' '.join(PRESETS)}",
        "The options of a publication together: paper (BERT-flow), whitening (BERT-whitening), simcse-eval (BERT-flow "
        "with the embedding layer and the last, as SimCSE measured it). The model records it.",
    )
    stop: str = choice_field(
        "rule budget",
        "rule: keep the training step that best separates two dropout views of a text from other texts; --method auto "
        "keeps no calibration if none beats the pooling itself. budget: keep the last step.",
    )
    pooling: str = name_field(
        "auto",
        "auto, embedding-first-last (the mean of layers 0, 1 and L, 0 being the embedding layer), first-last (1 and "
        "L, as in the paper), words (the embedding layer with the mean position in place of each token's own), "
        "words-first-last (words, 1 and L), last, cls, pooler, mean-of-layers:I,J,... (words is an item too, and 3*I "
        "counts three times) or model. auto: words, unless neighbouring sentences find each other better by "
        "words-first-last, first-last, last or the mean of all layers; for an encoder that was tuned for similarity "
        "model, if it is a directory of Sentence Transformers, else last. model: all modules of such a directory, with "
        "the calibration after them.",
    )
    order_from: str | None = name_field(
        None,
        "Running text of the corpus's language, a sentence or a paragraph a line, by which --pooling auto compares "
        "poolings. By default the corpus, if its neighbouring sentences are alike; else, if it is English, novels in "
        "the package.",
        "FILE",
    )
    token_weights: str = choice_field(
        "auto sif none",
        "sif: frequent tokens count less in the mean (Arora et al. 2017); a token with corpus frequency p counts "
        "a/(a+p), a = 0.0005; the frequencies of the language at large count twenty times the corpus's own, so that "
        "the words of its subject keep their weight. none: every token counts 1, as in the BERT-flow paper. auto: sif, "
        "or none for an encoder that was tuned for similarity.",
    )
    max_length: int | None = whole_field(
        None, "Tokens after which a text is cut.  [default: 128, or the encoder's limit]", least=None
    )
    levels: int = whole_field(2, "Flow: levels.", least=1, most=4)
    depth: int | None = whole_field(None, "Flow: steps in a level." + _by_size("depth"), least=1)
    width: int | None = whole_field(None, "Flow: hidden units of a coupling net." + _by_size("width"), least=1)
    coupling: str = choice_field("additive affine", "Flow: coupling.")
    permutation: str = choice_field("reversal random lu", "Flow: channel mixing; lu is learned.")
    spectrum: float | None = number_field(
        None,
        "Of recolour, after a flow or a whitening: how far the spectrum is equalised. 1: every direction counts the "
        "same; 0: as in the encoder, which is the default for one tuned for similarity." + _by_weights("spectrum"),
        most=1.0,
    )
    mean_share: float | None = number_field(
        None,
        "Of recolour: how much of the mean is kept, as average cosine of unrelated texts." + _by_weights("mean_share"),
        most=0.99,
    )
    demoted: int | None = whole_field(
        None,
        "Of recolour: how many leading directions, which sentences of a kind have in common, count like the last.  "
        + _by_weights("demoted").strip(),
    )
    latent: bool = switch_field("Flow: the Gaussian latent is the embedding, as in the BERT-flow paper.")
    background: int | None = whole_field(
        None,
        "After a flow, or another method with recolour: fit to all texts and N sentences of random words of their "
        "language, in place of the usual sentences; 0: none.  [default: 5,000 of English and 5,000 of random words, "
        f"with {10_000 // BROAD_SHARE:,} texts at most, fewer of a small vocabulary; with words of another "
        f"language {SHARE} a text, {BACKGROUND[0]:,} to {BACKGROUND[1]:,}, with {BACKGROUND[1] // SHARE:,} texts at "
        "most; else 0]",
        metavar="N",
    )
    background_words: str | None = name_field(
        None,
        "The words of the corpus's language, if it is not English: a UTF-8 file with a word, a space or tab, and how "
        "often it occurs on each line.",
        "FILE",
    )
    language: str = name_field(
        "en",
        "The corpus's language, such as de: token weights and background take the frequencies of its words from the "
        "package wordfreq. en: they take the package's English, if the corpus is English.",
        "CODE",
    )
    background_sentences: str | None = name_field(
        None,
        "Sentences of the corpus's language at large, one a line, of which 5,000 are drawn: they and as many of random "
        "words are fitted with the corpus, as the package's English ones are.",
        "FILE",
    )
    init: str = choice_field(
        "data glorot",
        "Flow: data starts the ActNorms from the statistics of the corpus; glorot is the start of the official code.",
    )
    encoder_dropout: bool = switch_field("Flow: run the encoder, with its dropout, at every step (slow).")
    epochs: float = number_field(1.0, "Flow: passes over the corpus, or a part of one.")
    batch_size: int = whole_field(64, "Flow: texts in a step.", least=2)
    lr: float = number_field(1e-3, "Flow: learning rate, constant.")
    seed: int = whole_field(0, "Seed of --sample, and of a flow's start and order of texts.")
    save_steps: int = whole_field(500, "Flow: steps between checkpoints; 0 for none.")
    sample: int | None = whole_field(None, "Draw N of the distinct texts at random.", least=1, metavar="N")
    sentences: bool = switch_field("Cut texts into sentences first, for a model that will embed sentences.")
    stream: bool = switch_field(
        "Read the corpus once, in memory that does not grow with it, and cache nothing. Repeated texts count again. "
        "Token weights come from the first 32,768 texts. For every method but a flow."
    )
    device: str = choice_field("cpu cuda", "Where the encoder runs.")

    def __post_init__(self) -> None:
        check_fields(self)
        if self.method == "auto" and self.stop == "budget":
            raise refuse("{method:auto} chooses by the rule: name another {method} to go with {stop:budget}")
        if self.background_words is not None and self.language != "en":
            raise refuse("{language} and {background_words} both give the words of the language: leave one out")
        if self.background is not None and self.background_sentences is not None:
            raise refuse("{background:N} draws random words only, without {background_sentences}: leave one out")

    def shape(self, count: int = 0, background: int = 0) -> dict[str, Any]:
        """Choose FlowConfig's arguments for ``count`` texts and ``background`` sentences."""
        size = LARGE if background or count >= LARGE_CORPUS else SMALL
        return {name: size.get(name) if (own := getattr(self, name)) is None else own for name in SHAPE}

    @property
    def links(self) -> list[Method]:
        return complete_chain(parse_method(self.method), self.latent)

    @property
    def has_recolour(self) -> bool:
        return bool(self.links) and self.links[-1].kind == "recolour"

    @property
    def has_weights(self) -> bool:
        return self.token_weights == "sif"  # noqa: S105

    @property
    def has_flow(self) -> bool:
        """Whether the method trains a flow; False for ``auto``."""
        return "flow" in self.method

    @property
    def source(self) -> str | None:
        """The option that gives words of another language, for ``name_options``; None without."""
        if self.background_words is not None:
            return "{background_words}"
        return None if self.language == "en" else f"{{language:{self.language}}}"

    @property
    def colour(self) -> dict[str, Any]:
        usual = COLOURS["none" if self.token_weights == "none" else "sif"]  # noqa: S105
        return {name: value if (own := getattr(self, name)) is None else own for name, value in usual.items()}


DEFAULTS = TrainOptions()
OF_METHOD = {  # link of a method -> options that only it obeys
    "flow": (*SHAPE, "latent", "init", "encoder_dropout", "epochs", "batch_size", "lr", "save_steps"),
    "recolour": ("spectrum", "mean_share", "demoted"),
}


def make_options(given: Mapping[str, Any]) -> TrainOptions:
    """Make the options of a fit; raises a UsageError for one that the named method or preset would ignore."""
    options = TrainOptions(**{**given, **_find_preset(given)})
    kinds = set(OF_METHOD) if options.method == "auto" else {link.kind for link in options.links}
    for kind, names in OF_METHOD.items():
        odd = [name for name in names if getattr(options, name) != getattr(DEFAULTS, name)]
        if odd and kind not in kinds:
            text = "{" + odd[0] + "} is of {kind}, which {method:{given}} lacks: leave it out"
            raise refuse(text, kind=kind, given=options.method)
    return options


def _find_preset(given: Mapping[str, Any]) -> dict[str, Any]:
    preset = PRESETS.get(str(given.get("preset")), {})
    for name, value in preset.items():
        if given.get(name, usual := getattr(DEFAULTS, name)) not in (usual, value):
            raise refuse("{" + name + "} and {preset:{given}} decide the same: leave one out", given=given["preset"])
    return preset


def check_extra(purpose: str, shown: bool = False) -> None:
    """Raise a FastflowError without PyTorch or transformers; ``shown``: announce the loading."""
    if shown and sys.stderr is not None and sys.stderr.isatty():
        say("fastflow: PyTorch is loaded first, which takes a few seconds")
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise missing_extra("train", str(error.name), purpose) from error
