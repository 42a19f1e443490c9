"""The table of configurations of the Triton flow."""

import pytest

from fastflow.kernels.flow.triton_table import TABLE, choose


@pytest.mark.parametrize("kind", TABLE)
def test_each_table_serves_every_batch_in_order(kind):
    configs = TABLE[kind]
    assert [c.rows for c in configs] == sorted({c.rows for c in configs})
    assert configs[-1].rows == float("inf")
    assert [choose(kind, rows) for rows in (1, 2, 10**8)] == [configs[0], configs[1], configs[-1]]
    for config in configs:
        assert (config.SCHEME == "fma") == (config.BM == 1)
        assert all(size & (size - 1) == 0 for size in (config.BM, config.BN, config.BK, config.HB))
        assert config.SCHEME in ("fma", "tf32x3")


def test_every_kind_has_a_table():
    assert set(TABLE) == {"hidden", "dense", "state"}
