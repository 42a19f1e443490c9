"""The contract of a command that cannot work: one sentence, an exit code, nothing printed and no file changed.

A row is a command as it is typed in the folder ``desk``, its exit code, and words of its sentence.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fastflow.errors import missing_extra

from support.commands import assert_one_sentence, run
from support.matrices import make_vector_model, make_vectors
from support.sentence_dirs import NORMALIZE, make_directory, pooling

FIELDS = {"text": "a", "Text": "b", "VECTOR": 1, "Title": 2, "tItle": 3, "ID": 4}
WITHOUT_A_MODEL = [
    ("embed absent.txt", 1, "absent.txt cannot be opened: No such file or directory"),
    ("embed", 2, "Missing argument"),
    ("embed absent.docx", 1, "absent.docx cannot be opened: No such file"),
    ("embed in.docx", 2, "unknown suffix .docx; texts are read from txt, tsv, csv, jsonl, json, parquet: if it is"),
    ("embed v.npy", 2, "v.npy holds vectors, not texts"),
    ("embed in.csv --no-header --delimiter ';;'", 2, "--delimiter ';;': must be one character"),
    ("embed in.txt --no-header", 2, "--no-header is for csv and tsv"),
    ("embed in.txt --shard 5/4", 2, "--shard 5/4: must be I/N"),
    ("embed in.txt --batch-tokens 0", 2, "0 is not in the range"),
    ("embed in.txt --shard 1/2", 2, "--shard needs an output, for a part has a manifest beside it: -o DIR"),
    ("embed - --shard 1/2 -o new", 2, "--shard counts the rows before it takes its part"),
    ("embed - --resume -o x.npy", 2, "--resume cannot reread standard input; give a file"),
    ("embed in.txt --resume", 2, "--resume needs an output file: -o OUT"),
    ("embed in.txt -o x.xyz", 2, "unknown suffix '.xyz'"),
    ("embed in.txt -o folder", 2, "folder is a directory; name a file in it, or make a part in it with --shard I/N"),
    # no command replaces a directory
    *(
        (f"{command} folder", 2, "folder exists already; remove it or choose another")
        for command in (
            "export default --to st -o",
            "export default --to onnx -o",
            "export static --to model2vec -o",
            "export default --to adapter -o",
            "distill default in.txt -o",
            "embed in.txt --fit --save-model",
        )
    ),
    ("pull someone/model -o folder", 2, "folder exists already, and was not pulled from the Hub; remove it or choose"),
    ("embed in.txt -o x.npy --log-prob", 2, "No such option"),
    ("embed in.txt --prompt a --prompt-name b", 2, "give --prompt or --prompt-name, not both"),
    ("embed in.txt --prompt-name b --fit", 2, "--fit makes a model without prompts of its own"),
    ("embed in.txt --fit --shard 1/2 -o new", 2, "--fit and --shard: every shard needs one and the same"),
    ("embed in.txt --only-new", 2, "--only-new leaves out the texts of earlier runs, which --cache FILE.db knows: a"),
    ("embed in.txt --only-new --cache c.db --shard 1/2 -o new", 2, "--only-new and --shard: the rows of a part are"),
    ("embed in.txt --dim 0", 2, "0 is not in the range x>=1"),
    ("embed in.txt --precision int4", 2, "'int4' is not one of"),
    ("embed in.txt --format xml", 2, "unknown format 'xml'; known are txt, tsv, csv, jsonl, json, parquet"),
    # the output and the cache are no file of the run
    ("embed in.txt -o in.txt", 2, "unknown suffix '.txt'"),
    ("embed in.jsonl -o in.jsonl", 2, "in.jsonl is the input; choose another output with -o"),
    ("embed a.jsonl in.jsonl -o in.jsonl", 2, "in.jsonl is the input; choose another output with -o"),
    ("embed o.npy.partial -o o.npy --format txt", 2, "o.npy.partial is the input; choose another output with -o"),
    ("embed o.npy.partial.json -o o.npy --format txt", 2, "o.npy.partial.json is the input; choose another output"),
    ("embed o.db.partial.tmp -o o.db --format txt", 2, "o.db.partial.tmp is the input; choose another output"),
    ("embed in.txt --cache in.txt", 2, "is the input or the output; name a file of its own"),
    ("embed in.txt --cache x.npy -o x.npy", 2, "is the input or the output; name a file of its own"),
    ("embed in.txt --cache x.npy.partial -o x.npy", 2, "is the input or the output; name a file of its own"),
    ("embed in.txt --cache x.npy", 2, "--cache x.npy: a cache is an SQLite file, and .npy is of another format;"),
    ("embed in.txt --cache mine.TXT", 2, ".TXT is of another format; name a FILE.db"),
    ("embed in.txt --cache x.db.gz", 2, ".gz is of another format; name a FILE.db"),
    # fields
    ("embed in.jsonl", 1, "which field is the text? Use --text-field; the fields are title, body"),
    ("embed in.jsonl --text-field x", 1, "in.jsonl, line 1: no field 'x'; the fields are title, body"),
    ("embed in.jsonl --text-field body --keep x", 1, "in.jsonl, line 1: no field 'x' to keep; the fields are title, b"),
    ("embed in.txt --keep url", 2, "in.txt: a txt file has no fields, so --keep url"),
    ("embed in.txt --text-field a", 2, "in.txt: a txt file has no fields"),
    ("embed in.txt --id-field id", 2, "a txt file has no fields"),
    ("embed nan.jsonl --keep n", 1, "field 'n' is no JSON value"),
    ("embed a.jsonl --keep VECTOR,", 2, "--keep VECTOR,: must name fields, each once"),
    ("embed a.jsonl --keep ID --keep ID", 2, "--keep ID,ID: must name fields, each once"),
    ("embed a.jsonl -o x.npy --keep ID", 2, "a .npy file has no place for fields"),
    ("embed a.jsonl -o x.npz --keep ID", 2, "x.npz: unknown suffix '.npz'; the output can be .npy, .jsonl"),
    ("embed a.jsonl -o x.npy --id-field ID", 2, "has no place for ids; write .jsonl, .parquet or .db"),
    ("embed a.jsonl --keep text", 2, "JSON Lines has a field 'text' of its own"),
    ("embed a.jsonl --id-field text -o x.jsonl", 2, "has a field 'text' of its own; rename yours, or leave out --id-f"),
    ("embed a.jsonl --id-field VECTOR -o x.db", 2, "has a field 'VECTOR' of its own; rename yours, or leave out --id"),
    ("embed a.jsonl --keep index -o x.jsonl", 2, "x.jsonl: a .jsonl file has a field 'index' of its own"),
    ("embed a.jsonl --keep Text -o x.db", 2, "has a field 'Text' of its own; rename yours, or leave out --keep Text"),
    ("embed a.jsonl --keep VECTOR -o x.db", 2, "has a field 'VECTOR' of its own"),
    ("embed a.jsonl --keep tItle --id-field Title -o x.db", 2, "cannot hold 'Title' and 'tItle', which differ in case"),
    ("embed a.jsonl --keep Title,tItle -o x.db", 2, "cannot hold 'Title' and 'tItle', which differ in case alone; k"),
    ("embed a.jsonl --id-field ID --shard 1/2 -o new", 2, "name the part: -o new/part-00001-of-00002.parquet"),
    ("embed a.jsonl --keep ID --shard 1/2 -o new", 2, "name the part: -o new/part-00001-of-00002.parquet"),
    ("embed in.jsonl --id-field id --shard 1/2 -o new", 2, "name the part: -o new/part-00001-of-00002.parquet"),
    # inputs
    ("embed in.txt a.jsonl", 2, "in.txt is txt and a.jsonl is jsonl: the inputs of a run must be of one format"),
    ("embed pairs.tsv", 2, "holds pairs of texts; choose one with --text-field sentence1 or sentence2"),
    ("embed bytes.txt", 1, "bytes.txt, line 1: byte 1 is not UTF-8"),
    ("embed a.jsonl --null", 2, "--null is for txt, and this file is read as jsonl"),
    ("embed typed.parquet --keep blob", 2, "column 'blob' is binary, which JSON and text cannot hold"),
    ("embed typed.parquet --keep span -o x.jsonl", 2, "column 'span' is duration[us], which JSON and text cannot hold"),
    ("embed in.txt -o x.safetensors", 2, "x.safetensors: unknown suffix '.safetensors'; the output can be .npy"),
    ("merge parts -o x.npz", 2, "x.npz: unknown suffix '.npz'; the output can be .npy, .jsonl"),
    ("embed typed.parquet other.parquet --keep n", 1, "other.parquet: the column 'n' is string, and int64 in an input"),
    # ranges
    ("embed in.txt -o x.npy --ranges v.npy --precision int8", 2, "No such option"),
    ("transform v.npy -o x.npy --ranges v.npy", 2, "No such option"),
    # on a cluster, before Ray is imported
    *(
        (f"embed in.txt --ray local -o x.npy {option}", 2, f"{option.split()[0]} does not work with --ray: {remedy}")
        for option, remedy in (
            ("--shard 1/2", "Ray makes the parts itself, so leave out one of them"),
            ("--fit", "fit once with fastflow-train, then give -m MODEL"),
            ("--save-model m", "fit once with fastflow-train, then give -m MODEL"),
            ("--only-new --cache c.db", "leave out one of them"),
            ("--json", "leave out one of them"),
        )
    ),
    ("embed in.txt --ray local -o x.npy --device cuda", 2, "--ray computes on CPUs: leave out --device cuda"),
    ("embed in.txt --ray local", 2, "--ray needs an output: -o OUT, in a folder that every node has"),
    ("embed - --ray local -o x.npy", 2, "--ray reads the inputs on every node, which cannot be standard input"),
    ("embed in.txt --ray local -o folder", 2, "folder is a directory; name a file in it"),
    ("embed bytes.txt --ray local -o x.npy", 1, "bytes.txt, line 1: byte 1 is not UTF-8"),
    ("embed in.txt --ray -o x.npy", 2, "--ray needs ADDRESS or local, and '-o' is neither: give HOST:PORT, auto"),
    ("embed in.txt --ray somewhere out", 2, "and 'somewhere' is neither: give HOST:PORT, auto or local"),
    ("embed in.txt --ray ray://127.0.0.1:10001 out", 2, "Ray Client is not supported: give HOST:6379, or start"),
    ("embed in.txt --ray local -o x.npy", 1, str(missing_extra("ray", "ray", "fastflow embed --ray"))),
    # parts, caches, servers
    ("merge absent -o x.npy", 2, "absent cannot be read"),
    ("merge folder -o x.npy", 1, "folder holds no parts; make them with fastflow embed INPUT --shard I/N"),
    ("status folder", 1, "folder holds no parts; make them with fastflow embed INPUT --shard I/N"),
    ("merge parts -o x.jsonl", 2, "the parts are .npy files, such as parts/1.npy"),
    ("merge parts -o x.arrow", 2, "unknown suffix '.arrow'; the output can be .npy"),
    ("merge parts -o parts/1.npy", 2, "parts/1.npy is one of the parts"),
    ("cache none.db", 2, "none.db does not exist; name a folder of fastflow-train --cache-folder or a file"),
    ("cache none.db --clear", 2, "none.db does not exist; name a folder of fastflow-train --cache-folder or a file"),
    ("serve -m no-such-model", 1, "no-such-model"),
    ("train in.txt --encoder default --out m", 2, "No such option"),
    ("train in.txt --encoder default -o m --cache c", 2, "No such option"),
    ("train in.txt --encoder default", 2, "Missing option '-o' / '--output'"),
    ("report --html r.html", 2, "No such option"),
    ("bench --suite all --out d", 2, "No such option"),
    ("similarity one", 2, "similarity compares texts: give two or more, each in quotes"),
    ("info m -m n", 2, "give the model once, as an argument or with -m"),
    ("embed in.txt --json", 2, "standard output has the embeddings: give --json FILE, or -o OUT"),
    ("cache --clear --json", 2, "--json lists what is kept: leave it out, or leave out --clear"),
    ("trains", 2, "No such command 'trains'. (Did you mean one of: 'train', 'transform'?)"),
    ("embd", 2, "No such command 'embd'. (Did you mean 'embed'?)"),
    ("serch", 2, "No such command 'serch'. (Did you mean one of: 'search', 'serve', 'bench'?)"),
    ("zebra", 2, "No such command 'zebra'."),
    ("embed in.txt --encoding cp12520", 2, "--encoding cp12520: Python knows no such encoding; name one such as cp125"),
    ("info absent", 1, "absent: no such model directory"),
    ("verify absent", 1, "fastflow.json cannot be read: No such file"),
    ("verify .", 1, "fastflow.json cannot be read: No such file"),
    ("eval absent.tsv", 2, "does not exist"),
    ("eval .", 1, "pairs.tsv, line 1: the header must be"),
    (
        "eval pairs.tsv",
        1,
        "pairs.tsv, line 1: the header must be 'subset score sentence1 sentence2', 'split label [votes] sentence1 "
        "sentence2' or 'split label [fine_label] text', separated by tabs, not ",
    ),
    ("eval in.txt", 1, "in.txt: is one .txt file of sentences; name another with the same sentences in another langu"),
    ("eval in.txt bytes.txt", 1, "bytes.txt, line 1: byte 1 is not UTF-8; convert the file"),
    ("serve --api-key-file none.txt", 1, "none.txt cannot be read"),
    ("serve --uds s --port 9000", 2, "--uds takes the place"),
    ("serve --timeout 0", 2, "--timeout"),
    ("serve --port 70000", 2, "--port"),
    ("serve --port 0 --search v.npy", 2, "--search takes a .db with texts, not v.npy"),
    ("serve --port 0 --search none.db", 1, "none.db cannot be read"),
]
WITH_A_MODEL = [
    (
        "embed folder -m {model}",
        1,
        "folder cannot be opened: Is a directory; give the files in it, a text a line: 'folder/*'",
    ),
    ("embed . -m {model}", 2, ".: ./"),  # Parquet among other files
    ("embed 'The dog runs.' -m {model}", 1, "a text itself is given through standard input"),
    ("embed in.csv -m {model}", 1, "in.csv, line 1: is this the header or the first text"),
    ("embed in.txt -m absent", 1, "absent: no such model directory"),
    ("embed in.txt -m folder", 1, "is not a model"),
    ("embed in.txt -m {model} --threads 0", 2, "threads must be a whole number of at least 1"),
    ("embed in.txt -m {model} --device tpu", 2, "unknown device 'tpu'"),
    ("embed in.txt -m {model} --dtype int3", 2, "unknown dtype 'int3'; known are auto, float32"),
    ("embed in.txt -m {model} --dtype float16", 2, "runs on a GPU alone (device cuda); on the CPU use auto, float32"),
    ("embed in.txt -m {model} -o x.npy --dim 33", 2, "--dim must be 1 to 32"),
    ("embed fault.jsonl -m {model} -o new.d/x.npy", 1, "new.d/x.npy.partial cannot be written: No such file or direc"),
    ("embed in.txt -m {model} -o /proc/x.npy", 1, "/proc/x.npy.partial cannot be written: "),
    (
        f"embed in.txt -m {{model}} -o {'x' * 300}.npy",
        1,
        "cannot be written: File name too long; choose another place w",
    ),
    ("embed a.jsonl fault.jsonl -m {model} -o x.npy", 1, "fault.jsonl, line 2: field 'text' is not a string"),
    ("embed - -m {model} -0", 1, "-, text 2: byte 1 is not UTF-8"),
    ("embed in.txt -m {prompts} --prompt-name no", 2, "no prompt is called 'no': known are query, document, title"),
    ("embed in.txt -m {prompts} --truncate error --prompt '{long}'", 1, "line 1: longer than the model's 64 tokens"),
    ("transform v.npy -o x.npy -m {other}", 1, "v.npy holds vectors of 32 numbers, and the model "),
    ("transform v.npy -o x.npy", 1, "v.npy holds vectors of 32 numbers, and the model default takes 256"),
    ("transform v.npy -m {vectors}", 2, "Missing option '-o'"),
    ("transform v.npy -m {vectors} -o v.npy", 2, "v.npy is the input"),
    ("transform v.npy -m {vectors} -o x.npz", 2, "x.npz: unknown suffix '.npz'; the output can be .npy, .jsonl"),
    ("transform v.npy -m {vectors} -o x.jsonl", 2, "the lines of a .jsonl file hold texts"),
    ("transform v.npy -m {vectors} -o x.parquet", 2, "the rows of a .parquet file hold texts, and these are vectors;"),
    ("transform v.npy -m {vectors} -o x.db", 2, "the rows of a .db file hold texts, and these are vectors; write .npy"),
    ("transform v.npy -m {vectors} -o x.npy --dim 33", 2, "--dim must be 1 to 32"),
    ("transform v.npy -m {vectors} -o x.npy --dtype int8", 2, "Invalid value for '--dtype': 'int8' is not one of"),
    ("transform v.npy -m {vectors} -o x.npy --precision int4", 2, "'int4' is not one of"),
    ("transform - -m {vectors} -o x.npy", 2, "vectors come as a .npy file"),
    ("transform absent.npy -m {vectors} -o x.npy", 1, "absent.npy cannot be opened"),
    ("transform nan.npy -m {vectors} -o x.npy", 1, "nan.npy, row 77: holds NaN or infinity"),
    ("embed in.txt -m {vectors}", 2, "calibrates vectors and has no encoder: give vectors to transform"),
    ("embed in.txt -m {vectors} -o x.npy --resume", 2, "calibrates vectors and has no encoder: give vectors to trans"),
    ("embed in.txt -m {vectors} --dedupe", 2, "calibrates vectors and has no encoder: give vectors to transform"),
    ("eval scored.tsv -m {vectors}", 2, "calibrates vectors and has no encoder: give vectors to transform"),
    ("bench --suite flow --quick -m {vectors}", 2, "calibrates vectors and has no encoder: give vectors to transform"),
    ("report {model} -o r.html", 2, "report has nothing to measure: give text with --corpus FILE, scored pairs wi"),
    ("report {vectors} -o r.html", 2, "calibrates vectors and has no encoder: give vectors to transform"),
    ('search x.db a -m {model} --where "lang = \'de"', 2, "cannot be used: a quote is not closed"),
    ("search x.db a -m {model} --where '1; DROP TABLE texts'", 2, "cannot be used"),
    ("search v.npy a -m {model} --where 1", 2, "v.npy has no columns, so no condition can choose its rows"),
    ("search absent.db a -m {model}", 1, "absent.db cannot be read: No such file"),
    ("search a.jsonl a -m {model}", 2, "cannot be searched; make a .db with fastflow embed -o OUT.db"),
    ("search x.db a -m {model} --texts a.jsonl", 2, "x.db has the texts itself: leave out a.jsonl"),
    ("search v.npy a -m {model} --texts absent.txt", 1, "absent.txt cannot be opened"),
    ("search x.db a -m {bert} --quiet", 1, "was made with another model, "),
    ("serve --port 0 -m {bert} --search x.db", 1, "was made with another model"),
]


@pytest.fixture(scope="module")
def desk(tmp_path_factory, model) -> Path:
    """The files that the commands name; no command may change them."""
    folder = tmp_path_factory.mktemp("desk")
    for name, text in {
        "in.txt": "a dog\n", "in.csv": "a dog\n", "in.docx": "",
        "in.jsonl": '{"title": "a", "body": "b"}\n', "a.jsonl": json.dumps(FIELDS) + "\n",
        "nan.jsonl": '{"text": "a", "n": NaN}\n', "fault.jsonl": '{"text": "a"}\n{"text": 3}\n',
        "pairs.tsv": "sentence1\tsentence2\na\tb\n", "o.npy.partial": "a\n", "o.npy.partial.json": "a\n",
        "o.db.partial.tmp": "a\n",
        "scored.tsv": "subset\tscore\tsentence1\tsentence2\na\t1\tthe dog\ta cat\na\t2\tit\tshe\n",
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    (folder / "bytes.txt").write_bytes(b"\xff\n")
    spoilt = make_vectors(100)
    np.save(folder / "v.npy", spoilt)
    spoilt[77, 3] = np.inf
    np.save(folder / "nan.npy", spoilt)
    (folder / "folder").mkdir()
    span = pa.array([1], pa.duration("us"))
    pq.write_table(pa.table({"text": ["a"], "n": [1], "span": span, "blob": [b"a"]}), folder / "typed.parquet")
    pq.write_table(pa.table({"text": ["a"], "n": ["1"]}), folder / "other.parquet")
    for number in (1, 2):
        part = ("--shard", f"{number}/2", "-o", folder / "parts" / f"{number}.npy")
        assert run("embed", folder / "in.txt", "-m", model, "--quiet", *part).exit_code == 0
    assert run("embed", folder / "in.txt", "-m", model, "--quiet", "-o", folder / "x.db").exit_code == 0
    return folder


@pytest.fixture(scope="module")
def names(tmp_path_factory, model, bert, vector_model) -> dict[str, object]:
    """The models by the names that a row gives them."""
    folder = tmp_path_factory.mktemp("models")
    prompts = {"prompts": {"query": "the old ", "title": "a red "}, "default_prompt_name": "title"}
    asked = make_directory(folder / "prompts", bert, [pooling("mean"), NORMALIZE], **prompts)
    other = make_vector_model(folder / "other", "whiten:4", dim=16)
    known = {"model": model, "bert": bert, "vectors": vector_model, "other": other, "prompts": asked}
    return {**known, "long": "a " * 70}


@pytest.fixture(autouse=True)
def place(desk, monkeypatch):
    """The folder of the files; Ray cannot be imported."""
    monkeypatch.chdir(desk)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)


def named(table: list[tuple[str, int, str]]) -> list[Any]:
    """A case for each row; the command that imports PyTorch is a slow one."""
    return [pytest.param(*row, id=row[0], marks=[pytest.mark.slow] * row[0].startswith("bench")) for row in table]


def refused(desk: Path, command: str, code: int, message: str) -> None:
    before = {path: path.read_bytes() for path in desk.rglob("*") if path.is_file()}
    assert_one_sentence(run(*shlex.split(command), stdin=b"a dog\0\xff\0"), code, message)
    assert {path: path.read_bytes() for path in desk.rglob("*") if path.is_file()} == before
    assert not (desk / "new").exists()


@pytest.mark.parametrize(("command", "code", "message"), named(WITHOUT_A_MODEL))
def test_it_is_refused_before_the_model_is_loaded(desk, monkeypatch, command, code, message):
    def opened(*arguments):
        raise AssertionError("the model was loaded")

    if not command.startswith("serve"):
        monkeypatch.setattr("fastflow.commands.embed.open_runtime", opened)
    refused(desk, command, code, message)


@pytest.mark.parametrize(("command", "code", "message"), named(WITH_A_MODEL))
def test_it_is_refused_with_the_model(desk, names, command, code, message):
    refused(desk, command.format(**names), code, message)
