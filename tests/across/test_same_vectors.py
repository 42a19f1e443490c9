"""A row has the same vector, whatever the other rows, threads, processes, windows, formats and services.

A compiled backend gives the same bits; NumPy and PyTorch sum in an order that depends on the other rows.
"""

import pytest

from support import same

pytestmark = [
    pytest.mark.filterwarnings("ignore:texts longer than", "ignore:words fall into"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork"),
]
QUICK = ("saved", "words", "table", "bag", "vectors")
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in same.SUBJECTS]
FILES = ("saved", "words", "raw", "modules", "table", "table, calibrated", "bag")  # of the command's own settings
DISTURBANCES = (same.company, same.threads, same.processes, same.streams)


@pytest.fixture(scope="module")
def opened(tmp_path_factory, encoders, sentences, model):
    paths, made = {same.SAVED: model}, {}

    def get(name):
        make = same.SUBJECTS[name].make
        if make not in paths:
            paths[make] = make(tmp_path_factory.mktemp("same") / "m", encoders, sentences)
        if name not in made:
            made[name] = same.Open(name, paths[make])
        return made[name]

    return get


@pytest.mark.parametrize("disturb", DISTURBANCES, ids=lambda function: function.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_whatever_disturbs_a_runtime(opened, name, disturb):
    of = opened(name)
    for how, found in disturb(of):
        of.check(how, found)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_whatever_the_file(opened, name, tmp_path):
    of = opened(name)
    for how, found in same.files(of, tmp_path):
        of.check(how, found)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_whatever_the_service(opened, name):
    of = opened(name)
    for how, found in same.services(of):
        of.check(how, found)
