"""Open a saved model with every file checked; no code in its directory runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fastflow.errors import FastflowError
from fastflow.kernels.encoder import Unit
from fastflow.model import Model, VectorModel, no_encoder
from fastflow.model.encoder import is_model2vec, is_static, size_of
from fastflow.model.encoder.weights import encoder_files, has_pooler
from fastflow.model.hashing import (
    MANIFEST,
    MODULES,
    Hashes,
    Later,
    check_hashes,
    check_present,
    combine_hashes,
    is_file,
)
from fastflow.model.locate import PACKAGED, find_model
from fastflow.model.manifest import (
    CALIBRATION,
    CARD,
    ENCODER,
    MODULES_FOLDER,
    MODULES_POOLING,
    MODULES_VERSION,
    VECTORS_VERSION,
    check_files_listed,
    read_manifest,
    read_pooling,
    read_stages,
)
from fastflow.model.tensors import Arrays, read_tensors
from fastflow.transforms import calibration as calibrations
from fastflow.transforms.pooling import WORDS, Pooling
from fastflow.values import is_whole, short

if TYPE_CHECKING:
    from fastflow.model.sentence.directory import Modules


def load_model(path: str | Path | None = None, allow_download: bool = False) -> Model:
    """Open a model of texts: a saved directory, a Hugging Face encoder, or the Hub id of either.

    Without ``allow_download`` only the Hub's cache is read.
    """
    model = open_model(path, allow_download)
    if isinstance(model, VectorModel):
        raise no_encoder(model.path)
    return model


def open_model(path: str | Path | None = None, allow_download: bool = False) -> Model | VectorModel:
    """Open a model as ``load_model`` does; it may have no encoder."""
    with Opening(path, allow_download) as opening:
        pass
    return opening.model


class Opening:
    """Open a model while a thread hashes its weights; ``path`` may be an open model.

    The hashes are checked when the block ``with Opening(path) as opening:`` ends, and before an error about a file.
    """

    model: Model | VectorModel

    def __init__(self, path: str | Path | Model | VectorModel | None = None, allow_download: bool = False) -> None:
        self._hashes, self._allow_download = Hashes(), allow_download
        self._checks: list[Callable[[], None]] = []
        self._identity: list[Path] = []
        if isinstance(path, Model | VectorModel):
            self.model = path
            return
        directory = find_model(path, allow_download)
        try:
            if is_file(directory / MANIFEST):
                self.model = self._open_saved(directory)
            elif is_model2vec(directory):
                self.model = self._table(directory)
            elif is_file(directory / MODULES):
                self.model = self._sentence(directory)
            elif is_file(directory / "config.json"):
                self.model = self._encoder_alone(directory)
            elif not directory.exists():
                raise FastflowError(
                    f"{directory}: no such model directory; make one with fastflow-train, or fetch one from the Hub "
                    "with: fastflow pull ORGANISATION/NAME -o DIR, and give DIR"
                )
            else:
                raise FastflowError(f"{directory} is not a model: it holds neither {MANIFEST} nor config.json")
        except FastflowError:
            self._check()
            raise
        if isinstance(self.model, Model) and self._identity:
            self.model = replace(self.model, awaited=self._fingerprint)

    def _fingerprint(self) -> str:
        root = None if self.model.modules is None else self.model.path
        return combine_hashes(self._identity, self._hashes, root)

    def __enter__(self) -> Opening:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, FastflowError):
            self._check()
        if error is None and isinstance(self.model, Model) and self._identity:
            self.model = replace(self.model, identity=self._fingerprint(), awaited=None)

    def _check(self) -> None:
        for check in self._checks:
            check()

    def _identify(self, files: list[Path]) -> None:
        self._identity = files
        self._hashes.start(files)

    def _sentence(self, directory: Path) -> Model:
        from fastflow.model.sentence.directory import read_modules
        from fastflow.model.sentence.weights import files_of

        modules = read_modules(directory)
        assert modules is not None  # noqa: S101 - modules.json is there
        if is_static(modules.transformer.directory):
            return replace(_open_uncalibrated(directory, modules), identity=Later(files_of(modules), directory))
        self._identify(files_of(modules))
        return _open_uncalibrated(directory, modules)

    def _encoder_alone(self, directory: Path) -> Model:
        size = size_of(directory)
        note = f"{directory} is a plain encoder: no calibration, masked mean of the last layer"
        self._identify(encoder_files(directory))
        pooling = Pooling("mean", (size.layers,))
        return Model(directory, directory, pooling, size.max_tokens, note=note)

    def _table(self, directory: Path) -> Model:
        from fastflow.model.static.table import check_modules, open_table, read_rules

        check_modules(directory)
        open_table(directory)
        rules, later = read_rules(directory), Later(encoder_files(directory))
        head = (Unit(),) if rules.normalize else ()
        return Model(directory, directory, Pooling("mean", (WORDS,)), rules.max_length, identity=later, head=head)

    def _open_saved(self, directory: Path) -> Model | VectorModel:
        manifest = read_manifest(directory)
        names = [name for name in manifest["files"] if name != CARD]
        folders = (f"{ENCODER}/", f"{MODULES_FOLDER}/")
        large = [name for name in names if name.startswith(folders) and name.endswith(".safetensors")]
        check_present(directory, manifest, large)
        self._hashes.start([directory / name for name in large])
        self._checks.append(lambda: check_hashes(directory, manifest, large, self._hashes))
        check_hashes(directory, manifest, [name for name in names if name not in large])
        if manifest["format_version"] == VECTORS_VERSION:
            return _vector_model(directory, manifest)
        if manifest["format_version"] == MODULES_VERSION:
            return _model_of_modules(directory, manifest, self._resolve_modules(directory, manifest))
        return _model(directory, manifest, self._resolve_encoder(directory, manifest))

    def _resolve_modules(self, directory: Path, manifest: dict[str, Any]) -> Modules:
        """Read the model's modules, or those of the packaged model that its encoder names."""
        from fastflow.model.sentence.directory import read_modules
        from fastflow.model.sentence.weights import files_of

        name = manifest["encoder"].get("packaged")
        if name is not None and name not in PACKAGED:
            raise FastflowError(f"{directory / MANIFEST}, field encoder: no packaged model is called {short(name)}")
        folder = (directory if name is None else PACKAGED[name]) / MODULES_FOLDER
        if (modules := read_modules(folder)) is None:
            raise FastflowError(f"{folder / MODULES} is missing: the model is incomplete; copy it again")
        files = files_of(modules)
        if name is None:
            check_files_listed(directory, manifest, files)
            return modules
        self._hashes.start(files)

        def check() -> None:
            if combine_hashes(files, self._hashes, modules.path) != manifest["encoder"].get("sha256"):
                raise FastflowError(
                    f"the packaged model {name} differs from the encoder that {directory} was made with"
                )

        self._checks.append(check)
        return modules

    def _resolve_encoder(self, directory: Path, manifest: dict[str, Any]) -> Path:
        if (directory / ENCODER).is_dir():
            return directory / ENCODER
        encoder = manifest["encoder"]
        if not encoder.get("hub_id"):
            raise FastflowError(f"{directory / ENCODER} is missing: the model is incomplete; copy it again")
        from fastflow.model.locate import find_encoder
        from fastflow.model.sentence.directory import encoder_folder

        found = encoder_folder(find_encoder(directory, encoder, self._allow_download))
        files = encoder_files(found)
        self._hashes.start(files)

        def check() -> None:
            if combine_hashes(files, self._hashes) != encoder.get("sha256"):
                raise FastflowError(
                    f"{encoder['hub_id']} at {found} differs from the encoder this model was trained with"
                )

        self._checks.append(check)
        return found


