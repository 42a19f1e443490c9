"""The study of over-training and of label-free rules: runs, one JSON line each, appended and never repeated.

    python -m fastflow.bench.research.study --encoder DIR --data DIR --cache DIR --out bench/results/study

Every flow is stopped at growing numbers of steps; at each, the label-free signals on its corpus and Spearman on the
paper's sets are written down. Rules are chosen on STS12-14 alone: ``study_page`` makes the page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from fastflow.bench.research.study_data import CORPORA, FIRST_LAST, LARGE, Map, Matrix, Preparer, Store
from fastflow.bench.research.study_signals import measure, quick
from fastflow.errors import FastflowError
from fastflow.evaluation.evaluate import SEVEN
from fastflow.stages.calibration import Stage, apply
from fastflow.train.data.moments import moments
from fastflow.train.methods.closed_forms import fit_closed_form
from fastflow.train.methods.flow import Flow, FlowConfig
from fastflow.train.methods.loop import INITIAL_TEXTS, Schedule, batch_rows
from fastflow.train.methods.objective import PaperAdamW, step_loss

SOME = ("STS12", "STS13", "STS14", "STS16", "STSb-test")  # targets of the studies of layers and pooling
LAYERS = ((0,), (1,), (2,), (3,), (4,), (0, 4), (1, 4), (3, 4), (1, 2, 3, 4), (0, 1, 2, 3, 4))
BEYOND: tuple[dict[str, Any], ...] = (
    {},
    {"before": "whiten"},
    {"before": "nullspace:10", "init": "glorot"},  # nothing is left in the directions removed: no start from data
    {"noise": True},
    {"shape": {"coupling": "affine"}},
    {"shape": {"permutation": "lu"}},
    {"init": "glorot"},
)
MARKS = (0, 10, 20, 40, 80, 160, 320, 640)
HELD_OUT = 0.05


@dataclass(frozen=True)
class Run:
    """One run: ``group`` says what it is for, ``corpus`` what it is fitted on, ``before`` a closed form in front."""

    group: str
    corpus: str
    method: str = "flow"
    lr: float = 1e-3
    init: str = "data"
    noise: bool = False
    seed: int = 0
    steps: int = 640
    before: str = ""
    layers: tuple[int, ...] = FIRST_LAST
    shape: dict[str, Any] = field(default_factory=dict)
    pooling: str = ""

    @property
    def key(self) -> str:
        """What makes a line unique."""
        settings = asdict(self)
        if not self.pooling:
            del settings["pooling"]
        return json.dumps(settings, sort_keys=True)


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of OUT.jsonl, each with the ``key`` of its run."""
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    names = [setting.name for setting in fields(Run)]
    return [line | {"key": Run(**{name: line[name] for name in names}).key} for line in lines]


def runs() -> Iterator[Run]:
    """All runs, the most telling first."""
    for corpus in (*SEVEN, *CORPORA):
        yield from every_method(corpus)
    for lr in (2e-4, 1e-3, 5e-3):
        for init in ("data", "glorot"):
            yield Run("collapse", "snli", lr=lr, init=init)
    yield Run("collapse", "snli", lr=2e-5, init="glorot")  # the paper's rate for a general corpus, its code's start
    for lr in (1e-3, 5e-3):
        yield Run("collapse", "snli", lr=lr, noise=True)
        yield Run("collapse", "snli", lr=lr, shape={"levels": 3})
    for corpus in ("STS12", "STS13", "STS15", "STSb-test"):
        yield Run("collapse", corpus, init="glorot")
    for corpus in SOME:
        for layers in LAYERS:
            for method in ("none", "nullspace:10", "whiten"):
                yield Run("layers", corpus, method, layers=layers)
    yield from variants((0, 1, 2))
    yield from poolings("@sif", FIRST_LAST)
    yield from poolings("@prompt", (4,))
    yield from poolings("@prompt", FIRST_LAST)
    yield from variants((3, 4))
    for corpus in LARGE:
        yield from every_method(corpus)


def poolings(pooling: str, layers: tuple[int, ...]) -> Iterator[Run]:
    """Closed forms on targets, and with token weights also on SNLI, and the flow."""
    weighted = pooling == "@sif"
    for corpus in (*SOME, "snli") if weighted else SOME:
        for method in ("none", "nullspace:10", "whiten"):
            yield Run("pooling", corpus, method, layers=layers, pooling=pooling)
    for seed in range(5 if weighted else 0):
        for corpus in ("snli", "STS13", "STSb-test"):
            yield Run("beyond", corpus, layers=layers, pooling=pooling, seed=seed, steps=320)


def variants(seeds: tuple[int, ...]) -> Iterator[Run]:
    """The variants of BEYOND: 320 steps, several epochs of a test set."""
    for seed in seeds:
        for corpus in ("snli", "STS13", "STSb-test"):
            for variant in BEYOND:
                yield Run("beyond", corpus, seed=seed, steps=320, **variant)


