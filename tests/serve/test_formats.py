"""The three forms of a vector hold the same bits."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

from fastflow.serve.formats import encode_base64, format_openai, format_rows, format_tei, to_octets, wants_octets

ODD = [0.0, -0.0, 1.0, -1 / 3, 1e-45, 1.17549435e-38, 3.4028235e38, 0.1, 16777217.0, -2.5e-7]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_json_gives_every_number_back_exactly(dtype):
    rng = np.random.default_rng(0)
    z = np.concatenate([rng.normal(size=(5, 10)), [ODD]]).astype(dtype)
    back = np.array([json.loads(row) for row in format_rows(z)], dtype)
    assert np.array_equal(back, z)
    assert json.loads(format_tei(z)) == [json.loads(row) for row in format_rows(z)]


def test_bytes_and_base64_are_little_endian_float32():
    z = np.array([[1.0, 2.0], [3.0, -4.0]], ">f4")
    assert to_octets(z).hex() == "0000803f000000400000404000" + "0080c0"
    assert [base64.b64decode(json.loads(row)).hex() for row in encode_base64(z)] == [
        "0000803f00000040",
        "00004040000080c0",
    ]


def test_a_view_with_gaps_is_written_row_by_row():
    z = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    assert np.array_equal(np.frombuffer(to_octets(z), "<f4").reshape(3, 2), z)
    assert json.loads(format_rows(z)[1]) == [4, 6]


def test_the_name_of_a_model_is_escaped():
    answer = json.loads(format_openai(np.zeros((1, 1), np.float32), "float", 'a"b', 3, 1))
    assert answer["model"] == 'a"b'
    assert answer["usage"] == {"prompt_tokens": 3, "total_tokens": 3, "truncated_texts": 1}


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ([], False),
        (["*/*"], False),
        (["application/octet-stream"], True),
        (["Application/Octet-Stream;q=0.9"], True),
        (["application/json, application/octet-stream"], False),
        (["text/html", "application/octet-stream"], True),
    ],
)
def test_accept(accept, wanted):
    assert wants_octets(accept) is wanted
