"""Whole models on the triton backend, of the sizes that people run: on a GPU; in Triton's interpreter tiny ones.

The judge is float64. A vector's error may be twice that of the unfused computation, PyTorch's, at the same precision.
"""

import threading

import numpy as np
import pytest
import triton
from triton_interpret.dry_gpu import DryBackend

from fastflow import Runtime
from fastflow.backends import choose
from fastflow.backends.gpu import self_test
from fastflow.errors import UnsupportedArchitecture

from support.builders import calm, make_encoder, make_model, make_sentences

INTERPRETED = triton.knobs.runtime.interpret
# tokens after a bucket's last text are computed from whatever memory held, and never read
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
TOKENS = (1, 2) if INTERPRETED else (1, 13, 14, 15, 61, 62, 63, 125, 253, 509)  # of texts, two special tokens less
FLOOR = {
    "float32": 1e-6,
    "float16": 2e-4,
    "bfloat16": 2e-3,
}  # relative: a vector is rounded more often than it is computed
WIDE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
# name: (family, settings, stages)
SIZES = {
    "minilm": ("bert", MINILM, "flow"),
    "bert-base": ("bert", WIDE, "flow,recolour"),
    "xlm-r": ("xlm-roberta", WIDE, "none"),
}
if INTERPRETED:
    small = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
    SIZES = {name: (family, small, stages) for name, (family, _, stages) in SIZES.items() if name != "bert-base"}
PACKAGED = {} if INTERPRETED else {"default": None, "static": "static"}
DTYPES = ("float32",) if INTERPRETED else ("float32", "bfloat16", "float16")
ROUNDS = 1 if INTERPRETED else 20


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """name -> what Runtime takes, each made when first asked for."""
    made = dict(PACKAGED)

    def make(name):
        if name not in made:
            family, settings, stages = SIZES[name]
            folder = tmp_path_factory.mktemp(name)
            encoder = make_encoder(folder / "encoder", family, max_position_embeddings=514, **settings)
            calm(encoder, settings["hidden_size"])
            made[name] = make_model(folder / "model", encoder, make_sentences(96, 3), stages, max_length=512)
        return made[name]

    return make


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    if INTERPRETED:
        monkeypatch.setattr("fastflow.backends.triton.TritonBackend", DryBackend)
        monkeypatch.setattr(choose, "_has_cuda", lambda: True)
        monkeypatch.setattr(self_test, "LENGTHS", ((3,),))
        monkeypatch.setattr(self_test, "ROWS", (1,))


def on_gpu(model, dtype="float32"):
    return Runtime(model, "cuda", dtype, backend="triton")


def texts_of_every_length():
    return [*make_sentences(3 if INTERPRETED else 40, 1), *(" ".join(["house"] * n) for n in TOKENS)]


def error(found, exact):
    assert np.isfinite(found).all()
    return np.linalg.norm(found - exact, axis=1) / np.linalg.norm(exact, axis=1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*SIZES, *(name for name in PACKAGED if name != "static")])
def test_vectors_are_as_good_as_pytorchs(name, dtype, models, monkeypatch, record_property):
    in_half = choose.BACKENDS["torch"]._replace(dtypes=DTYPES)
    monkeypatch.setitem(choose.BACKENDS, "torch", in_half)  # users are not offered its float16
    model, texts = models(name), texts_of_every_length()
    exact = Runtime(model, backend="reference", dtype="float64").encode(texts)
    where = "cpu" if INTERPRETED else "cuda"
    unfused = error(Runtime(model, where, dtype, backend="torch").encode(texts), exact)
    ours = on_gpu(model, dtype)
    packed, alone = ours.encode(texts), np.concatenate([ours.encode([text]) for text in texts])
    for which, off in (("packed", error(packed, exact)), ("alone", error(alone, exact))):
        for what, of in (("median", np.median), ("largest", np.max)):
            record_property(f"{what} error of {which}, over PyTorch's", f"{of(off):.1e} over {of(unfused):.1e}")
            assert of(off) <= 2 * of(unfused) + FLOOR[dtype]


@pytest.mark.skipif(INTERPRETED, reason="a token table on a GPU is PyTorch's: needs a GPU")
def test_the_token_table_in_the_package():
    texts = texts_of_every_length()
    found, exact = Runtime("static", "cuda").encode(texts), Runtime("static", backend="reference").encode(texts)
    assert error(found, exact).max() <= 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
def test_graphs_replayed_with_changing_texts_repeat_their_bits(dtype, models):
    ours, sentences = on_gpu(models("minilm"), dtype), make_sentences(120, 5)
    sizes = (1, 1) if INTERPRETED else (1, 1, 1, 2, 3, 5, 8, 13, 27, 32) * 5
    lists = [sentences[start : start + size] for start, size in enumerate(sizes)]
    first = [ours.encode(texts) for texts in lists]
    order = np.random.default_rng(0)
    for _ in range(ROUNDS):
        for number in order.permutation(len(lists)):
            assert np.array_equal(ours.encode(lists[number]), first[number])


@pytest.mark.parametrize("dtype", DTYPES)
def test_company_changes_no_bit_of_a_text(dtype, models):
    """In a batch of the same size: the graph, and so every product, is the same."""
    ours, sentences = on_gpu(models("minilm"), dtype), make_sentences(400, 6)
    short = [text for text in sentences if len(text.split()) <= 13]
    draw, text = np.random.default_rng(1), short[0]
    for size in (2,) if INTERPRETED else (2, 4, 8, 16, 32):
        wanted = None
        for _ in range(5 * ROUNDS if size > 2 or INTERPRETED else 16 * ROUNDS):
            batch = [short[i] for i in draw.integers(1, len(short), size)]
            place = int(draw.integers(size))
            batch[place] = text
            found = ours.encode(batch)[place]
            wanted = found if wanted is None else wanted
            assert np.array_equal(found, wanted), f"{size} texts, place {place}: {np.abs(found - wanted).max():.1e}"


def test_threads_do_not_disturb_each_other(models):
    ours, sentences = on_gpu(models("minilm")), make_sentences(60, 7)
    lists = [sentences[:1], sentences[:2]] if INTERPRETED else [sentences[i : i + 1 + 7 * i] for i in range(6)]
    alone, wrong = [ours.encode(texts) for texts in lists], []

    def work(seed):
        for number in np.random.default_rng(seed).integers(0, len(lists), 2 if INTERPRETED else 150):
            if not np.array_equal(ours.encode(lists[number]), alone[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("family", ["mpnet", "modernbert"])
def test_architectures_of_the_cpu_are_refused_by_name(family, tmp_path):
    with pytest.raises(UnsupportedArchitecture, match=family):
        on_gpu(make_encoder(tmp_path / family, family))
