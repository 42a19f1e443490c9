"""The weights of an encoder -> one canonical set of arrays.

Each architecture is the computation of ``kernels.encoder.reference`` under names of its own; ``tensor_names`` and the
fields that ``architecture`` reads are the whole difference. Weights are read from safetensors only: a pickle is never
opened.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastflow.errors import FastflowError
from fastflow.kernels.encoder.shape import EncoderShape
from fastflow.kernels.panels import LARGEST, usable, widen
from fastflow.model.encoder.tensor_names import layout, word_tensor
from fastflow.model.tensors import Arrays, MappedTensors
from fastflow.values import read_object, short

BAD = f"holds NaN or infinity, or a magnitude above {LARGEST:g}; no encoder can be computed with that"
WEIGHT_INDEX = "model.safetensors.index.json"  # of a sharded checkpoint


def _is_plain(name: str) -> bool:
    """Whether a file beside another may have this name; NUL and half a surrogate pair are not printable."""
    return 0 < len(name) <= 255 and Path(name).name == name and name.isprintable()


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files that hold the weights, sharded or not."""
    if (adapter := directory / "adapter_config.json").is_file():  # transformers adds it if peft is installed
        raise FastflowError(f"{adapter}: adapters are not supported; save the model after merge_and_unload() of peft")
    index = directory / WEIGHT_INDEX
    if index.is_file():
        mapped = read_object(index).get("weight_map")
        if not isinstance(mapped, dict) or not all(isinstance(name, str) for name in mapped.values()):
            raise FastflowError(f"{index} is damaged: it maps no tensors to files")
        names = sorted(set(mapped.values()))
        if odd := [name for name in names if not _is_plain(name)]:
            raise FastflowError(f"{index}, field weight_map: {short(odd[0])} is not the name of a file beside it")
        return [directory / name for name in names]
    if (directory / "model.safetensors").is_file():
        return [directory / "model.safetensors"]
    hint = ""
    if (directory / "pytorch_model.bin").is_file():
        hint = "; convert pytorch_model.bin with AutoModel.from_pretrained(DIR).save_pretrained(DIR)"
    raise FastflowError(f"{directory} has no model.safetensors{hint}")


def has_pooler(directory: Path) -> bool:
    """Whether the weights hold BERT's pooler; without it transformers would invent a random one."""
    return any(
        n.endswith("pooler.dense.weight") for path in weight_files(directory) for n in MappedTensors(path).arrays
    )


class MappedWeights:
    """The canonical weights of an encoder as they are stored: those of ``load_weights``, not read yet.

    ``stored`` is a ``cpu_layout.Stored``: views of the mapped files, ``qkv`` in three parts. The reader checks that
    they are finite and not above LARGEST, and raises ``not_finite`` if they are not.
    Raises a FastflowError that names the file and tensor for one that is missing or misshapen.
    """

    def __init__(self, directory: Path, config: dict[str, Any], shape: EncoderShape) -> None:
        self.directory = directory
        self._files = [MappedTensors(path) for path in weight_files(directory)]
        arrays = {name: array for file in self._files for name, array in file.arrays.items()}
        source = _Source(directory, arrays, config["model_type"])
        self.stored: dict[str, NDArray[Any] | tuple[NDArray[Any], ...]] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        for name, (tensors, size) in layout(source.has, config, shape, directory):  # ends at the first that is missing
            parts = tuple(source(tensor, *size) for tensor in tensors)
            self._names[name] = tensors
            self.stored[name] = parts if len(parts) > 1 else parts[0]
        table = self.stored.get("segment")  # of which only the first row is ever added
        if isinstance(table, np.ndarray) and not usable(widen(table)):
            raise self.not_finite("segment", 0)
        if "position" in self.stored:
            width = np.shape(self.stored["word"])[1]
            self.stored["segment"] = table[0] if isinstance(table, np.ndarray) else np.zeros(width, np.float32)

    def columns(self, name: str) -> int:
        """The columns of the canonical weight ``name``, a matrix; 0 if there is none."""
        found = self.stored.get(name)
        first = found[0] if isinstance(found, tuple) else found
        return 0 if first is None or first.ndim != 2 else first.shape[1]

    def release(self) -> None:
        """Release the memory of the pages that were read so far; raises a FastflowError if a file was cut meanwhile."""
        for file in self._files:
            file.release()

    def not_finite(self, name: str, part: int) -> FastflowError:
        """The error for part ``part`` of the canonical weight ``name``; parts may be cut out of one tensor."""
        names = self._names[name]
        return FastflowError(f"{self.directory}: tensor {names[part if len(names) > 1 else 0]} {BAD}")


def load_weights(directory: Path, config: dict[str, Any], shape: EncoderShape, dtype: Any) -> Arrays:
    """The canonical arrays that ``kernels.encoder.reference`` names, in ``dtype``, but the word table as stored.

    Raises a FastflowError that names the file and tensor for one that is missing, misshapen or not finite.
    """
    mapped, out = MappedWeights(directory, config, shape), {}
    for name, stored in mapped.stored.items():
        parts = [widen(part) for part in (stored if isinstance(stored, tuple) else (stored,))]
        for i, part in enumerate(parts):
            if not usable(part):
                raise mapped.not_finite(name, i)
        out[name] = np.array(parts[0]) if name == "word" else np.concatenate(parts, dtype=dtype, casting="same_kind")
        mapped.release()
    return out


class _Source:
    """Raw tensors under any of the prefixes in use, each checked as it is taken."""

    def __init__(self, directory: Path, raw: Arrays, family: str) -> None:
        prefixes = ("", f"{family.removeprefix('xlm-')}.", "bert.", "roberta.", "model.")
        self._prefix = next((p for p in prefixes if p + word_tensor(family) in raw), "")
        self._raw, self.directory = raw, directory

    def has(self, name: str) -> bool:
        return self._prefix + name in self._raw

    def __call__(self, name: str, *shape: int) -> NDArray[Any]:
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        array = self._raw.get(self._prefix + name, self._raw.get(self._prefix + old))
        if array is None:
            raise FastflowError(f"{self.directory}: the weights lack tensor {self._prefix}{name}")
        if array.dtype.kind not in "fV":  # V: bfloat16
            raise FastflowError(f"{self.directory}: tensor {name} has dtype {array.dtype}, which no weight has")
        if array.shape != shape:
            raise FastflowError(f"{self.directory}: tensor {name} has shape {array.shape}, config.json needs {shape}")
        return array
