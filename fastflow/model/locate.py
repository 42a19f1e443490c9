"""Find the directory of a model: in the package, at a path, or in the Hub's cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fastflow.errors import UsageError
from fastflow.model.kinds import Model, VectorModel
from fastflow.values import short

PACKAGED = {name: Path(__file__).parent.parent / name for name in ("default", "static")}
DEFAULT = PACKAGED["default"]


def resolve_name(model: str | Path | None) -> Path:
    """Return a model's directory: None is the default; a name of PACKAGED is used if no such path exists."""
    if model is None:
        return DEFAULT
    return PACKAGED[str(model)] if str(model) in PACKAGED and not Path(model).exists() else Path(model)


def find_packaged_name(directory: Path) -> str | None:
    """Return a packaged model's name by its directory; None for any other."""
    return next((name for name, place in PACKAGED.items() if place == directory), None)


def find_model(model: str | Path | None, allow_download: bool = False) -> Path:
    """Find a model's directory, or the local folder of a Hub id if no such directory exists.

    Raises a FastflowError for a possible Hub id that is neither there nor here.
    """
    directory = resolve_name(model)
    if str(model).startswith(("./", "../")):
        return directory
    if os.path.exists(directory):
        return directory
    from fastflow.model.hub import hub_model

    return hub_model(str(directory), allow_download) or directory


def resolve_model(model: Any, allow_download: bool) -> Path | Model | VectorModel | None:
    """Resolve the argument ``model``: an open one is returned, a path becomes absolute, None is the default model.

    Raises a UsageError for anything else.
    """
    if model is None or isinstance(model, Model | VectorModel):
        return model
    if not isinstance(model, str | os.PathLike):
        raise UsageError(f"a model is the path of a directory, not {short(model)}")
    found = find_model(model if isinstance(model, str) else Path(model), allow_download)
    return None if found == DEFAULT else Path(os.path.abspath(found))  # a pickle may move
