"""A burst: many requests of one sentence each at the same moment, by openai's client with its usual retries.

    python -m fastflow.bench.suites.burst --out bench/results/serve-burst \
        --server "ours=fastflow serve -m {model} --port {port} --any-model" --path ours=/v1 --model static=static

Each --server is a command with {model} and {port}; each --model is a name and its directory. For each burst and server:
the requests that end in an error, the refusals that the client met before, and the seconds from the start of the burst
until the answers. Servers of one model take turns. OUT.json has all rows.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from fastflow.bench.measure.machine import describe
from fastflow.bench.suites.serve import run_server
from fastflow.bench.suites.texts import real_texts

COLUMNS = {"requests": 8, "failed": 6, "refusals": 8, "p50_s": 6, "p99_s": 6, "seconds": 7, "texts_per_s": 11}


async def send_burst(url: str, texts: Sequence[str]) -> dict[str, float | int | None]:
    """Send all ``texts`` at once to the client's base ``url``; return counts, and seconds from the start."""
    import openai

    refusals, start = [], time.perf_counter()

    async def count(response: Any) -> None:
        refusals.extend([response.status_code] if response.status_code in (429, 503) else [])

    async def ask(client: Any, text: str) -> float | None:
        try:
            await client.embeddings.create(model="m", input=text)
        except openai.OpenAIError:
            return None
        return time.perf_counter() - start

    http = openai.DefaultAsyncHttpxClient(event_hooks={"response": [count]})
    async with openai.AsyncOpenAI(base_url=url, api_key="none", http_client=http) as client:
        start = time.perf_counter()
        ended = await asyncio.gather(*(ask(client, text) for text in texts))
        seconds = time.perf_counter() - start
    times = [each for each in ended if each is not None]
    p50, p99 = np.quantile(times, [0.5, 0.99]).tolist() if times else (None, None)
    return {
        "requests": len(texts), "failed": len(texts) - len(times), "refusals": len(refusals), "p50_s": p50,
        "p99_s": p99, "seconds": seconds, "texts_per_s": len(times) / seconds,
    }  # fmt: skip


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as text."""
    wide = [max(len(str(row[name])) for row in rows) for name in ("model", "server")]
    lines = [f"{'model':{wide[0]}}  {'server':{wide[1]}}" + "".join(f"  {name:>{n}}" for name, n in COLUMNS.items())]
    for row in rows:
        cells = (f"{row[name]:,.2f}" if isinstance(row[name], float) else str(row[name]) for name in COLUMNS)
        line = "".join(f"  {cell:>{n}}" for cell, n in zip(cells, COLUMNS.values(), strict=True))
        lines.append(f"{row['model']:{wide[0]}}  {row['server']:{wide[1]}}{line}")
    return "\n".join(lines) + "\n"


def _parse_pairs(given: Sequence[str]) -> dict[str, str]:
    return dict(each.split("=", 1) for each in given)


def make_command(line: str, model: str, port: int) -> list[str]:
    """Return the words of ``line`` with its model and port."""
    return shlex.split(line.format(model=model, port=port))


@click.command(help=__doc__)
@click.option("--server", "servers", multiple=True, required=True, metavar="NAME=COMMAND")
@click.option("--path", "paths", multiple=True, metavar="NAME=PATH", help="Of the base URL of a server, such as /v1.")
@click.option("--model", "models", multiple=True, required=True, metavar="NAME=DIR")
@click.option("--bursts", default="100,300,1000,3000", help="Requests at once.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(servers: Sequence[str], paths: Sequence[str], models: Sequence[str], bursts: str, out: Path) -> None:
    """Run every burst; a further run into the same OUT replaces the rows of its models and servers."""
    file = out.with_suffix(".json")
    report = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"rows": []}
    prefix, texts = _parse_pairs(paths), real_texts(None)[0]
    for label, model in _parse_pairs(models).items():
        with ExitStack() as running:
            ports = {}
            for name, line in _parse_pairs(servers).items():
                ports[name], _ = running.enter_context(run_server(partial(make_command, line, model)))
            for size in map(int, bursts.split(",")):
                for name, port in ports.items():
                    url = f"http://127.0.0.1:{port}{prefix.get(name, '')}"
                    asyncio.run(send_burst(url, texts[:8]))  # the server is warm
                    found = asyncio.run(send_burst(url, [texts[i % len(texts)] for i in range(size)]))
                    row = {"model": label, "server": name, **found, "load": os.getloadavg()[0]}
                    same = {key: row[key] for key in ("model", "server", "requests")}
                    report["rows"] = [each for each in report["rows"] if not same.items() <= each.items()] + [row]
                    click.echo(table([row]).splitlines()[1])
    report = {"machine": describe(), "rows": report["rows"]}
    file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
