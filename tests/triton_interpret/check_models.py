"""Whole models on the triton backend: on a GPU of the sizes that people run; in Triton's interpreter tiny ones.

On a GPU the judge is float64: a vector's error may be twice the error of PyTorch's unfused computation in its dtype.
"""

import threading

import numpy as np
import pytest
import triton
from triton_interpret.dry_gpu import DryBackend

from fastflow import Runtime
from fastflow.backends import choose
from fastflow.backends.gpu import self_test
from fastflow.errors import WrongOnGpu
from fastflow.kernels.encoder import triton_bodies as of_encoder
from fastflow.kernels.flow import triton_bodies as of_flow

from support.builders import calm, make_encoder, make_model, make_sentences

INTERPRETED = triton.knobs.runtime.interpret
# tokens after a bucket's last text are computed from whatever memory held, and never read
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
ON_A_GPU = pytest.mark.skipif(INTERPRETED, reason="thousands of launches: needs a GPU")
TINY = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
WIDE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
SIZES = {  # name -> family, settings, stages
    "minilm": ("bert", MINILM, "flow"),
    "bert-base": ("bert", WIDE, "flow,recolour"),
    "xlm-r": ("xlm-roberta", WIDE, "none"),
}
# relative: a vector is rounded more often than it is computed
FLOOR = {"float32": 1e-6, "float16": 2e-4, "bfloat16": 2e-3}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make_encoder(tmp_path_factory.mktemp("encoder"), "roberta", **(TINY if INTERPRETED else {}))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """name -> what Runtime takes, each made when first asked for."""
    made = {"default": None}

    def make(name):
        if name not in made:
            family, settings, stages = SIZES[name]
            folder = tmp_path_factory.mktemp(name)
            encoder = make_encoder(folder / "encoder", family, max_position_embeddings=514, **settings)
            calm(encoder, settings["hidden_size"])
            made[name] = make_model(folder / "model", encoder, make_sentences(96, 3), stages, max_length=512)
        return made[name]

    return make


@pytest.fixture
def runtime(directory, monkeypatch):
    if INTERPRETED:
        monkeypatch.setattr("fastflow.backends.triton.TritonBackend", DryBackend)
        monkeypatch.setattr(choose, "_has_cuda", lambda: True)
        monkeypatch.setattr(self_test, "LENGTHS", ((3,),))
        monkeypatch.setattr(self_test, "ROWS", (1,))
        monkeypatch.setattr(self_test, "COPIES", 1)
    return lambda dtype="float32", model=directory: Runtime(model, "cuda", dtype, backend="triton")