def every_method(corpus: str) -> Iterator[Run]:
    """The closed forms and the default flow."""
    for method in ("none", "standardize", *(f"nullspace:{k}" for k in (1, 3, 10)), "whiten", "whiten:128"):
        yield Run("closed", corpus, method)
    yield Run("collapse", corpus)


def closed_form(method: str, x: Matrix) -> list[Stage]:
    """The stages of one closed-form calibration."""
    kind, _, k = method.partition(":")
    return [] if kind in ("none", "") else [fit_closed_form(kind, int(k) if k else None, moments(x))]


def perform(run: Run, store: Store, write: Callable[[dict[str, Any]], None]) -> None:
    """Fit, and write a line at every mark; a closed form has one."""
    raw = store.layers(run.corpus + run.pooling, run.layers)
    stages = closed_form(run.before if run.method == "flow" else run.method, raw)

    def line(step: int | None, calibrate: Map, bits: dict[str, float] | None = None) -> None:
        signal = measure if run.group in ("closed", "collapse") else quick
        signals = signal(store, run.corpus + run.pooling, calibrate, run.layers) | (bits or {})
        sets = (run.corpus,) if run.corpus in SEVEN else SEVEN
        scores = {name: store.spearman(name, calibrate, run.layers, run.pooling) for name in sets}
        write(asdict(run) | {"step": step, "signals": signals, "spearman": scores})

    if run.method != "flow":
        line(None, lambda x: np.asarray(apply(stages, x)))
        return
    rng = np.random.default_rng((run.seed, 77))
    order = rng.permutation(len(raw))
    held, kept = np.split(order, [max(64, int(len(raw) * HELD_OUT))])

    def tensor(x: Matrix) -> torch.Tensor:
        return torch.from_numpy(np.asarray(apply(stages, x)).astype(np.float32))

    train, test = tensor(raw[kept]), tensor(raw[held])
    noisy = tensor(store.layers(f"{run.corpus}.noisy", run.layers)[kept]) if run.noise else train
    torch.manual_seed(run.seed)
    flow = Flow(FlowConfig(train.shape[1], **run.shape))
    if run.init == "data":
        flow.initialise(train[rng.permutation(len(train))[:INITIAL_TEXTS]])
    optimiser, schedule = PaperAdamW(flow.parameters(), run.lr), Schedule(lr=run.lr, seed=run.seed)

    @torch.no_grad()
    def calibrate(x: Matrix) -> Matrix:
        return flow(tensor(x))[0].numpy().astype(np.float64)

    @torch.no_grad()
    def look(step: int) -> None:
        bits = {
            "train": -float(flow.bits_per_dimension(train[:2000])),
            "held_out": -float(flow.bits_per_dimension(test)),
        }
        bits["weight_norm"] = -float(sum(p.square().sum() for p in flow.parameters()) ** 0.5)
        line(step, calibrate, {name: round(value, 5) for name, value in bits.items()})

    for step, rows in enumerate(batch_rows(len(train), schedule, 0, run.steps)):
        if step in MARKS:
            look(step)
        step_loss(flow, noisy[rows]).backward()
        optimiser.step()
    look(run.steps)


@click.command()
@click.option("--encoder", required=True, help="Encoder directory.")
@click.option("--data", required=True, type=click.Path(exists=True, path_type=Path), help="Holds sts/ and corpora/.")
@click.option("--cache", required=True, type=click.Path(path_type=Path), help="Where embeddings are kept.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Appends to OUT.jsonl.")
@click.option(
    "--group", type=click.Choice(["closed", "collapse", "layers", "pooling", "beyond"]), help="Only these runs."
)
def main(encoder: str, data: Path, cache: Path, out: Path, group: str | None) -> None:
    """Run what is not in OUT.jsonl yet."""
    torch.set_num_threads(1)
    prepared = Preparer(encoder, data, cache, lambda text: click.echo(text, err=True))
    store, path = Store(cache, data), out.with_suffix(".jsonl")
    done = {line["key"] for line in read(path)} if path.exists() else set()
    for run in runs():
        if run.key in done or (group and run.group != group):
            continue
        for name in (run.corpus,) if run.corpus in SEVEN else (run.corpus, *SEVEN):
            prepared.need(name, run.pooling)
        lines: list[dict[str, Any]] = []
        try:
            perform(run, store, lines.append)
        except FastflowError as error:
            lines.append(asdict(run) | {"failed": str(error)})
        with path.open("a") as handle:  # a run at a time, so that an interrupted one is simply repeated
            handle.writelines(json.dumps(found) + "\n" for found in lines)
        click.echo(
            f"{run.group} {run.corpus} {run.method} lr={run.lr} {run.init} {run.before} seed {run.seed}", err=True
        )
        done.add(run.key)


if __name__ == "__main__":
    main()
