"""The options that several commands share; heavy imports wait until a command runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import copy
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fastflow.errors import UsageError

if TYPE_CHECKING:
    from fastflow.files.read import InputFormat


SECTIONS = {  # of --help -> its options; others are in Run
    "Input": "format text-field id-field keep delimiter no-header quoting null encoding errors sentences sample "
    "dedupe only-new shard truncate where texts row eval sts corpus qnli search groups=FIELD",
    "Output": "output json overwrite precision dim normalize no-words append delete-missing save-model above to "
    "order kept groups k all min-score private",
    "Model": "model encoder reference-encoder prompt prompt-name pooling order-from token-weights max-length rerank "
    "reranker candidates by model-name any-model against pull",
    "Calibration": "fit method preset stop levels depth width coupling permutation spectrum mean-share demoted latent "
    "background background-words background-sentences language init encoder-dropout epochs batch-size lr save-steps "
    "stream words penalty",
}
RARELY = (  # options that only --help-all shows
    "delimiter no-header quoting null encoding errors only-new delete-missing no-words save-model batch-tokens ray "
    "prompt-name reference-encoder order-from max-length levels depth width coupling permutation spectrum mean-share "
    "demoted latent stop background background-words background-sentences init encoder-dropout epochs batch-size lr "
    "save-steps log-dir debug any-model model-name max-queue-seconds timeout max-inputs max-body-mb max-connections "
    "tokenizer-threads uds log-format"
)
RARE = {*RARELY.split()}
SHORT = 10  # options, up to which --help has neither sections nor rare ones


def _show_all(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        context.meta["help all"] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


HELP_ALL = click.Option(
    ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all, show_default=False,
    help="Show the options that are rarely needed too, and exit.",
)  # fmt: skip


def name_option(option: click.Parameter) -> str:
    """Return the long name of an option without its dashes."""
    return option.opts[-1].lstrip("-")


class Command(click.Command):
    """A command with help in sections, which refuses an option that is given two values."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params = super().get_params(ctx)
        return [*params, HELP_ALL] if len(self.params) > SHORT else params

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        if HELP_ALL not in options:
            super().format_options(ctx, formatter)
            return
        section_of = {name: section for section, names in SECTIONS.items() for name in names.split()}
        rows: dict[str, list[tuple[str, str]]] = {section: [] for section in (*SECTIONS, "Run")}
        for option in options:
            shown = "help all" in ctx.meta or name_option(option) not in RARE
            if shown and (record := option.get_help_record(ctx)) is not None:
                name = name_option(option)
                section = section_of.get(f"{name}={option.metavar}") or section_of.get(name, "Run")
                rows[section].append(record)
        for section, found in rows.items():
            if found:
                with formatter.section(section):
                    formatter.write_dl(found)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        parser = self.make_parser(ctx)
        options = [copy(param) for param in self.get_params(ctx) if isinstance(param, click.Option)]
        once = [option for option in options if not option.multiple]
        for option in once:
            option.multiple = True
            option.add_to_parser(parser, ctx)
        given = parser.parse_args(list(args))[0]
        for option in once:
            if len(values := list(dict.fromkeys(given.get(str(option.name), ())))) > 1:
                name = "/".join([option.opts[0], *option.secondary_opts])
                both = f": {values[0]} and {values[1]}" if all(isinstance(each, str) for each in values) else ""
                ctx.fail(f"{name} is given twice{both}; give it once")
        rest = super().parse_args(ctx, args)
        _check_apart(ctx)
        return rest


def _check_apart(context: click.Context) -> None:
    """Raise a UsageError if a file that ``check_free`` passed is another file of the command."""
    values = {name: value if isinstance(value, tuple) else (value,) for name, value in context.params.items()}
    named = {name: [str(each) for each in value if isinstance(each, str | Path)] for name, value in values.items()}
    places = {name: [os.path.realpath(each) for each in found if each != "-"] for name, found in named.items()}
    for option in (each for each in context.command.params if each.callback in (check_free, check_file)):
        others = {place for name, found in places.items() if name != option.name for place in found}
        if set(places.get(str(option.name), ())) & others:
            raise UsageError(f"{option.opts[-1]} names another file of this command; name a file of its own")


def join_options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Join decorators; --help lists their options in this order."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


