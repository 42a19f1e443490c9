"""config_sentence_transformers.json: prompts, similarity and truncate_dim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastflow.errors import FastflowError
from fastflow.model.hashing import is_file
from fastflow.model.sentence.modules import check_fields
from fastflow.values import is_whole, read_object, short

SETTINGS = "config_sentence_transformers.json"
SIMILARITIES = {
    "cosine": "cosine",
    "dot": "dot",
    "dot_product": "dot",
    "euclidean": "euclidean",
    "manhattan": "manhattan",
}


def read_settings(directory: Path, width: int) -> dict[str, Any]:
    """Read prompts, default_prompt, similarity and truncate_dim as Modules has them; an unknown field is an error."""
    where = directory / SETTINGS
    if not is_file(where):
        return {}
    found, place = read_object(where), str(where)
    names = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim")
    check_fields(found, ("__version__", "model_type", *names), place)
    if found.get("model_type", "SentenceTransformer") != "SentenceTransformer":
        raise FastflowError(
            f"{place}, field model_type: only SentenceTransformer is supported, not {short(found['model_type'])}"
        )
    prompts = found.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str | None) for prompt in prompts.values()):
        raise FastflowError(f"{place}, field prompts: must be an object of texts")
    default = found.get("default_prompt_name")
    if default is not None and (not isinstance(default, str) or prompts.get(default) is None):
        raise FastflowError(f"{place}, field default_prompt_name: {short(default)} is not the name of a prompt")
    similarity = found.get("similarity_fn_name") or "cosine"
    if not isinstance(similarity, str) or similarity not in SIMILARITIES:
        known = ", ".join(SIMILARITIES)
        raise FastflowError(f"{place}, field similarity_fn_name: {short(similarity)} is unknown; known are {known}")
    dim = found.get("truncate_dim")
    if dim is not None and not is_whole(dim, 1, width):
        raise FastflowError(f"{place}, field truncate_dim: must be 1 to {width}, not {short(dim)}")
    return {
        "prompts": {name: prompt for name, prompt in prompts.items() if prompt is not None},
        "default_prompt": default,
        "similarity": SIMILARITIES[similarity],
        "truncate_dim": dim,
    }
