"""Every reason to refuse has its status and words on both interfaces."""

from __future__ import annotations

import json

import pytest

from fastflow.serve.refusals import KINDS, Refused, is_openai

TEI = {
    "empty": 400,
    "body": 413,
    "validation": 422,
    "tokenizer": 422,
    "backend": 424,
    "overloaded": 429,
    "unhealthy": 503,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_is_that_of_the_interface(kind):
    refused = Refused(kind, "a sentence", "field", {"retry-after": "3"})
    openai, tei = refused.response("/v1/embeddings"), refused.response("/embed")
    error = json.loads(openai.body)["error"]
    assert (error["message"], error["param"], openai.headers["retry-after"]) == ("a sentence", "field", "3")
    assert json.loads(tei.body) == {"error": "a sentence", "error_type": KINDS[kind].tei_type}
    assert tei.status_code == TEI.get(kind, openai.status_code)
    assert (openai.status_code >= 500) == (error["type"] == "server_error")


def test_paths():
    assert is_openai("/v1/embeddings")
    assert not is_openai("/embed")
