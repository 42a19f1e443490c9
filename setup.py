"""The compiled extension; everything else is in pyproject.toml.

FASTFLOW_NO_EXT=1 builds without it. FASTFLOW_REQUIRE_EXT=1 makes its failure an error; otherwise a machine that cannot
compile gets a working, slower, pure-Python package.
"""

import os
from glob import glob

from setuptools import Extension, setup

COMPILE = ["-O3", "-std=c11", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-g0", "-pthread"]
LINK = ["-Wl,-s", "-pthread", "-lm"] if os.name == "posix" and os.uname().sysname == "Linux" else []


def extensions():
    if os.environ.get("FASTFLOW_NO_EXT"):
        return []
    required = bool(os.environ.get("FASTFLOW_REQUIRE_EXT"))
    try:
        from Cython.Build import cythonize
    except ImportError:
        if required:
            raise
        return []
    pieces = [name for end in ("h", "inc", "pxi") for name in sorted(glob(f"kernels/c/**/*.{end}", recursive=True))]
    extension = Extension(
        "fastflow.kernels._cpu",
        sources=["kernels/_cpu.pyx", *sorted(glob("kernels/c/**/*.c", recursive=True))],
        depends=["kernels/_cpu.pyx", *pieces],
        include_dirs=["kernels/c"],
        extra_compile_args=COMPILE,
        extra_link_args=LINK,
    )
    built = cythonize([extension], language_level=3)
    for one in built:
        one.optional = not required  # cythonize drops the flag when it is given before
    return built


setup(ext_modules=extensions())
