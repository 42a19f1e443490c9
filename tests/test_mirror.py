"""The tests mirror the tree: every module has a file of tests, and every file of tests a module or a behaviour.

``fastflow/<folder>/<name>.py`` is tested by ``tests/<folder>/test_<name>.py``, ``kernels/<folder>/<name>.py`` by
``tests/kernels/test_<folder>_<name>.py``, ``train/`` and ``bench/`` likewise. A further file on one aspect of a module
adds a word to the name. Behaviours of many modules are in ``tests/across``.
"""

from pathlib import Path

import pytest

from support.places import ROOT, TESTS

ROOMS = {"fastflow": "", "kernels": "kernels", "train": "train", "bench": "bench"}
DRY = "runs on a GPU alone; bench/gpu.sh runs it, and across/test_gpu_script.py runs that dry"
INTERPRETED = "a body of Triton, executed by triton_interpret/check_*.py in a process of its own"
UNTESTED = {  # module -> why it has no file of its own
    "fastflow/files/checks.py": "a table of what each command refuses: commands/test_refusals.py",
    "fastflow/files/write/growing.py": "part of the contract of every run: files/test_run.py",
    "fastflow/commands/options.py": "declarations alone: commands/test_embed.py and test_measure.py use each option",
    "fastflow/search/source.py": "an interface, without a body: search/test_database.py and test_matrix.py",
    "kernels/encoder/triton_bodies.py": INTERPRETED,
    "kernels/flow/triton_bodies.py": INTERPRETED,
    "kernels/flow/triton_parts.py": INTERPRETED,
    "bench/measure/probe_gpu.py": DRY,
    "bench/suites/dry_gpu.py": DRY,
    "bench/suites/encoder_gpu.py": DRY,
    "bench/suites/end_to_end_gpu.py": DRY,
    "bench/suites/sizes.py": "a table of numbers",
}
BEHAVIOURS = {"bench/test_directions.py", "bench/test_results.py", "commands/test_refusals.py", "test_mirror.py"}


def modules() -> dict[str, str]:
    """Module -> its file of tests, both by their paths; bench/research is scripts, tested where they compute."""
    found = {}
    for room, folder in ROOMS.items():
        for path in sorted((ROOT / room).rglob("*.py")):
            if path.name == "__init__.py":
                continue
            parts = list(path.relative_to(ROOT / room).with_suffix("").parts)
            where = [folder] if folder else parts[:1] * (len(parts) > 1)
            rest = parts if folder or len(parts) == 1 else parts[1:]
            found[path.relative_to(ROOT).as_posix()] = "/".join([*where, f"test_{'_'.join(rest)}.py"])
    return found


MODULES = modules()


@pytest.mark.parametrize("module", [name for name in MODULES if "/research/" not in name])
def test_every_module_has_its_tests(module):
    exists = (TESTS / MODULES[module]).is_file()
    if module in UNTESTED:
        assert not exists, "it has tests now: take it off the list"
    else:
        assert exists, f"tests/{MODULES[module]} is missing"


def files() -> list[str]:
    return sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py"))


@pytest.mark.parametrize("file", [name for name in files() if not name.startswith("across/")])
def test_every_file_of_tests_is_named_after_a_module(file):
    stem = file.removesuffix(".py")
    named = {where.removesuffix(".py") for where in MODULES.values()}
    of_one = stem in named or any(stem.startswith(f"{name}_") for name in named)
    assert of_one or file in BEHAVIOURS, f"no module for tests/{file}; behaviours of many modules go into tests/across"


def test_the_lists_are_exact():
    assert set(UNTESTED) <= set(MODULES)
    assert set(files()) >= BEHAVIOURS
    assert len({where for name, where in MODULES.items()}) == len(MODULES) > 130
    assert Path(__file__).name in BEHAVIOURS