def _model(directory: Path, manifest: dict[str, Any], encoder: Path) -> Model:
    if encoder == directory / ENCODER:
        check_files_listed(directory, manifest, encoder_files(encoder))
    size = size_of(encoder)
    arrays = _arrays(directory, manifest)
    calibration = _calibration(directory, manifest, arrays, size.hidden)
    pooling = read_pooling(directory, manifest["pooling"], size.layers, encoder, arrays)
    if pooling.mode == "pooler" and not has_pooler(encoder):
        raise FastflowError(f"{encoder}: pooling 'pooler' needs a pooler, and this encoder has none")
    if not is_whole(manifest["max_length"], 2, size.max_tokens):
        raise FastflowError(f"{directory / MANIFEST}, field max_length: must be 2 to {size.max_tokens}")
    records = _records(directory, manifest)
    return Model(directory, encoder, pooling, manifest["max_length"], **calibration, **records)


def _open_uncalibrated(directory: Path, modules: Modules) -> Model:
    from fastflow.model.sentence.weights import head_of, pooling_of

    encoder = modules.transformer.directory
    size = size_of(encoder)
    length = modules.transformer.max_seq_length or size.max_tokens
    pooling = pooling_of(modules, size.layers)
    return Model(directory, encoder, pooling, length, modules=modules, head=head_of(modules))


