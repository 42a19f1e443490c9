"""The description of a model as a backend runs it."""

from dataclasses import replace

from fastflow.backends.info import describe
from fastflow.backends.reference import ReferenceBackend
from fastflow.model.artifact import load_model


def test_a_model_of_texts_is_described_as_it_runs(model):
    loaded = replace(load_model(model), note="assumed")
    runs = ReferenceBackend(loaded, "float64", "cpu", 2)
    runs.details.append("a detail")
    said = describe(loaded, runs, False)
    assert (said["model"], said["takes"], said["fingerprint"]) == (str(model), "texts", loaded.fingerprint)
    assert (said["backend"], said["device"], said["dtype"]) == ("reference", "cpu", "float64")
    assert (said["dim"], said["pooled_dim"], said["max_length"]) == (32, 32, 64)
    assert said["pooling"] == loaded.pooling.describe()
    assert said["notes"] == ["assumed", "threads: NumPy's BLAS decides"]
    assert said["details"] == runs.details
    said["details"].append("mine")
    assert runs.details == ["a detail"], "a copy: what a caller changes is not the backend's"
    assert describe(loaded, runs, True)["model"] == "default"
