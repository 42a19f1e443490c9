"""sha256 of files, at once or in a thread of its own during the work that needs the same files; and of encoders."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from fastflow.errors import FastflowError
from fastflow.model.encoder.weights import WEIGHT_INDEX, weight_files
from fastflow.model.tokenizer.settings import FILES as SETTINGS_FILES
from fastflow.values import open_regular

MANIFEST = "fastflow.json"
MODULES = "modules.json"  # of a directory that Sentence Transformers saved
HUB_RECORD = "hub.json"  # of a directory that `fastflow pull` made: it is no part of the model
Seen = tuple[int, int, int] | None
BLOCK = 1 << 20  # bytes read at a time; hashlib lets other threads run while it computes


def file_hash(path: Path) -> str:
    """sha256 of a file's bytes, in hexadecimal."""
    from hashlib import sha256  # loads OpenSSL, and opening a table hashes nothing

    digest = sha256()
    block = bytearray(BLOCK)
    view = memoryview(block)
    try:
        with open_regular(path) as handle:
            while count := handle.readinto(block):  # type: ignore[attr-defined]
                digest.update(view[:count])
        return digest.hexdigest()
    except OSError as error:
        raise FastflowError(f"{path} cannot be read: {error.strerror}") from error


def seen(path: Path) -> Seen:
    """What shows whether a file is still the same one; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def check_seen(path: Path, before: Seen) -> None:
    """Raise a FastflowError if the file is not the one that was ``seen`` before."""
    if seen(path) != before:
        raise FastflowError(f"{path} was changed since the model was opened; open it again")


def in_thread(work: Callable[[], None], name: str) -> Callable[[], None]:
    """Begin ``work`` in one more thread, or do it now if the system gives none; a call of what is returned waits."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # of memory, or of the threads of a user
        work()
        return lambda: None
    return thread.join


class Hashes:
    """``start(paths)`` begins, ``hashes(path)`` is the sha256 of one, waited for; errors are raised there.

    So is a file that was changed since it was started: what was read meanwhile is not what was hashed.
    """

    def __init__(self) -> None:
        self._found: dict[Path, str | FastflowError] = {}
        self._join: dict[Path, Callable[[], None]] = {}
        self._seen: dict[Path, Seen] = {}

    def start(self, paths: Sequence[Path]) -> None:
        """Compute the sha256 of ``paths``, in sequence, in one more thread."""
        self._seen |= {path: seen(path) for path in paths}
        self._join |= dict.fromkeys(paths, in_thread(lambda: self._run(tuple(paths)), "fastflow-sha256"))

    def _run(self, paths: Sequence[Path]) -> None:
        for path in paths:
            try:
                self._found[path] = file_hash(path)
            except FastflowError as error:
                self._found[path] = error

    def __call__(self, path: Path) -> str:
        """The sha256 of a started file, in hexadecimal; raises a FastflowError if it could not be read."""
        self._join[path]()
        found = self._found[path]
        if isinstance(found, FastflowError):
            raise found
        check_seen(path, self._seen[path])
        return found


class Later:
    """``combined(files, root=root)``, computed when it is first called: for files that opening does not read whole.

    Raises a FastflowError then if one is no longer the file that it was.
    """

    def __init__(self, files: Sequence[Path], root: Path | None = None) -> None:
        self._files, self._root = tuple(files), root
        self._seen = [seen(path) for path in files]
        self._found = ""

    def __call__(self) -> str:
        if not self._found:  # without a lock: the files may be large, and a fork would wait
            found = combined(self._files, root=self._root)
            for path, before in zip(self._files, self._seen, strict=True):
                check_seen(path, before)
            self._found = found
        return self._found


def is_file(path: Path) -> bool:
    """Whether there is such a file; raises a FastflowError for a name that the system cannot even look up."""
    try:
        return path.is_file()
    except OSError as error:  # a name too long, a folder without permission
        raise FastflowError(f"{str(path)[:80]} cannot be opened: {error.strerror}") from error


def check_present(directory: Path, manifest: dict[str, Any], names: list[str]) -> None:
    """Raise for the first of the named files that is missing, or that lies outside the model.

    An adapter lacks the weights of its encoder, so the message names the file that belongs there.
    """
    for name in names:
        path, inside = directory / name, PurePosixPath(name)
        if not inside.parts or ".." in inside.parts or inside.is_absolute():
            raise FastflowError(f"{directory / MANIFEST}, field files: {name} lies outside the model")
        if not is_file(path):
            adapter = f", or, if it is an adapter, put the encoder's file of sha256 {manifest['files'][name]} there"
            raise FastflowError(
                f"{path} is missing: the model is incomplete; copy it again" + adapter * (path.suffix == ".safetensors")
            )


def check_hashes(
    directory: Path, manifest: dict[str, Any], names: list[str], hash_of: Callable[[Path], str] = file_hash
) -> None:
    """Compare the named files with the manifest's hashes; the error names the first that is missing or differs."""
    for name in names:
        check_present(directory, manifest, [name])
        if hash_of(directory / name) != manifest["files"][name]:
            path = directory / name
            raise FastflowError(f"{path} is damaged: its sha256 differs from {MANIFEST}; copy or train the model again")


def encoder_files(directory: Path) -> list[Path]:
    """The files that define an encoder: config, weights and tokenizer, in a fixed order."""
    names = ("config.json", "tokenizer.json", *SETTINGS_FILES, "vocab.txt", WEIGHT_INDEX)
    return [directory / name for name in names if (directory / name).is_file()] + weight_files(directory)


def encoder_hash(directory: Path) -> str:
    """sha256 over the names and hashes of ``encoder_files``: the identity of an encoder directory."""
    return combined(encoder_files(directory))


def combined(
    files: Sequence[Path], hash_of: Callable[[Path], str] = file_hash, root: Path | None = None
) -> str:  # fmt: skip
    """sha256 over the names and hashes of ``files``; the names are paths below ``root`` if it is given."""
    from hashlib import sha256

    digest = sha256()
    for path in files:
        name = path.name if root is None else path.relative_to(root).as_posix()
        digest.update(f"{name} {hash_of(path)}\n".encode())
    return digest.hexdigest()
