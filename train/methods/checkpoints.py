"""Save and load a half-trained flow: weights, optimiser, random state and best weights."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from fastflow.errors import FastflowError, UsageError
from fastflow.train.choice.separability import Keeper
from fastflow.train.methods.flow import Flow
from fastflow.train.methods.objective import PaperAdamW


def save_checkpoint(
    path: Path, flow: Flow, optimiser: PaperAdamW, step: int, run: str, keeper: Keeper | None = None
) -> None:
    """Write the checkpoint atomically."""
    from safetensors.torch import save

    tensors = {f"flow.{name}": tensor for name, tensor in flow.state_dict().items()}
    tensors |= {f"first.{i}": tensor for i, tensor in enumerate(optimiser.first)}
    tensors |= {f"second.{i}": tensor for i, tensor in enumerate(optimiser.second)}
    meta = {"step": str(step), "run": run}
    if keeper:
        tensors |= {f"best.{name}": tensor for name, tensor in keeper.best.items()}
        meta["history"] = json.dumps(keeper.history)
    tensors["random"] = torch.get_rng_state()
    if torch.cuda.is_initialized():
        tensors["random_cuda"] = torch.cuda.get_rng_state()
    partial = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(save(tensors, meta))
        partial.replace(path)
    except OSError as error:
        if partial.is_file():  # unlink may raise again
            partial.unlink()
        raise FastflowError(f"the checkpoint {path} cannot be written: {error.strerror}") from error


def load_checkpoint(path: Path, flow: Flow, optimiser: PaperAdamW, run: str, keeper: Keeper | None = None) -> int:
    """Restore a checkpoint and return its step; 0 without a file. Raises for another run's."""
    from safetensors import safe_open

    if not path.is_file():
        return 0
    try:
        with safe_open(str(path), "pt") as handle:
            meta: dict[str, str] = handle.metadata() or {}
            tensors: dict[str, Tensor] = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    except Exception as error:
        raise FastflowError(f"the checkpoint {path} is damaged: {error}; remove it or drop --resume") from error
    if meta.get("run") != run:
        raise UsageError(f"{path} is from a run with another corpus, encoder or settings; remove it or drop --resume")
    flow.load_state_dict({name.removeprefix("flow."): t for name, t in tensors.items() if name.startswith("flow.")})
    for i in range(len(optimiser.parameters)):
        optimiser.first[i].copy_(tensors[f"first.{i}"])
        optimiser.second[i].copy_(tensors[f"second.{i}"])
    if keeper:
        keeper.best = {name.removeprefix("best."): t for name, t in tensors.items() if name.startswith("best.")}
        keeper.history = [(int(look), float(value)) for look, value in json.loads(meta["history"])]
    torch.set_rng_state(tensors["random"])
    if "random_cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random_cuda"])
    return int(meta["step"])
