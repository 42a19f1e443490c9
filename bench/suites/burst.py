"""A burst: many requests of one sentence each at the same moment, by openai's client with its usual retries.

    python -m fastflow.bench.suites.burst --out bench/results/serve-burst.json \
        --server "ours=fastflow serve -m {model} --port {port} --any-model" --path ours=/v1 --model static=static

A server is a command with {model} and {port}; servers of one model take turns. A row counts failed and refused
requests, and has the seconds until the answers.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import numpy as np

from fastflow.bench.measure.machine import describe
from fastflow.bench.report.table import write_json
from fastflow.bench.suites.serve import run_server
from fastflow.bench.suites.texts import real_texts


async def send_burst(url: str, texts: Sequence[str]) -> dict[str, float | int | None]:
    """Send all ``texts`` at once to the client's base ``url``; return counts and seconds."""
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


@click.command(help=__doc__)
@click.option("--server", "servers", multiple=True, required=True, metavar="NAME=COMMAND")
@click.option("--path", "paths", multiple=True, metavar="NAME=PATH", help="Of the base URL of a server, such as /v1.")
@click.option("--model", "models", multiple=True, required=True, metavar="NAME=DIR")
@click.option("--bursts", default="100,300,1000,3000", help="Requests at once.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The JSON to write.")
def main(servers: Sequence[str], paths: Sequence[str], models: Sequence[str], bursts: str, out: Path) -> None:
    """Run every burst, and write its row."""
    commands, prefix, names = (dict(each.split("=", 1) for each in given) for given in (servers, paths, models))
    texts, rows = real_texts(None)[0], list[dict[str, Any]]()
    for label, model in names.items():
        with ExitStack() as running:
            urls = {}
            for name, line in commands.items():
                port, _ = running.enter_context(run_server(shlex.split(line.replace("{model}", model))))
                urls[name] = f"http://127.0.0.1:{port}{prefix.get(name, '')}"
            for size in map(int, bursts.split(",")):
                for name, url in urls.items():
                    asyncio.run(send_burst(url, texts[:8]))  # warm the server up
                    found = asyncio.run(send_burst(url, [texts[i % len(texts)] for i in range(size)]))
                    rows.append({"model": label, "server": name, **found, "load": os.getloadavg()[0]})
                    click.echo(json.dumps(rows[-1]))
    write_json({"machine": describe(), "rows": rows}, out)


if __name__ == "__main__":
    main()
