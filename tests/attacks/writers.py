"""Runs of ``fastflow embed`` that write one output at once, are interrupted and continued: rows must never mix.

    python tests/attacks/writers.py --rounds 20 --seconds 300 --seed 0

In a round two processes embed two inputs into one file, together or as two shards; one may get a signal. Each
that exits with 0 claims that the file was its own when it finished, so the file must be, bit for bit, what one
gives alone. A run that did not succeed must say why in one sentence, and, continued with --resume, give the bytes of a
whole run. Exit code 1 and the seed of the round for anything else.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from fastflow.files.parts.manifest import manifest_path

FASTFLOW = str(Path(sysconfig.get_path("scripts")) / "fastflow")
WORDS = ["the", "a", "dog", "cat", "bird", "tree", "river", "stone", "house", "market", "sings", "runs", "falls"]
SUFFIXES = (".npy", ".npz", ".jsonl", ".safetensors", ".parquet", ".db")
LINES = 6000
SIGNALS = (None, None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
REFUSED = ("is being written by another run",)
STOPPED = ("interrupted", "terminated", "")  # SIGKILL says nothing


def main() -> int:
    """Run the rounds and count what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=300, help="begin no round after that many")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # children of what was started with & ignore it
    start, counts, faults, done = time.monotonic(), dict.fromkeys(("alone", "refused", "stopped", "resumed"), 0), 0, 0
    for number in range(options.rounds):
        if time.monotonic() - start > options.seconds:
            break
        with tempfile.TemporaryDirectory() as folder:
            wrong = _round(Path(folder), random.Random(f"{options.seed}.{number}"), counts)
        for fault in wrong:
            print(f"round {number} (--seed {options.seed}): {fault}")
        faults, done = faults + len(wrong), done + 1
    print(f"{done} rounds in {time.monotonic() - start:.0f} s: {counts}; {faults} faults")
    return 1 if faults or not done else 0


def _round(folder: Path, rng: random.Random, counts: dict[str, int]) -> list[str]:
    suffix, shards, sent = rng.choice(SUFFIXES), rng.random() < 0.3, rng.choice(SIGNALS)
    inputs = [folder / "a.txt", folder / "b.txt"]
    for path in inputs:
        path.write_text("".join(" ".join(rng.choices(WORDS, k=rng.randint(2, 9))) + "\n" for _ in range(LINES)))
    if shards:
        inputs[1] = inputs[0]
    commands = [
        [FASTFLOW, "embed", str(path), "--quiet", "--threads", "1", *(["--shard", f"{i}/2"] if shards else [])]
        for i, path in enumerate(inputs, 1)
    ]
    alone = [_alone(command, folder / f"alone{i}{suffix}") for i, command in enumerate(commands)]
    (folder / "out").mkdir()
    target = folder / "out" / f"x{suffix}"
    runs = []
    for command in commands:
        runs.append(subprocess.Popen([*command, "-o", str(target)], stderr=subprocess.PIPE, text=True))
        time.sleep(rng.random() * 0.4)
    if sent is not None:
        time.sleep(rng.random() * 1.5)
        runs[0].send_signal(sent)
    said = [run.communicate()[1].strip().splitlines() for run in runs]
    codes = [run.returncode for run in runs]
    return _judge(folder, target, alone, commands, codes, said, sent, counts)


def _alone(command: list[str], target: Path) -> bytes:
    subprocess.run([*command, "-o", str(target)], check=True, capture_output=True)
    return target.read_bytes()


def _judge(
    folder: Path,
    target: Path,
    alone: list[bytes],
    commands: list[list[str]],
    codes: list[int],
    said: list[list[str]],
    sent: signal.Signals | None,
    counts: dict[str, int],
) -> list[str]:
    wrong = []
    claimed = [i for i, code in enumerate(codes) if code == 0]
    counts["alone"] += len(claimed)
    if claimed and target.read_bytes() not in [alone[i] for i in claimed]:
        wrong.append(f"exit 0 of {claimed}, but {target.name} holds what none of them gives alone")
    if not claimed and target.exists():
        wrong.append(f"no run succeeded, but {target.name} is there")
    for i, code in enumerate(codes):
        last = said[i][-1] if said[i] else ""
        if code == 1 and any(reason in last for reason in REFUSED):
            counts["refused"] += 1
        elif i == 0 and sent is not None and code in (128 + sent, -sent):
            counts["stopped"] += 1
            wrong += _continue(folder, commands[0], target, alone[0], counts) if not claimed else []
        elif code != 0:
            wrong.append(f"run {i} ended with {code}: {last!r}")
    left = sorted(path.name for path in target.parent.iterdir() if path != manifest_path(target))
    if claimed and len(claimed) == len(codes) and left != [target.name]:
        wrong.append(f"left behind: {left}")
    return wrong


def _continue(folder: Path, command: list[str], target: Path, alone: bytes, counts: dict[str, int]) -> list[str]:
    done = subprocess.run([*command, "-o", str(target), "--resume"], capture_output=True, text=True, check=False)
    counts["resumed"] += 1
    if done.returncode or target.read_bytes() != alone:
        return [f"--resume after the signal gives other bytes than a whole run: {done.returncode} {done.stderr!r}"]
    return [f"left behind: {p.name}" for p in target.parent.iterdir() if p not in (target, manifest_path(target))]


if __name__ == "__main__":
    sys.exit(main())
