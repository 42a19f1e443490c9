"""Try an installed wheel: ``python tests/smoke.py``, run by [tool.cibuildwheel] and by across/test_release.py.

Each instruction set that runs here passes its self-tests, and embeds TEXTS by two models. The vectors are near NUMBERS,
and have the BITS stored for the processor. The output has every name and its bits: those of arm64 are not stored yet.
"""

import hashlib
import os
import platform

import numpy as np

import fastflow
from fastflow.kernels import processor

TEXTS = ["A man plays a guitar.", "Ein Mädchen singt. 東京タワー", "shares fell sharply " * 30]
NUMBERS = [
    [-0.033876, 0.024289, -0.014995, -1.235083],
    [-0.124186, 0.059556, -0.437391, -0.506307],
    [0.570882, 0.243096, -1.410849, 0.124458],
]
BITS = {
    "x86_64 avx512": "c8832102ab95417e",
    "x86_64 avx2": "59f9ad1d6b312e4e",
    "x86_64 portable": "c247847970348a36",
}


def main() -> None:
    assert not processor.faults(), processor.faults()
    for isa in processor.usable_isas():
        os.environ["FASTFLOW_ISA"] = isa
        vectors = np.hstack([fastflow.Runtime(name, backend="cpu").encode(TEXTS) for name in ("static", "untuned")])
        bits = hashlib.sha256(vectors.tobytes()).hexdigest()[:16]
        name = f"{platform.machine()} {isa}"
        print(name, bits)
        np.testing.assert_allclose(vectors[:, ::128], NUMBERS, atol=1e-5)
        assert bits == BITS.get(name, bits), f"{name}: other bits than {BITS[name]}"


if __name__ == "__main__":
    main()
