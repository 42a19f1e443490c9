"""mteb with an encoder of ours: the figures of ``fastflow eval``; and with a Runtime alone."""

import itertools
import json

import numpy as np
import pytest
from click.testing import CliRunner

import fastflow
from fastflow.cli import main

from support.doors import TEXTS

pytestmark = pytest.mark.doors
RUN = {"cache": None, "co2_tracker": False, "show_progress_bar": False}


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    """The folder that mteb makes when it is imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MTEB_CACHE", str(tmp_path_factory.mktemp("mteb")))
        yield


@pytest.fixture(scope="module")
def encoder():
    from fastflow.integrations.mteb import FastflowEncoder

    return FastflowEncoder


def described(kind, score, **more):
    from mteb.abstasks.task_metadata import TaskMetadata

    return TaskMetadata(
        name=f"Local{kind}", description="Rows of a local file.", type=kind, category="t2t", eval_splits=["test"],
        eval_langs=["eng-Latn"], main_score=score, dataset={"path": "none", "revision": "1"}, **more,
    )  # fmt: skip


def pairs_of(rows):
    """A task of pairs in memory; ``rows``: score, text, text."""
    from datasets import Dataset, DatasetDict
    from mteb.abstasks import AbsTaskSTS

    class Pairs(AbsTaskSTS):
        metadata = described("STS", "cosine_spearman")

        def load_data(self, *_, **__):
            columns = zip(*rows, strict=True)
            made = Dataset.from_dict(dict(zip(("score", "sentence1", "sentence2"), columns, strict=True)))
            self.dataset, self.data_loaded = DatasetDict({"test": made}), True

    return Pairs()


def check_figure(encoder, path, folder):
    """``mteb.evaluate`` and ``fastflow eval`` give one file the same figure."""
    import mteb

    done = CliRunner().invoke(main, ["eval", str(path), "--json", str(folder / "out.json"), "-q"])
    assert done.exit_code == 0, done.output
    [row] = json.loads((folder / "out.json").read_text())["rows"]
    lines = [line.split("\t")[1:] for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    task = pairs_of([(float(score), a, b) for score, a, b in lines])
    found = mteb.evaluate(encoder(), task, **RUN).task_results[0]
    assert row["pairs"] == len(lines)
    assert round(100 * found.get_score(), 2) == row["all"]
    assert found.scores["test"][0]["spearman"] == pytest.approx(found.get_score(), abs=1e-4)


@pytest.mark.data
def test_a_task_has_the_figure_of_fastflow_eval(encoder, shared_data, tmp_path):
    check_figure(encoder, shared_data / "sts" / "SICK-R-test.tsv", tmp_path)


def test_a_small_task_has_the_figure_of_fastflow_eval(encoder, tmp_path):
    sides = itertools.combinations([*TEXTS, "A puppy runs.", "The cat is asleep.", "Stocks fell."], 2)
    rows = [f"all\t{i * 7 % 11 / 2}\t{a}\t{b}\n" for i, (a, b) in enumerate(sides)]
    (tmp_path / "pairs.tsv").write_text("subset\tscore\tsentence1\tsentence2\n" + "".join(rows), encoding="utf-8")
    check_figure(encoder, tmp_path / "pairs.tsv", tmp_path)


def test_prompts_are_those_of_queries_and_documents(encoder, prompted):
    from mteb.types import PromptType

    runtime, made = fastflow.Runtime(prompted), encoder(prompted)
    batches = [{"text": TEXTS[:3]}, {"text": TEXTS[3:]}]
    settings = {"task_metadata": None, "hf_split": "test", "hf_subset": "default"}
    for kind, want in (
        (None, runtime.encode(TEXTS)),
        (PromptType.query, runtime.encode_query(TEXTS)),
        (PromptType.document, runtime.encode_document(TEXTS)),
    ):
        assert np.array_equal(made.encode(batches, prompt_type=kind, batch_size=32, **settings), want)
    with pytest.raises(fastflow.UsageError, match="encode has no option 'no_such'"):
        made.encode(batches, no_such=1, **settings)


def test_a_search_ranks_as_the_model_does(encoder, prompted):
    import mteb
    from datasets import Dataset
    from mteb.abstasks import AbsTaskRetrieval

    queries, runtime = {"q1": TEXTS[0].lower(), "q2": "shares and bonds"}, fastflow.Runtime(prompted)
    scores = runtime.similarity([*runtime.encode_query([*queries.values()])], runtime.encode_document(TEXTS))

    class Search(AbsTaskRetrieval):
        metadata = described("Retrieval", "mrr_at_1")

        def load_data(self, *_, **__):
            best = {query: {f"d{row.argmax()}": 1} for query, row in zip(queries, scores, strict=True)}
            split = {
                "corpus": Dataset.from_list([{"id": f"d{i}", "title": "", "text": t} for i, t in enumerate(TEXTS)]),
                "queries": Dataset.from_list([{"id": name, "text": text} for name, text in queries.items()]),
                "relevant_docs": best,
                "top_ranked": None,
            }
            self.dataset, self.data_loaded = {"default": {"test": split}}, True

    assert mteb.evaluate(encoder(prompted), Search(), **RUN).task_results[0].get_score() == 1


def test_its_results_name_the_model(encoder, prompted, dotted):
    from mteb.models import EncoderProtocol

    made, runtime = encoder(prompted), fastflow.Runtime(prompted)
    assert isinstance(made, EncoderProtocol)
    meta = made.mteb_model_meta
    assert (meta.name, meta.revision, meta.embed_dim) == ("fastflow/dir", runtime.fingerprint, runtime.dim)
    vectors = made.runtime.encode(TEXTS)
    assert np.array_equal(made.similarity(vectors, vectors), runtime.similarity(vectors, vectors))
    dots = encoder(dotted)
    assert np.allclose(dots.similarity_pairwise(vectors, vectors), (vectors**2).sum(1), rtol=1e-5)


def test_a_runtime_alone_is_refused(rt):
    import mteb

    with pytest.raises(NotImplementedError, match="No model implementation"):
        mteb.evaluate(rt, pairs_of([(1.0, *TEXTS[:2])]), **RUN)
