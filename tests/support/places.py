"""Folders of the checkout, and the environment as a user's process would see it."""

import os
import signal
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
DATA = ROOT.parent / "shared" / "data"  # evaluation data, not shipped

# set before NumPy, PyTorch or the Hub's client are imported, which is why conftest imports this file first
os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes would compile every module again
os.environ |= {"RAY_worker_niceness": "0"}  # Ray's own is 15, with which its workers wait for every other test
USERS = dict(os.environ)
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # matrices this small only lose by more, above all on a busy machine

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a suite that a script started with &: children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
