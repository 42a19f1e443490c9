"""The table of configurations of the Triton encoder."""

import pytest

from fastflow.kernels.encoder.triton_table import ATTENTION, WIDEST, attention, power_of_two, row_constants


@pytest.mark.parametrize("itemsize", ATTENTION)
def test_every_head_and_length_has_a_configuration(itemsize):
    for head in (1, 32, 64, 65, WIDEST):
        found = [attention(itemsize, head, tokens) for tokens in (1, 16, 17, 64, 65, 10**6)]
        assert all(head <= config.head for config in found)
        assert [config.BM for config in found] == sorted(config.BM for config in found)
    for config in ATTENTION[itemsize]:
        assert all(size & (size - 1) == 0 and size >= 16 for size in (config.BM, config.BN))


@pytest.mark.parametrize(("number", "power"), [(1, 1), (2, 2), (3, 4), (768, 1024), (1024, 1024)])
def test_powers_of_two(number, power):
    assert power_of_two(number) == power
    assert row_constants(number)["BD"] == power
