"""The packages, the compiled extension, and builds that give the same bytes; everything else is in pyproject.toml.

FASTFLOW_NO_EXT=1 builds without the extension. FASTFLOW_REQUIRE_EXT=1 makes its failure an error; otherwise a machine
that cannot compile gets a working, slower, pure-Python package. An editable install again compiles only if a source is
newer than the extension that lies in the checkout.
"""

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

sys.path.insert(0, str(Path(__file__).parent / "release"))

from description import described
from seal import seal

ROOMS = {"fastflow": "fastflow", "fastflow.kernels": "kernels", "fastflow.train": "train", "fastflow.bench": "bench"}
LEFT_OUT = {"bench/research"}  # studies: in the checkout alone
COMPILE = ["-O3", "-std=c11", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-g0", "-pthread"]
LINK = ["-Wl,-s", "-pthread", "-lm"] if os.name == "posix" and os.uname().sysname == "Linux" else []


def packages():
    """Every folder with an __init__.py."""
    return [
        ".".join([package, *Path(file).parent.relative_to(room).parts])
        for package, room in ROOMS.items()
        for file in sorted(glob(f"{room}/**/__init__.py", recursive=True))
        if os.path.dirname(file) not in LEFT_OUT
    ]


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
        depends=["setup.py", "kernels/_cpu.pyx", *pieces],
        include_dirs=["kernels/c"],
        extra_compile_args=COMPILE,
        extra_link_args=LINK,
    )
    built = cythonize([extension], language_level=3)
    for one in built:
        one.optional = not required  # cythonize drops the flag when it is given before
    return built


class Compiled(build_ext):
    def build_extensions(self):
        if hasattr(self.compiler, "linker_so"):  # without the folder of the builder's Python, which a wheel would keep
            self.compiler.linker_so = [word for word in self.compiler.linker_so if not word.startswith("-Wl,-rpath")]
        one = self.compiler.compile

        def several(sources, **options):
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return [made for found in pool.map(lambda source: one([source], **options), sources) for made in found]

        self.compiler.compile = several
        super().build_extensions()

    def build_extension(self, ext):
        made = self.get_ext_fullpath(ext.name)
        kept = os.path.join("kernels", os.path.basename(made))
        if self.editable_mode and os.path.isfile(kept):  # setuptools compares its date with those of the sources
            os.makedirs(os.path.dirname(made), exist_ok=True)
            shutil.copy2(kept, made)
        super().build_extension(ext)


class Wheel(bdist_wheel):
    def run(self):
        super().run()
        seal(self.distribution.dist_files[-1][2])


class Source(sdist):
    def make_archive(self, *names, **options):
        return seal(super().make_archive(*names, **options))


setup(
    packages=packages(),
    package_dir=ROOMS,
    long_description=described(*(Path(name).read_text(encoding="utf-8") for name in ("README.md", "pyproject.toml"))),
    long_description_content_type="text/markdown",
    ext_modules=extensions(),
    cmdclass={"build_ext": Compiled, "bdist_wheel": Wheel, "sdist": Source},
)
