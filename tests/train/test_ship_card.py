"""The card of a calibration of vectors says what it is of, and for which vectors it is void."""

import numpy as np

from fastflow.stages.calibration import Stage
from fastflow.train.ship.card import card_of_vectors


def test_the_card_names_the_vectors_and_their_hash():
    stages = [Stage("standardize", {}, {"mean": np.zeros(4), "deviation": np.ones(4)})]
    training = {"vectors_sha256": "0123456789abcdef" + 48 * "f", "source": "v.npy", "vectors": 99, "reasons": ["asked"]}
    isotropy = {"mean_cosine": 0.9, "isoscore": 0.1, "top_share": 0.5}
    card = card_of_vectors(stages, training, {"isotropy": {"before": isotropy, "after": isotropy}}, 4)
    for said in (
        "| input | vectors of 4 numbers |", "| calibration | standardize |", "- asked\n", "embeds no text",
        "| fitted on | v.npy: 99 vectors (sha256 0123456789abcdef) |", "Of others its output is void",
    ):  # fmt: skip
        assert said in card
    table = [line for line in card.splitlines() if line.startswith("| IsoScore")]
    assert len(table) == 1
    assert table[0].count("0.1") == 2
