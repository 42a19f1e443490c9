"""sha256 of files, at once or in a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from fastflow.errors import FastflowError
from fastflow.late import start_thread
from fastflow.values import open_regular

MANIFEST = "fastflow.json"
MODULES = "modules.json"
HUB_RECORD = "hub.json"  # written by `fastflow pull`; not part of the model
Seen = tuple[int, int, int] | None
BLOCK = 1 << 20


def file_hash(path: Path, count: Callable[[int], None] = lambda read: None) -> str:
    """Return the sha256 of a file; ``count`` takes the bytes of each read."""
    from hashlib import sha256

    digest = sha256()
    block = bytearray(BLOCK)
    view = memoryview(block)
    try:
        with open_regular(path) as handle:
            while read := handle.readinto(block):  # type: ignore[attr-defined]
                digest.update(view[:read])
                count(read)
        return digest.hexdigest()
    except OSError as error:
        raise FastflowError(f"{path} cannot be read: {error.strerror}") from error


def identify_file(path: Path) -> Seen:
    """Return inode, size and time of change; None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def check_unchanged(path: Path, before: Seen) -> None:
    """Raise if ``identify_file`` no longer returns ``before``."""
    if identify_file(path) != before:
        raise FastflowError(f"{path} was changed since the model was opened; open it again")


class Hashes:
    """Hash files in a thread: ``start(paths)`` begins, ``hashes(path)`` waits for a sha256 or raises."""

    def __init__(self) -> None:
        self._found: dict[Path, str | FastflowError] = {}
        self._join: dict[Path, Callable[[], None]] = {}
        self._seen: dict[Path, Seen] = {}

    def start(self, paths: Sequence[Path]) -> None:
        self._seen |= {path: identify_file(path) for path in paths}
        self._join |= dict.fromkeys(paths, start_thread(lambda: self._run(tuple(paths)), "fastflow-sha256"))

    def _run(self, paths: Sequence[Path]) -> None:
        for path in paths:
            try:
                self._found[path] = file_hash(path)
            except FastflowError as error:
                self._found[path] = error

    def __call__(self, path: Path) -> str:
        self._join[path]()
        found = self._found[path]
        if isinstance(found, FastflowError):
            raise found
        check_unchanged(path, self._seen[path])
        return found


class Later:
    """A call returns ``combine_hashes(files, root=root)``, computed once."""

    def __init__(self, files: Sequence[Path], root: Path | None = None) -> None:
        self._files, self._root = tuple(files), root
        self._seen = [identify_file(path) for path in files]
        self._found = ""

    def __call__(self) -> str:
        if not self._found:  # no lock, which a fork would copy locked
            found = combine_hashes(self._files, root=self._root)
            for path, before in zip(self._files, self._seen, strict=True):
                check_unchanged(path, before)
            self._found = found
        return self._found


def is_file(path: Path) -> bool:
    """Return whether a file exists; raises if the system cannot look the path up."""
    try:
        return path.is_file()
    except OSError as error:
        raise FastflowError(f"{str(path)[:80]} cannot be opened: {error.strerror}") from error


def check_present(directory: Path, manifest: dict[str, Any], names: list[str]) -> None:
    """Raise for the first file that is missing or outside the model's directory."""
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
    """Raise for the first file that is missing or differs from the manifest's hash."""
    for name in names:
        check_present(directory, manifest, [name])
        if hash_of(directory / name) != manifest["files"][name]:
            path = directory / name
            raise FastflowError(f"{path} is damaged: its sha256 differs from {MANIFEST}; copy or train the model again")


def combine_hashes(
    files: Sequence[Path], hash_of: Callable[[Path], str] = file_hash, root: Path | None = None
) -> str:  # fmt: skip
    """Return one sha256 over names, relative to ``root``, and hashes of ``files``."""
    from hashlib import sha256

    digest = sha256()
    for path in files:
        name = path.name if root is None else path.relative_to(root).as_posix()
        digest.update(f"{name} {hash_of(path)}\n".encode())
    return digest.hexdigest()
