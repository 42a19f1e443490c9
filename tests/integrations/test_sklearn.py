"""scikit-learn with a transformer of ours, and with a Runtime alone."""

import pickle

import numpy as np
import pytest

import fastflow

from support.doors import TEXTS, examples_run, exchange

pytestmark = pytest.mark.doors
LABELS = [0, 0, 1, 1]


@pytest.fixture(scope="module")
def transformer():
    from fastflow.integrations.sklearn import FastflowTransformer

    return FastflowTransformer


def test_the_example_runs():
    examples_run("sklearn")


def test_its_vectors_are_those_of_encode(transformer, prompted):
    options = {"truncate_dim": 8, "normalize_embeddings": True, "prompt_name": "query"}
    want = fastflow.Runtime(prompted).encode(TEXTS, **options)
    made = transformer(prompted, **options)
    for texts in (TEXTS, np.array(TEXTS), np.array(TEXTS, object)):
        assert np.array_equal(made.fit_transform(texts), want)


def test_a_pipeline_learns_and_a_grid_chooses(transformer, rt):
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import Pipeline

    steps = Pipeline([("embed", transformer(rt)), ("learn", LogisticRegression())])
    found = GridSearchCV(steps, {"embed__truncate_dim": [32, None]}, cv=2).fit(TEXTS * 4, LABELS * 4)
    assert found.best_score_ == 1
    assert list(found.predict(["The puppy plays.", "Investors sold bonds."])) == [0, 1]


def test_clones_and_pickles_give_the_same(transformer, prompted):
    from sklearn.base import clone

    made = transformer(str(prompted), truncate_dim=8).fit(TEXTS)
    again = clone(made)
    assert again.get_params() == made.get_params()
    assert not hasattr(again, "runtime_")
    for other in (again.fit(TEXTS), pickle.loads(pickle.dumps(made)), clone(transformer(fastflow.Runtime(prompted)))):
        assert np.array_equal(other.fit(TEXTS).transform(TEXTS)[:, :8], made.transform(TEXTS))


def test_a_pickle_refuses_another_model(transformer, place, other):
    words = pickle.dumps(transformer(place).fit(TEXTS))
    exchange(place, other)
    with pytest.raises(fastflow.FastflowError, match="the stored vectors are of the model"):
        pickle.loads(words)


def test_set_output_names_the_columns_and_keeps_the_index(transformer, rt):
    import pandas as pd
    from sklearn.compose import ColumnTransformer

    frame = pd.DataFrame({"text": TEXTS, "n": range(4)}, index=list("abcd"))
    made = transformer(rt, truncate_dim=4).set_output(transform="pandas")
    out = made.fit_transform(frame["text"])
    assert list(out.index) == list("abcd")
    assert list(out.columns) == list(made.get_feature_names_out()) == [f"fastflowtransformer{i}" for i in range(4)]
    both = ColumnTransformer([("e", transformer(rt, truncate_dim=4), "text")], remainder="passthrough")
    assert both.fit_transform(frame).shape == (4, 5)


def test_what_is_no_column_of_texts_is_refused(transformer, rt):
    import pandas as pd
    from sklearn.exceptions import NotFittedError

    made = transformer(rt).fit(TEXTS)
    for wrong in (TEXTS[0], np.array([TEXTS]), pd.DataFrame({"text": TEXTS})):
        with pytest.raises(fastflow.UsageError, match="one column of texts"):
            made.transform(wrong)
    with pytest.raises(fastflow.FastflowError, match="text 1 "):
        made.transform(["a", None])
    with pytest.raises(NotFittedError):
        transformer(rt).transform(TEXTS)


def test_a_runtime_alone_is_refused(rt):
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    with pytest.raises(TypeError, match="should be transformers and implement fit and transform"):
        make_pipeline(rt, LogisticRegression()).fit(TEXTS, LABELS)
