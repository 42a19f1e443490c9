"""The weights of an encoder as one canonical set of arrays.

Architectures differ only in ``tensor_names`` and in the fields that ``architecture`` reads; the computation is
``kernels.encoder.reference``. Weights are read from safetensors only, never from a pickle.
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
    """NUL and half a surrogate pair are not printable."""
    return 0 < len(name) <= 255 and Path(name).name == name and name.isprintable()


def weight_files(directory: Path) -> list[Path]:
    """List the safetensors files of the weights, sharded or not."""
    if (adapter := directory / "adapter_config.json").is_file():  # transformers applies it if peft is installed
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
    """Return whether the weights hold BERT's pooler; transformers would fill a missing one randomly."""
    return any(
        n.endswith("pooler.dense.weight") for path in weight_files(directory) for n in MappedTensors(path).arrays
    )


class MappedWeights:
    """The canonical weights of ``load_weights``, unread, as stored.

    ``stored`` is a ``cpu_layout.Stored``: views of the mapped files, ``qkv`` in three parts. Its reader checks for
    magnitudes above LARGEST and NaN, and raises ``not_finite``.
    Raises a FastflowError that names file and tensor for a missing or misshapen one.
    """

    def __init__(self, directory: Path, config: dict[str, Any], shape: EncoderShape) -> None:
        self.directory = directory
        self._files = [MappedTensors(path) for path in weight_files(directory)]
        arrays = {name: array for file in self._files for name, array in file.arrays.items()}
        source = _Source(directory, arrays, config["model_type"])
        self.stored: dict[str, NDArray[Any] | tuple[NDArray[Any], ...]] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        for name, (tensors, size) in layout(source.has, config, shape, directory):  # ends at the first missing one
            parts = tuple(source(tensor, *size) for tensor in tensors)
            self._names[name] = tensors
            self.stored[name] = parts if len(parts) > 1 else parts[0]
        table = self.stored.get("segment")  # only its first row is used
        if isinstance(table, np.ndarray) and not usable(widen(table)):
            raise self.not_finite("segment", 0)
        if "position" in self.stored:
            width = np.shape(self.stored["word"])[1]
            self.stored["segment"] = table[0] if isinstance(table, np.ndarray) else np.zeros(width, np.float32)

    def columns(self, name: str) -> int:
        """Return the columns of the canonical matrix ``name``; 0 if there is none."""
        found = self.stored.get(name)
        first = found[0] if isinstance(found, tuple) else found
        return 0 if first is None or first.ndim != 2 else first.shape[1]

    def release(self) -> None:
        """Release the memory of pages read so far; raises a FastflowError if a file was cut meanwhile."""
        for file in self._files:
            file.release()

    def not_finite(self, name: str, part: int) -> FastflowError:
        """Return the error for part ``part`` of the weight ``name``; parts may share one tensor."""
        names = self._names[name]
        return FastflowError(f"{self.directory}: tensor {names[part if len(names) > 1 else 0]} {BAD}")


def load_weights(directory: Path, config: dict[str, Any], shape: EncoderShape, dtype: Any) -> Arrays:
    """Load the arrays that ``kernels.encoder.reference`` names in ``dtype``; the word table stays as stored.

    Raises a FastflowError that names file and tensor for one that is missing, misshapen or not finite.
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
    """Raw tensors under any known prefix, checked as they are taken."""

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
