"""The ``fastflow`` command as a process: help, exit codes, streams that break, disks that fill, signals, memory."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import click
import numpy as np
import pytest

from fastflow import __version__
from fastflow.cli import main

from support.builders import make_encoder
from support.commands import run, write_pairs
from support.places import TESTS, USERS

FASTFLOW = Path(sysconfig.get_path("scripts")) / "fastflow"
MAIN = "import sys; from fastflow.cli import main; main(sys.argv[1:], prog_name='fastflow')"


def test_help_and_version():
    result = run("--help")
    assert result.exit_code == 0
    assert {"embed", "eval", "info", "verify"} <= set(result.stdout.split())
    assert run("--version").stdout.strip().endswith(__version__)
    for command in ("embed", "eval", "info", "verify"):
        assert run(command, "-h").exit_code == 0


@pytest.mark.parametrize("name", main.list_commands(click.Context(main)))
def test_an_option_takes_one_value(name):
    command = main.get_command(click.Context(main), name)
    options = [each for each in command.params if isinstance(each, click.Option) and not each.multiple]
    for option in (each for each in options if not each.is_flag or each.secondary_opts):
        short, long = option.opts[0], option.opts[-1]
        words = [short, option.secondary_opts[0]] if option.is_flag else [short, "a", long, "b"]
        said = "" if option.is_flag else ": a and b"
        with pytest.raises(click.UsageError, match=f"^{short}.* is given twice{said}; give it once$"):
            command.make_context(name, words, parent=click.Context(main, **main.context_settings))


def test_one_value_may_be_repeated(model, corpus):
    assert run("embed", corpus, "-m", model, "--model", model, "--quiet", "-q").exit_code == 0


@pytest.mark.slow
def test_the_models_in_the_package_are_named_wherever_a_model_is(corpus, monkeypatch):
    found = {}
    for name in ("default", "static"):
        assert run("verify", name).exit_code == 0
        found[name] = run("info", name).stdout, run("embed", corpus, "-m", name, "--quiet").stdout
        assert json.loads(found[name][0])["model"] == name
    assert (run("info").stdout, run("embed", corpus, "--quiet").stdout) == found["default"]
    monkeypatch.setenv("FASTFLOW_MODEL", "static")
    assert (run("info").stdout, run("embed", corpus, "--quiet").stdout) == found["static"] != found["default"]
    assert json.loads(run("info", "-m", "default").stdout)["model"] == "default"


def test_a_file_that_cannot_be_written_fails_after_the_table(model, tmp_path):
    write_pairs(tmp_path / "good.tsv")
    out = tmp_path / "absent" / "out.json"
    result = run("eval", tmp_path / "good.tsv", "--json", out, "-m", model)
    assert "good" in result.stdout
    assert (result.exit_code, result.stderr.count(f"{out} cannot be written: No such file")) == (1, 1)


HELP = """
import sys
sys.argv = ["fastflow", *sys.argv[1:]]
from fastflow.cli import main
try:
    main()
finally:
    assert "numpy" not in sys.modules and "torch" not in sys.modules
"""


@pytest.mark.parametrize("arguments", [("--help",), ("embed", "--help"), ("eval", "--help"), ("--version",)])
def test_help_loads_no_numpy(run_python, arguments):
    done = run_python(HELP, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "fastflow" in done.stdout


@pytest.mark.slow
def test_standard_input_and_a_locale_without_utf8(run_python, model):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    text = "naïve \u4e2d\u6587"
    done = run_python(MAIN, "embed", "-", "-m", model, "--quiet", input=text, env=environment, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["text"] == text


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_the_run_quietly(model, corpus, tmp_path):
    big = tmp_path / "big.txt"
    big.write_text(corpus.read_text() * 40)  # more than a pipe holds
    with subprocess.Popen(
        [FASTFLOW, "embed", big, "-m", model, "--quiet"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert json.loads(process.stdout.readline())["index"] == 0
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


@pytest.mark.parametrize("command", ["embed", "info", "eval", "verify", "--help", "--version", "embed --help"])
def test_a_full_standard_output_is_one_sentence(model, corpus, tmp_path, run_python, command):
    write_pairs(pairs := tmp_path / "pairs.tsv")
    arguments = {
        "embed": (corpus, "-m", model, "--quiet"), "info": (model,), "verify": (model,),
        "eval": (pairs, "-m", model, "--json", "-"),
    }.get(command, ())  # fmt: skip
    with open("/dev/full", "w") as full:
        words = (*command.split(), *arguments)
        done = run_python(MAIN, *words, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert lines[-1] == "fastflow: standard output cannot be written: No space left on device"
    assert all(line.startswith("fastflow: ") for line in lines)


@pytest.mark.slow
def test_a_disk_that_fills_keeps_what_is_there(model, tmp_path, sentences, run_python):
    source, out = tmp_path / "in.txt", tmp_path / "out"
    source.write_text("\n".join(sentences) + "\n")
    out.mkdir()
    code = "import fastflow.files.embed; fastflow.files.embed.WINDOW = 16\n" + MAIN
    arguments = ("embed", source, "-m", model, "-o", out / "x.npy", "--quiet")
    done = run_python(
        code, *arguments, env=USERS | {"PYTHONDONTWRITEBYTECODE": "1"},  # else what Python compiles is cut short too
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384)),
    )  # fmt: skip
    failed, kept = done.stderr.splitlines()
    assert done.returncode == 1
    assert kept.startswith("fastflow: 112 finished rows are in ")
    assert re.search(r"x\.npy cannot be written: File too large; free some space or choose another place", failed)
    assert sorted(path.name for path in out.iterdir()) == ["x.npy.partial", "x.npy.partial.json"]
    done = run_python(code, *arguments, "--resume")
    assert (done.returncode, done.stderr) == (0, "")
    assert np.load(out / "x.npy").shape == (256, 32)


def test_processes_of_a_suite_in_the_background_can_be_interrupted():
    child = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    code = (
        "from support import places; import subprocess, sys; "
        f"sys.exit(subprocess.run([sys.executable, '-c', {child!r}]).returncode == 0)"
    )
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", code]
    done = subprocess.run(command, cwd=TESTS, env=USERS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


STOPPED = """
import os, signal, sys
import fastflow.session, fastflow.files.embed
fastflow.files.embed.WINDOW, number, after = 16, int(sys.argv[1]), int(sys.argv[2])
real, calls = fastflow.session.Session.blocks, []
def blocks(*given):
    calls.append(given)
    return real(*given) if len(calls) <= after else os.kill(os.getpid(), number)