def _model_of_modules(directory: Path, manifest: dict[str, Any], modules: Modules) -> Model:
    where = f"{directory / MANIFEST}, field"
    if manifest["pooling"] != MODULES_POOLING:
        raise FastflowError(f"{where} pooling: must be {MODULES_POOLING} in format version {MODULES_VERSION}")
    model = _open_uncalibrated(directory, modules)
    if manifest["max_length"] != model.max_length:
        raise FastflowError(f"{where} max_length: must be {model.max_length}, the limit of {MODULES_FOLDER}")
    if modules.truncate_dim is not None:
        raise FastflowError(f"{directory / MODULES_FOLDER}: a calibrated model has no truncate_dim of its own")
    calibration = _calibration(directory, manifest, _arrays(directory, manifest), model.pooled_dim)
    return replace(model, **calibration, **_records(directory, manifest))


def _vector_model(directory: Path, manifest: dict[str, Any]) -> VectorModel:
    dim, where = manifest["input_dim"], f"{directory / MANIFEST}, field"
    if not is_whole(dim, 1):
        raise FastflowError(f"{where} input_dim: must be a whole number of at least 1, not {short(dim)}")
    if not manifest["calibration"]:  # the stages' shapes prove input_dim
        raise FastflowError(f"{where} calibration: a model without an encoder needs a stage, and there is none")
    return VectorModel(directory, dim, **_calibration(directory, manifest, _arrays(directory, manifest), dim))


def _arrays(directory: Path, manifest: dict[str, Any]) -> Arrays:
    return read_tensors(directory / CALIBRATION) if CALIBRATION in manifest["files"] else {}


def _calibration(directory: Path, manifest: dict[str, Any], arrays: Arrays, inputs: int) -> dict[str, Any]:
    stages = read_stages(directory, manifest, arrays)
    try:
        calibrations.check(stages, inputs)
    except KeyError as error:
        raise FastflowError(f"{directory / MANIFEST}, field calibration: a stage lacks the setting {error}") from error
    if manifest["dim"] != (dim := calibrations.output_dim(stages, inputs)):
        raise FastflowError(f"{directory / MANIFEST}, field dim: says {manifest['dim']}, the calibration gives {dim}")
    found = {"calibration": stages, "identity": manifest["fingerprint"], "manifest": manifest}
    if any(name.startswith(("truncation.", "spread")) for name in arrays):
        from fastflow.transforms.truncation import read_spread, read_truncation

        where = str(directory / CALIBRATION)
        found["truncation"] = read_truncation(arrays, dim, where)
        found["spread"] = read_spread(arrays, dim, where)
    return found


def _records(directory: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    if "int8" not in manifest:
        return {}
    from fastflow.model.encoder.int8 import read_int8

    return {"int8": read_int8(directory, manifest)}
