"""A package of an extra that is not installed is named with the command that installs it, and no file is written."""

import sys

import pytest

from fastflow.errors import install

from support.builders import make_sentences
from support.commands import run

TASK = {
    "corpus.tsv": "id\ttitle\ttext\n1\t-\tx\n",
    "queries.tsv": "id\ttext\nq\tz\n",
    "qrels.tsv": "query\tdoc\tgrade\nq\t1\t1\n",
}
ROWS = [  # the absent module, its extra, and the words of a command; MODEL is a model
    ("huggingface_hub", "hub", "pull someone/model -o out"),
    ("sentence_transformers", "st", "verify MODEL --with st"),
    ("onnxruntime", "onnx", "verify MODEL --with onnx"),
    ("onnx", "onnx", "export MODEL --to onnx -o out"),
    ("matplotlib", "report", "report MODEL -o out"),
    ("pyarrow", "parquet", "embed in.parquet -m MODEL -o out.npy"),
    ("pyarrow", "parquet", "embed in.txt -m MODEL -o out.parquet"),
    ("zstandard", "zstd", "embed in.txt.zst -m MODEL -o out.npy"),
    ("starlette", "serve", "serve"),
    ("sklearn", "eval", "eval labels.tsv -m MODEL"),
    ("torch", "train", "embed in.txt --fit -m MODEL -o out.npy"),
    ("wordfreq", "languages", "train in.txt --encoder MODEL --language hu -o out"),
    ("ray", "ray", "embed in.txt --ray local -m MODEL -o out.parquet"),
]


@pytest.mark.parametrize(("module", "extra", "words"), ROWS, ids=[f"{row[0]}: {row[2].split()[0]}" for row in ROWS])
def test_it_is_named(bert, tmp_path, monkeypatch, module, extra, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task").mkdir()
    for name, text in TASK.items():
        (tmp_path / "task" / name).write_text(text)
    rows = [f"{split}\t{label}\t{label} {split}\n" for split in ("train", "test") for label in "ab"]
    (tmp_path / "labels.tsv").write_text("split\tlabel\ttext\n" + "".join(rows * 9))
    for name in ("in.txt", "in.txt.zst", "in.parquet"):
        (tmp_path / name).write_text("\n".join(make_sentences(9)) + "\n")
    before = sorted(tmp_path.iterdir())
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    done = run(*words.replace("MODEL", str(bert)).split())
    assert (done.exit_code, "Traceback" in done.stderr) == (1, False)
    said = done.stderr.replace("ray.data", "ray").replace("scikit-learn,", "sklearn,")
    assert f"needs {module}, which is not installed: run {install(extra)}" in said
    assert sorted(tmp_path.iterdir()) == before
