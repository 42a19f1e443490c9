"""Fetch a model from the Hub or send a model, as one commit, and compare every file's hash."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha1
from pathlib import Path, PurePosixPath
from typing import Any

from fastflow.atomic import replace_text
from fastflow.errors import FastflowError, UsageError, missing_extra
from fastflow.model.hashing import HUB_RECORD, file_hash
from fastflow.model.locate import HUB_ID
from fastflow.values import reason, short

TAKEN = (".safetensors", ".json", ".txt", ".model", ".md")
PICKLES = (".bin", ".ckpt", ".dill", ".joblib", ".pickle", ".pkl", ".pt", ".pth")
WEIGHTS = ".safetensors"


@dataclass(frozen=True)
class Snapshot:
    """Repository, commit, and each file's sha256 by name."""

    repository: str
    commit: str
    files: dict[str, str]

    def __str__(self) -> str:
        return f"{self.repository}@{self.commit}"


def pull(name: str, out: Path) -> tuple[Snapshot, list[str]]:
    """Fetch REPO or REPO@REVISION into ``out``; returns its record and the skipped files.

    An earlier pull in ``out`` is only compared with its record and the Hub's commit.
    """
    repository, at, revision = name.partition("@")
    check_id(repository, "pull takes the id of a repository, such as ORGANISATION/NAME or ORGANISATION/NAME@COMMIT")
    if at and not revision:
        raise UsageError(f"{name} names no revision after @: give one, or leave @ out for the newest commit")
    record = record_of(out)
    if record is not None:
        if record.repository != repository or record.commit != (revision := _commit(repository, revision, record)):
            raise FastflowError(f"{out} holds {record}, not {repository}@{revision}: give another -o, or remove it")
        check_record(out, record)
        return record, []
    found = _list(repository, revision)
    files = {each.rfilename: each for each in found.siblings if each.rfilename.endswith(TAKEN)}
    left = [each.rfilename for each in found.siblings if each.rfilename not in files]
    _check_names(repository, list(files), left)
    place = Path(os.path.abspath(out))
    part = place.with_name(f".{place.name}.{found.sha}.part")
    for file in files:
        _fetch(repository, file, found.sha, part)
    for file, listed in files.items():
        if not _same(part / file, listed):
            (part / file).unlink()
            raise FastflowError(
                f"{file} of {repository}@{found.sha} came with other bytes than the Hub lists: try again"
            )
    shutil.rmtree(part / ".cache", ignore_errors=True)
    record = Snapshot(repository, found.sha, {file: file_hash(part / file) for file in files})
    replace_text(part / HUB_RECORD, json.dumps(asdict(record), indent=2) + "\n")
    part.replace(out)
    return record, left


def push(directory: Path, repository: str, private: bool) -> tuple[Snapshot, list[str]]:
    """Verify a model and send it as one commit; returns its record and the skipped files.

    Refuse pickles, and a repository with files that ``directory`` lacks.
    """
    from fastflow.model.verify import verify

    check_id(repository, "push takes the id of a repository, such as ORGANISATION/NAME")
    verify(directory)
    paths = {path.relative_to(directory).as_posix(): path for path in sorted(directory.rglob("*")) if path.is_file()}
    files = {name: path for name, path in paths.items() if name.endswith(TAKEN) and name != HUB_RECORD}
    left = [name for name in paths if name not in files and name != HUB_RECORD]
    if pickles := [name for name in left if name.endswith(PICKLES)]:
        raise FastflowError(f"{directory} holds {listing(pickles)}, which can run code when opened: remove it")
    client = _client()
    with _sentences(repository):
        api = client.HfApi()
        api.create_repo(repository, private=private or None, exist_ok=True)
        others = {each.rfilename for each in api.model_info(repository).siblings if each.rfilename.endswith(TAKEN)}
    if extra := sorted(others - set(files)):
        raise FastflowError(f"{repository} holds {listing(extra)}, which {directory} lacks: remove it there first")
    with _sentences(repository):
        additions = [client.CommitOperationAdd(name, path) for name, path in files.items()]
        commit = api.create_commit(repository, additions, commit_message="A model of fastflow").oid
    there = {each.rfilename: each for each in _list(repository, commit).siblings}
    if other := [name for name, path in files.items() if name not in there or not _same(path, there[name])]:
        raise FastflowError(f"{repository}@{commit} holds other bytes than {directory} in {listing(other)}: push again")
    return Snapshot(repository, commit, {name: file_hash(path) for name, path in files.items()}), left