def in_the_pipeline(runtime, texts):
    """As if no graph were made for so few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastflow.backends.triton.bucket_for", lambda *_: None)
        return runtime.encode(texts)


@pytest.mark.parametrize("weighted", [False, True])
def test_texts_equal_the_reference_on_every_path(runtime, directory, tmp_path, weighted):
    texts, options = make_sentences(3, 1), {"pooling": "last", "weighted": weighted}
    model = make_model(tmp_path / "m", directory, make_sentences(64, 3), "none", **options)
    ours, exact = runtime(model=model), Runtime(model, backend="reference").encode(texts)
    alone, together, packed = ours.encode(texts[:1]), ours.encode(texts), in_the_pipeline(ours, texts)
    for found, wanted in ((alone, exact[:1]), (together, exact), (packed, exact), (ours.pool(texts[:1]), exact[:1])):
        assert np.isfinite(found).all()
        assert np.abs(found - wanted).max() <= 2e-5 * np.abs(wanted).max()


class Idle:
    """A kernel that leaves its output as it is."""

    def __init__(self, kernel):
        self.arg_names = kernel.arg_names

    def __getitem__(self, grid):
        return lambda **values: None


BODIES = {of_encoder: ("embed", "attend", "add_norm", "activate"), of_flow: ("pool_mean", "flow_emit", "unit_rows")}


@pytest.mark.parametrize(("bodies", "name"), [(module, name) for module, names in BODIES.items() for name in names])
def test_a_body_that_computes_nothing_is_found_at_opening(runtime, monkeypatch, bodies, name):
    monkeypatch.setattr(bodies, name, Idle(getattr(bodies, name)))
    with pytest.raises(WrongOnGpu, match=r"the triton backend cannot be trusted on this GPU: .* differ from NumPy's"):
        runtime()


def texts_of_every_length():
    counts = (1, 13, 14, 15, 61, 62, 63, 125, 253, 509)  # of tokens, two special tokens less
    return [*make_sentences(40, 1), *(" ".join(["house"] * n) for n in counts)]


def error(found, exact):
    assert np.isfinite(found).all()
    return np.linalg.norm(found - exact, axis=1) / np.linalg.norm(exact, axis=1)


@ON_A_GPU
@pytest.mark.parametrize("dtype", FLOOR)
@pytest.mark.parametrize("name", [*SIZES, "default"])
def test_vectors_are_as_good_as_pytorchs(name, dtype, models, runtime, monkeypatch, record_property):
    in_half = choose.BACKENDS["torch"]._replace(dtypes=tuple(FLOOR))
    monkeypatch.setitem(choose.BACKENDS, "torch", in_half)  # users are not offered its float16
    model, texts = models(name), texts_of_every_length()
    exact = Runtime(model, backend="reference", dtype="float64").encode(texts)
    unfused, ours = error(Runtime(model, "cuda", dtype, backend="torch").encode(texts), exact), runtime(dtype, model)
    for size in (len(texts), 33, 16, 7, 4, 2, 1):
        found = np.concatenate([ours.encode(texts[i : i + size]) for i in range(0, len(texts), size)])
        off = error(found, exact)
        for what, of in (("median", np.median), ("largest", np.max)):
            record_property(f"{what} error by {size}, over PyTorch's", f"{of(off):.1e} over {of(unfused):.1e}")
            assert of(off) <= 2 * of(unfused) + FLOOR[dtype]


@ON_A_GPU
def test_the_token_table_in_the_package():
    texts = texts_of_every_length()
    found, exact = Runtime("static", "cuda").encode(texts), Runtime("static", backend="reference").encode(texts)
    assert error(found, exact).max() <= 1e-5


@ON_A_GPU
@pytest.mark.parametrize("dtype", FLOOR)
def test_graphs_replayed_with_changing_texts_repeat_their_bits(dtype, models, runtime):
    ours, sentences = runtime(dtype, models("minilm")), make_sentences(120, 5)
    lists = [sentences[start : start + size] for start, size in enumerate((1, 1, 1, 2, 3, 5, 8, 13, 27, 32) * 5)]
    first = [ours.encode(texts) for texts in lists]
    order = np.random.default_rng(0)
    for _ in range(20):
        for number in order.permutation(len(lists)):
            assert np.array_equal(ours.encode(lists[number]), first[number])


@ON_A_GPU
@pytest.mark.parametrize("dtype", FLOOR)
def test_company_changes_no_bit_of_a_text(dtype, models, runtime):
    """In a batch of the same size: the graph, and so every product, is the same."""
    ours, sentences = runtime(dtype, models("minilm")), make_sentences(400, 6)
    short = [text for text in sentences if len(text.split()) <= 13]
    draw, text = np.random.default_rng(1), short[0]
    for size in (2, 4, 8, 16, 32):
        wanted = None
        for _ in range(100 if size > 2 else 320):
            batch = [short[i] for i in draw.integers(1, len(short), size)]
            place = int(draw.integers(size))
            batch[place] = text
            found = ours.encode(batch)[place]
            wanted = found if wanted is None else wanted
            assert np.array_equal(found, wanted), f"{size} texts, place {place}: {np.abs(found - wanted).max():.1e}"


@ON_A_GPU
def test_threads_do_not_disturb_each_other(models, runtime):
    ours, sentences = runtime(model=models("minilm")), make_sentences(60, 7)
    lists = [sentences[i : i + 1 + 7 * i] for i in range(6)]
    alone, wrong = [ours.encode(texts) for texts in lists], []

    def work(seed):
        for number in np.random.default_rng(seed).integers(0, len(lists), 150):
            if not np.array_equal(ours.encode(lists[number]), alone[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
