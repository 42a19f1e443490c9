# One word for each job; `just` alone lists them. The tools are in the dev extra: pip install -e '.[dev]' -c constraints.txt

export OMP_NUM_THREADS := "1" # of each of the two processes: more threads would wait for each other
two := "-n 2 --dist loadfile --no-loadscope-reorder"

_list:
    @just --list --unsorted

# lint and the first case of each quick test: within a minute
check: lint
    pytest -q {{ two }} --cases 1

# ruff, codespell and mypy
lint:
    ruff check .
    ruff format --check .
    codespell
    tests/typed.sh

# every case of the quick tests, with coverage
test:
    pytest {{ two }} --cases 0 --cov --cov-report=term:skip-covered

# what CI runs once the package is installed
gate:
    python tests/gate.py

# every case of every test, the libraries that take our models, and the C for macOS
night:
    python tests/gate.py --night

# models in other libraries, each in a process of its own: needs pip install -e '.[doors]' -c constraints.txt
doors:
    grep -rl --include='test_*.py' 'mark\.doors' tests | xargs -n 1 -P 2 pytest -q -m doors

# the fields of a directory as the older transformers and Sentence Transformers read them
old-libraries:
    pip install -q --no-deps --upgrade --target build/old-libraries -r tests/old-libraries.txt
    PYTHONPATH=build/old-libraries pytest -q -n 2 -m doors tests/across/test_fields.py

# every fuzzing target for a share of SECONDS; the native ones need a clang with libFuzzer
fuzz SECONDS="300":
    nice python tests/fuzz/run.py --seconds {{ SECONDS }}

# the C extension again, after a change of C or Cython
build:
    FASTFLOW_REQUIRE_EXT=1 pip install --no-deps --no-build-isolation -e .

# every figure of this machine anew, into DIR
bench DIR:
    OMP_NUM_THREADS= fastflow bench --suite all -o {{ DIR }}
