"""README.md as the long description of a package: its links lead to the files of this version in the repository."""

from __future__ import annotations

import re

LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!\w+:|#)([^)\s]+)\)")


def link_readme(readme: str, pyproject: str) -> str:
    """Make every relative link of ``readme`` absolute, by the address and the version in ``pyproject``."""
    address, version = (re.findall(rf'^{key} = "(.+)"$', pyproject, re.M)[0] for key in ("Repository", "version"))
    return LINK.sub(lambda m: f"{m[1]}{m[2]}({address}/{'raw' if m[1] else 'blob'}/v{version}/{m[3]})", readme)
