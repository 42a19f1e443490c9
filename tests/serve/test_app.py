"""The application's own answers: unknown paths, wrong methods, and faults of ours."""

from __future__ import annotations

import pytest

from support.servers import serving


@pytest.mark.parametrize("path", ["/v1/nothing", "/nothing", "/embed/", "//embed", "/v1/embeddings/"])
def test_an_unknown_path_is_404_in_the_words_of_its_interface(server, path):
    answer = server.get(path)
    assert answer.status == 404
    assert ("type" in answer.json["error"]) == path.startswith("/v1/")


@pytest.mark.parametrize(("method", "path"), [("GET", "/embed"), ("PUT", "/v1/embeddings"), ("POST", "/health")])
def test_a_wrong_method_is_405_and_names_the_right_one(server, method, path):
    answer = server.ask(method, path)
    assert answer.status == 405
    assert f"{path} takes {answer.headers['allow']}, not {method}" in str(answer.json)


@pytest.mark.slow
def test_a_fault_of_ours_is_an_answer_without_the_text(monkeypatch, caplog):
    with serving(rate=50_000.0) as server:
        model = server.service.model
        monkeypatch.setattr(model, "embed", lambda tokens, how: 1 / 0)
        assert server.post("/embed", {"inputs": "a secret"}).status == 424
        assert server.post("/v1/embeddings", {"input": "a secret"}).status == 500
        monkeypatch.setattr(model, "prompt", lambda *arguments: 1 / 0)
        answer = server.post("/v1/embeddings", {"input": "a secret"})
        assert (answer.status, answer.json["error"]["type"]) == (500, "server_error")
        monkeypatch.undo()
        assert server.post("/embed", {"inputs": "a"}).status == 200
    assert "secret" not in caplog.text
