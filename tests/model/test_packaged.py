"""Models in the package: one copy of an encoder, and the former names of models."""

import json
import shutil
import sqlite3

import numpy as np
import pytest

import fastflow
from fastflow.errors import FastflowError
from fastflow.model.locate import DEFAULT, FORMER, PACKAGED, RENAMED
from fastflow.model.manifest import MODULES_FOLDER, fingerprint
from fastflow.model.verify import verify

from support.commands import run

TEXTS = ["The dog bit the man.", "The man bit the dog.", "Shares fell sharply."]


def change(directory, **entries):
    path = directory / "fastflow.json"
    manifest = json.loads(path.read_text())
    manifest["encoder"] |= entries
    path.write_text(json.dumps(manifest | {"fingerprint": fingerprint(manifest)}))


def test_default_is_small_and_a_calibration():
    assert not (DEFAULT / MODULES_FOLDER).exists()
    with fastflow.Runtime("small") as small, fastflow.Runtime() as default:
        pooled = small.encode(TEXTS)
        np.testing.assert_allclose(default.transform(pooled), default.encode(TEXTS), atol=2e-3)
        assert np.isfinite(default.log_prob(TEXTS)).all()


@pytest.mark.parametrize("name", [*PACKAGED])
def test_it_verifies(name):
    assert verify(PACKAGED[name])


def test_small_reads_the_order_of_words():
    with fastflow.Runtime("small") as small, fastflow.Runtime("static") as static:
        for runtime, least, most in ((small, 0.5, 0.999), (static, 0.9999, 1.0001)):
            first, second = runtime.encode(TEXTS[:2], normalize_embeddings=True)
            assert least < float(first @ second) < most


def test_a_copied_default_takes_the_encoder_of_this_package(tmp_path):
    shutil.copytree(DEFAULT, tmp_path / "m")
    want = fastflow.Runtime().encode(TEXTS)
    np.testing.assert_array_equal(fastflow.Runtime(tmp_path / "m").encode(TEXTS), want)
    change(tmp_path / "m", sha256="0" * 64)
    with pytest.raises(FastflowError, match="the packaged model small differs from the encoder that"):
        fastflow.Runtime(tmp_path / "m")
    change(tmp_path / "m", packaged="huge")
    with pytest.raises(FastflowError, match="field encoder: no packaged model is called 'huge'"):
        fastflow.Runtime(tmp_path / "m")


def test_files_of_the_former_default_are_of_untuned(tmp_path):
    assert {FORMER: fastflow.Runtime("untuned").fingerprint} == RENAMED
    (tmp_path / "t.txt").write_text("\n".join(TEXTS) + "\n")
    assert run("embed", tmp_path / "t.txt", "-m", "untuned", "-o", tmp_path / "t.db").exit_code == 0
    with sqlite3.connect(tmp_path / "t.db") as db:
        db.execute("UPDATE run SET value = 'default' WHERE name = 'model'")
        db.execute("UPDATE run SET value = ? WHERE name = 'fingerprint'", [FORMER])
    for more in ((), ("-m", "untuned")):
        found = run("search", tmp_path / "t.db", "a dog", *more)
        assert found.exit_code == 0
        assert "dog" in found.stdout
    other = run("search", tmp_path / "t.db", "a dog", "-m", "default")
    assert "was made with another model" in other.stderr