fastflow.session.Session.blocks = blocks
from fastflow.cli import main
main(sys.argv[3:])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status", "word"), [(2, 130, "interrupted"), (15, 143, "terminated")])
@pytest.mark.parametrize("after", [0, 6])
def test_a_signal_is_said_with_what_is_left_of_the_run(
    model, corpus, tmp_path, run_python, number, status, word, after
):
    target = tmp_path / "x.npy"
    done = run_python(STOPPED, number, after, "embed", corpus, "-m", model, "-o", target, "--quiet")
    left = {
        0: f"no rows of {target} were finished; the same command begins again",
        6: rf"\d\d finished rows are in {target}\.partial; the same command with --resume continues after them, if "
        "input, model and options stay as they are",
    }[after]
    assert done.returncode == status
    assert re.fullmatch(f"fastflow: {word}\nfastflow: {left}\n", done.stderr), done.stderr
    partial = ["x.npy.partial", "x.npy.partial.json"] if after else []
    assert sorted(path.name for path in tmp_path.glob("x*")) == partial


@pytest.mark.slow
def test_a_pipe_gets_its_first_rows_before_its_last(model):
    with subprocess.Popen(
        [FASTFLOW, "embed", "-", "-m", model, "--quiet"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        for text in ("the dog", "", "a cat"):
            process.stdin.write(text + "\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["text"] == text
        process.stdin.close()
        assert process.stdout.read() == ""
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", ["embed", "info"])
def test_a_closed_standard_output_is_one_sentence(model, corpus, command):
    arguments = {"embed": f"embed {corpus} -m {model} --quiet", "info": f"info {model}"}[command]
    done = subprocess.run(["sh", "-c", f"{FASTFLOW} {arguments} >&-"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(r"fastflow: standard output is closed; name a file [^\n]*\n", done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["", "2>&-", "2>/dev/full", "<&- >&- 2>&-"])
def test_standard_streams_change_neither_rows_nor_exit_code(model, corpus, tmp_path, how):
    """The output file must not get a number that something else writes to as standard error."""
    target = tmp_path / "x.npy"
    command = f"{FASTFLOW} embed {corpus} -m {model} -o {target} {how}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, "256 texts" in done.stderr) == (0, not how)
    assert np.load(target).shape == (256, 32)
    assert subprocess.run(["sh", "-c", command.replace("x.npy", "absent/x.npy")], check=False).returncode == 1


@pytest.mark.slow
def test_a_terminal_gets_short_lines_and_everyone_else_json(model, corpus):
    script = shutil.which("script")
    if script is None:
        pytest.skip("script(1) is not installed")
    command = [script, "-qec", f"{FASTFLOW} embed {corpus} -m {model} --quiet", "/dev/null"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    lines = done.stdout.splitlines()
    assert len(lines) == 257
    assert max(map(len, lines)) <= 85
    assert "32 numbers]" in lines[0]


PEAK = f"""
import re
try:
    {MAIN}
finally:
    print(re.search("VmHWM:\\\\s+(\\\\d+)", open("/proc/self/status").read())[1], file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".npy", ".jsonl"])
def test_memory_does_not_grow_with_the_input(tmp_path, run_python, suffix):
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    encoder = make_encoder(tmp_path / "encoder", hidden_act="relu", **shape)
    target, source, peaks = tmp_path / f"out{suffix}", tmp_path / "in.txt", []
    for lines in (10_000, 80_000):
        source.write_text(f"a dog{' ' * 100}\n" * lines)  # long, and soon encoded
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        done = run_python(PEAK, "embed", source, "-m", encoder, "-o", target, "--quiet", env=environment)
        assert done.returncode == 0
        peaks.append(int(done.stderr) / 1024)
    rows = np.load(target).shape if suffix == ".npy" else (sum(1 for _ in target.open()), 8)
    assert rows == (80_000, 8)
    assert peaks[1] <= peaks[0] + 4  # MiB; holding the texts alone would take ten
