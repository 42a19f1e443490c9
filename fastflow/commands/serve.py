"""``fastflow serve``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fastflow.commands import MODELS, RUNS, Command, list_models
from fastflow.console import open_runtime, say
from fastflow.errors import UsageError, need_extra
from fastflow.serve import MIB, ServerSettings, read_keys

if TYPE_CHECKING:
    from fastflow.serve.model import PairScorer

NEEDED = ("starlette", "uvicorn", "httptools", "prometheus_client")
USUAL = ServerSettings()
SECONDS = click.FloatRange(min=0, min_open=True)


@click.command(cls=Command)
@MODELS
@click.option(
    "--pull",
    "pulled",
    metavar="ORG/NAME[@REVISION]",
    multiple=True,
    help="Fetch a model of the Hugging Face Hub into the cache, or compare it there, and serve it.",
)
@click.option(
    "--search",
    "search_file",
    metavar="FILE.db",
    type=click.Path(path_type=Path),
    help="Load a file of fastflow embed -o FILE.db, for POST /search and the page.",
)
@click.option(
    "--reranker",
    "reranker_folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Load a cross-encoder too, for POST /rerank and /v1/rerank.",
)
@click.option("--host", default="127.0.0.1", help="Address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, help="0: any that is free.")
@click.option(
    "--uds",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Listen at a Unix socket instead, open to user and group.",
)
@click.option(
    "--api-key-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Keys, one a line; a request must carry one. The environment variable FASTFLOW_API_KEY holds one too.",
)
@click.option(
    "--model-name", metavar="NAME", multiple=True, help="A further name of the model; the first is the one in answers."
)
@click.option("--any-model", is_flag=True, help="Answer a request whatever model it names.")
@click.option(
    "--truncate",
    type=click.Choice(["right", "error"]),
    default="right" if USUAL.truncate else "error",
    help="If a request leaves it open. right: cut a text that is too long and count it; error: refuse it.",
)
@click.option(
    "--max-queue-seconds",
    "max_queue",
    type=SECONDS,
    default=USUAL.max_queue,
    help="Refuse a request (429) that would wait longer for its first turn, and say when to come back. Lower: sooner "
    "answers under a lasting overload, and more refusals.",
)
@click.option("--timeout", type=SECONDS, default=USUAL.timeout, help="Seconds after which a request is given up (503).")
@click.option("--max-inputs", type=click.IntRange(1), default=USUAL.max_inputs, help="Texts of a request.")
@click.option(
    "--max-body-mb", type=click.IntRange(1, 1024), default=USUAL.max_body // MIB, help="Megabytes of a request (MiB)."
)
@click.option("--max-connections", type=click.IntRange(1), default=USUAL.max_connections, help="Connections at a time.")
@click.option(
    "--tokenizer-threads", type=click.IntRange(1), default=USUAL.tokenizer_threads, help="Threads to tokenize with."
)
@click.option(
    "--log-format",
    type=click.Choice(["none", "text", "json"]),
    default="none",
    help="A line a request: route, status, seconds and id, no text; none: only warnings.",
)
@RUNS
def serve(
    models: tuple[str, ...],
    pulled: tuple[str, ...],
    search_file: Path | None,
    reranker_folder: Path | None,
    host: str,
    port: int,
    uds: Path | None,
    api_key_file: Path | None,
    model_name: tuple[str, ...],
    truncate: str,
    max_body_mb: int,
    log_format: str,
    device: str,
    dtype: str,
    threads: int | None,
    **limits: Any,
) -> None:
    """Serve a model over HTTP.

    Its routes are OpenAI's /v1/embeddings, /v1/models and /v1/models/NAME, TEI's /embed, /similarity, /tokenize, /info,
    /health and /metrics; /openapi.json describes them. /embeddings is /v1/embeddings; POST / and /invocations are
    /embed, /ping is /health, /api-doc/openapi.json is /openapi.json. In a browser, / is a page that compares two texts
    and searches, and /docs lists the routes.

    Requests that come together are computed together; long lists and single texts take turns. SIGTERM lets running
    requests finish.

    With several -m or --pull a request is answered by the model that it names in "model", else by the first.

    With --search, /search finds the rows of FILE.db that are most like a query, and the page has a field for it. The
    file is held in memory. Without -m its model is opened.

    With --reranker, TEI's /rerank and the /v1/rerank of Cohere and Jina score texts for a query, on the CPU.

    \b
    fastflow serve
    fastflow serve --search novels.db
    fastflow serve -m my-model --port 9000 --api-key-file keys.txt
    """
    for name in NEEDED:
        need_extra("serve", name, "fastflow serve")
    from fastflow.search.source import find_model
    from fastflow.serve.model import ServedModel
    from fastflow.serve.searcher import Searcher
    from fastflow.serve.server import is_local, listen, run
    from fastflow.serve.service import Service

    settings = ServerSettings(names=model_name, truncate=truncate == "right", max_body=max_body_mb * MIB, **limits)
    settings = replace(settings, keys=read_keys(api_key_file), max_bodies=max(settings.max_bodies, settings.max_body))
    if uds is not None and (host, port) != ("127.0.0.1", 8080):
        raise UsageError("--uds takes the place of --host and --port: leave these out")
    with listen(host, port, uds) as bound:
        try:
            if is_local(bound):
                settings = replace(settings, hosts=("localhost", host.lower()))
            elif uds is None and not settings.keys:
                say(f"fastflow: warning: anyone who reaches {host} may use this server: no API key is set")
            wanted: list[Any] = [(name, ()) for name in (() if pulled and not models else list_models(models))]
            wanted += [_pull(name) for name in pulled]
            if wanted[0][0] is None and search_file is not None and search_file.suffix == ".db":
                wanted[0] = find_model(search_file), ()
            served, alias = [], "default" not in [model for model, _ in wanted[1:]]
            for at, (model, names) in enumerate(wanted):
                runtime = open_runtime(model, device, dtype, threads, quiet=False)
                served.append(ServedModel(runtime, (*(model_name if not at else ()), *names), first=alias and not at))
            runtime = served[0].runtime
            searcher = None if search_file is None else Searcher(search_file, runtime, threads)
            scorer = None if reranker_folder is None else _open_scorer(reranker_folder, dtype, threads)
            service = Service(served[0], settings, searcher=searcher, scorer=scorer, others=served[1:])
            where = str(uds) if uds is not None else f"http://{_address(bound.getsockname())}"
            line = f"fastflow: serving {' and '.join(each.names[0] for each in served)} at {where}"
            if searcher is not None:
                say(f"fastflow: searching {searcher.rows:,} rows of {search_file}")
            ready = f"{line}, up to {service.engine.queue.batch:,} tokens in a batch"
            run(service, bound, lambda: say(ready), log_format)
        finally:
            if uds is not None:
                uds.unlink(missing_ok=True)
    say("fastflow: stopped")


def _pull(name: str) -> tuple[Path, tuple[str]]:
    from fastflow.cache_folder import cache_directory
    from fastflow.model.sharing import pull

    folder = cache_directory(None) / "hub" / name.replace("/", "--")
    folder.parent.mkdir(parents=True, exist_ok=True)
    say(f"fastflow: {pull(name, folder)[0]} is in {folder}")
    return folder, (name.partition("@")[0],)


def _open_scorer(folder: Path, dtype: Any, threads: int | None) -> PairScorer:
    from fastflow.reranker import Reranker
    from fastflow.serve.model import PairScorer

    return PairScorer(Reranker(folder, dtype=dtype, threads=threads))


def _address(name: tuple[Any, ...]) -> str:
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
