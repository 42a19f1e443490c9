"""A hook of mkdocs: the pages in a folder of links shaped like the repository, so that links out of docs/ work."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

SHOWN = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md", "LICENSE", "CITATION.cff")
FOLDERS = ("docs", "bench", "examples", "fastflow", "kernels", "train")


def on_config(config: Any) -> Any:
    """Make the folder, and let mkdocs read it in place of docs/."""
    root = Path(config.config_file_path).parent
    config.docs_dir = mkdtemp(prefix="fastflow-site-")
    for name in (*SHOWN, *FOLDERS):
        (Path(config.docs_dir) / name).symlink_to(root / name)
    return config


def on_post_build(config: Any) -> None:
    """Remove the folder; ``mkdocs serve`` makes another for each build."""
    shutil.rmtree(config.docs_dir)