def record_of(directory: Path) -> Snapshot | None:
    """Read the record of a pulled directory; None without a directory."""
    path = directory / HUB_RECORD
    if not directory.exists():
        return None
    if not path.is_file():
        raise UsageError(f"{directory} exists already, and was not pulled from the Hub; remove it or choose another -o")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        record = Snapshot(found["repository"], found["commit"], dict(found["files"]))
    except (ValueError, TypeError, KeyError) as error:
        raise FastflowError(f"{path} is damaged: remove {directory}, and pull again") from error
    return record


def check_record(directory: Path, record: Snapshot) -> None:
    """Raise unless the files of ``directory`` match its record."""
    names = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
    if extra := sorted(names - {HUB_RECORD, *record.files}):
        raise FastflowError(f"{directory} holds {listing(extra)}, which is not of {record}: remove it")
    for name, known in record.files.items():
        if name not in names or file_hash(directory / name) != known:
            state = "differs from" if name in names else "is missing, a file of"
            raise FastflowError(f"{directory / name} {state} {record}: remove {directory}, and pull again")


def check_id(repository: str, usage: str) -> None:
    """Raise a UsageError unless ``repository`` is a Hub id and not a local path."""
    if Path(repository).exists():
        raise UsageError(f"{repository} is a path on this machine; {usage}")
    if not HUB_ID.fullmatch(repository):
        raise UsageError(f"{usage}, not {short(repository)}")


def listing(names: list[str]) -> str:
    """List the first three ``names``, and count the others."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _commit(repository: str, revision: str, record: Snapshot) -> str:
    return revision if revision == record.commit else str(_list(repository, revision).sha)


def _check_names(repository: str, files: list[str], left: list[str]) -> None:
    if not any(name.endswith(WEIGHTS) for name in files):
        pickles = [name for name in left if name.endswith(PICKLES)]
        why = f": {listing(pickles)} can run code when opened, and is not taken" if pickles else ""
        raise FastflowError(f"{repository} has no weights in safetensors{why}")
    for name in files:
        parts = PurePosixPath(name).parts
        if name.startswith("/") or ".." in parts or "\\" in name or parts[0] == ".cache" or name == HUB_RECORD:
            raise FastflowError(f"{repository} holds a file called {short(name)}, which has no place in a model")


def _same(path: Path, listed: Any) -> bool:
    """Compare with the Hub's hash: git's for a small file, else sha256."""
    if listed.lfs is not None:
        return bool(file_hash(path) == listed.lfs.sha256)
    data = path.read_bytes()
    return bool(sha1(b"blob %d\0" % len(data) + data).hexdigest() == listed.blob_id)  # noqa: S324


def _list(repository: str, revision: str) -> Any:
    client = _client()
    with _sentences(repository):
        return client.HfApi().model_info(repository, revision=revision or None, files_metadata=True)


def _fetch(repository: str, name: str, commit: str, folder: Path) -> None:
    client = _client()
    with _sentences(repository):
        client.hf_hub_download(repository, name, revision=commit, local_dir=folder)


@contextmanager
def _sentences(repository: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise FastflowError(f"{repository} on the Hub: {reason(error)}") from error


def _client() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise missing_extra("hub", str(error.name), "the Hub") from None
    return huggingface_hub