MODEL = click.option(
    "-m",
    "--model",
    metavar="MODEL",
    envvar="FASTFLOW_MODEL",
    help="Directory of a model, of Sentence Transformers, or of a Hugging Face encoder, or its Hub id once downloaded; "
    "'default' and 'small' (English), 'static' (English, a table), 'multilingual' (thirty languages) and 'untuned' are "
    "the models in the package. "
    "[default: the environment variable FASTFLOW_MODEL, else 'default']",
)
MODELS = click.option("-m", "--model", "models", metavar="MODEL", multiple=True, help="As in fastflow embed; several.")
QUIET = click.option("-q", "--quiet", is_flag=True, help="No progress and no summary; warnings stay.")


def _note_overwrite(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    context.meta["overwrite"] = value


def is_overwriting() -> bool:
    """Whether the command was given --overwrite."""
    return bool(click.get_current_context().meta["overwrite"])


def check_free(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Raise a UsageError if the file ``value`` exists, unless --overwrite replaces it."""
    if value is not None and str(value) != "-" and os.path.lexists(value):
        if not (os.path.isfile(value) or os.path.islink(value)):
            raise UsageError(f"{parameter.opts[-1]} {value} is not a regular file; name another")
        if not is_overwriting():
            raise UsageError(f"{parameter.opts[-1]} {value} exists; name another file, or replace it with --overwrite")
    return value


def check_file(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Refuse standard output; the command checks whether the file ``value`` exists."""
    if value is not None and str(value) == "-":
        raise UsageError(f"{parameter.opts[-1]} - is no file: name one")
    return value


OVERWRITE = click.option(
    "--overwrite",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_note_overwrite,
    help="Replace a file that exists. Otherwise only a vector file that fastflow made, with nothing of others in it, "
    "is replaced.",
)
JSON = join_options(
    click.option(
        "--json",
        "json_file",
        metavar="[FILE]",
        is_flag=False,
        flag_value="-",
        callback=check_free,
        help="The result as JSON: to FILE, or in place of the text on standard output.",
    ),
    OVERWRITE,
)
DEVICE = click.option("--device", default="auto", help="auto, cpu, cuda, or cuda:N for GPU N.")
DTYPE = click.option(
    "--dtype", default="auto", help="The encoder's arithmetic: auto, float32, bfloat16, int8, float16 (GPU) or float64."
)
THREADS = click.option(
    "--threads",
    type=int,
    help="Threads to compute with. [default: OMP_NUM_THREADS, else the cores this process may use]",
)
RUNS = join_options(DTYPE, THREADS, DEVICE)  # the options of ``open_runtime``
DELIMITER = click.option(
    "--delimiter", metavar="C", help="The character between the columns of a csv or tsv.  [default: read off line 1]"
)
NO_HEADER = click.option(
    "--no-header", is_flag=True, help="Line 1 of a csv or tsv is data; its columns are called 1, 2, 3 ..."
)
QUOTING = click.option(
    "--quoting",
    type=click.Choice(["csv", "none"]),
    help="csv: quotes enclose a field of a table, as pandas and Excel write it; none: they are part of the text.  "
    "[default: csv for a .csv, and for a .tsv if line 1 has a quoted field]",
)
KEEP = click.option(
    "--keep",
    metavar="F,...",
    multiple=True,
    help="Fields to carry along into .jsonl, .csv, .parquet or .db; may be repeated.",
)
NULL = click.option(
    "-0", "--null", is_flag=True, help="The texts of a .txt end with NUL, as xargs -0 and find -print0 have it."
)
FORMAT = click.option("--format", metavar="F", help="txt, tsv, csv, jsonl, json or parquet.  [default: by the suffix]")
ENCODING = click.option(
    "--encoding",
    metavar="NAME",
    help="The encoding of the input, such as cp1252 or utf-16, by its name in Python.  [default: UTF-8]",
)


def errors_option(*more: str) -> Callable[[Any], Any]:
    """Make the option --errors with ``more`` values."""
    return click.option(
        "--errors",
        type=click.Choice(["strict", "replace", *more]),
        default="strict",
        help="strict: a row that cannot be used, such as null or broken JSON, is an error; replace: bytes that are not "
        "of the encoding become U+FFFD"
        + "; skip: rows that cannot be used are left out, and OUT.skipped has their numbers and reasons"
        * ("skip" in more)
        + ".",
    )


RAY = click.option(
    "--ray",
    metavar="ADDRESS|local",
    help="Make the parts of the work on the cluster of Ray at ADDRESS, or on the cores of this machine, and join them "
    "to -o. Every node needs the inputs and the folder of -o. Needs the ray extra; see docs/shards.md.",
)


def take_layout(command: Any) -> Any:
    """Give ``command`` a function ``layout`` that checks the options of columns."""

    @wraps(command)
    def with_layout(
        *arguments: Any, text_field: str | None, format: str | None, delimiter: str | None, no_header: bool,
        errors: str, encoding: str | None, quoting: str | None, id_field: str | None = None, keep: tuple[str, ...] = (),
        null: bool = False, **options: Any,
    ) -> Any:  # fmt: skip
        def layout() -> InputFormat:
            from fastflow.files import check_delimiter, parse_keep
            from fastflow.files.read import InputFormat

            marks, known = (check_delimiter(delimiter), not no_header, null, parse_keep(keep)), encoding
            if known is not None:
                from fastflow.files.read.inputs import parse_encoding

                known = parse_encoding(known)
            return InputFormat(format, text_field, id_field, errors, *marks, known, quoting)

        return command(*arguments, layout=layout, **options)

    return with_layout


def text_field_option(default: str) -> Callable[[Any], Any]:
    """Make the option --text-field."""
    help = f"The column that holds the text; of several, F,F, the texts are joined by a line end.  [default: {default}]"
    return click.option("--text-field", metavar="F", help=help)


def corpus_options(command: Any) -> Any:
    """Add the options that find a corpus's texts; ``command`` gets ``layout``."""
    field = text_field_option("text or sentence, or both of a pair")
    return join_options(field, FORMAT, DELIMITER, NO_HEADER, QUOTING, ENCODING, errors_option())(take_layout(command))


def model_named(argument: str | None, option: str | None) -> str | None:
    """Return the model, given as argument or with -m; raises a UsageError for both."""
    given = click.get_current_context().get_parameter_source("option") is ParameterSource.COMMANDLINE
    if argument is not None and option is not None and given:
        raise UsageError("give the model once, as an argument or with -m")
    return option if argument is None else argument


def model_argument(command: Any) -> Any:
    """Add MODEL as an argument and as -m."""
    named = click.option("-m", "--model", "option", metavar="MODEL", envvar="FASTFLOW_MODEL", help="The same as MODEL.")
    return click.argument("model", required=False)(named(command))


def list_models(given: tuple[str, ...]) -> tuple[str | None, ...]:
    """Return the models of -m, else of FASTFLOW_MODEL, else None; raises a UsageError for one that is named twice."""
    if len(set(given)) < len(given):
        raise UsageError("-m names a model twice: name each once")
    return given or (os.environ.get("FASTFLOW_MODEL"),)


def describe_output(output: Path, replaced: bool, unused: bool = False) -> str:
    """Return the end of a summary: the output's path, and whether it was replaced or kept."""
    if unused:
        return f"; {output} stays as it was, for a result without rows replaces no file"
    return f"; written to {output}" + ", which was replaced" * replaced


def output_option(help: str, folder: bool = False) -> Callable[[Any], Any]:
    """Make the option -o OUT, or -o DIR for a ``folder``."""
    kind = click.Path(path_type=Path, dir_okay=folder)
    return click.option("-o", "--output", required=True, metavar="DIR" if folder else "OUT", type=kind, help=help)


PRECISION = click.option(
    "--precision",
    type=click.Choice(["float32", "float16", "int8", "uint8", "binary", "ubinary"]),
    default="float32",
    help="Numbers in the output: int8 has one fixed range about 0, which the model stores; uint8 is int8 plus "
    "128; ubinary packs the signs, eight to a byte, and binary is ubinary minus 128.",
)
DIM = click.option(
    "--dim",
    type=click.IntRange(1),
    help="Keep DIM dimensions: the leading directions if the model stores their order ('truncation' in fastflow info), "
    "else the first ones.",
)
NORMALIZE = click.option("--normalize/--no-normalize", default=False, help="Divide by the L2 norm, after --dim.")
RESUME = click.option(
    "--resume",
    is_flag=True,
    help="Continue an interrupted run after the rows it finished (OUT.partial). If the same run has finished OUT "
    "(OUT.run.json), there is nothing to do.",
)
