"""Web pages of other origins: a name of theirs that leads to this machine, and requests that they send across."""

from __future__ import annotations

import http.client

import pytest

from support.servers import serving

JSON = "application/json"
HOSTS = ("localhost", "my-desk")


@pytest.fixture(scope="module")
def local():
    """A server as it is at a loopback address without a key."""
    with serving(rate=50_000.0, hosts=HOSTS) as running:
        yield running


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1",
             "[::2]", "evil@localhost", "localhost:80:80", "", "[::1].evil.example"],
)  # fmt: skip
def test_a_foreign_name_is_refused_on_every_route(local, host):
    for path in [route.path for route in local.app.routes] + ["/nothing", "/v1/other"]:
        for method in ("GET", "POST", "OPTIONS"):
            answer = local.ask(method, path, headers={"host": host})
            assert answer.status == 403, (method, path)
            error = answer.json["error"]
            assert "answers to localhost alone" in (error["message"] if path.startswith("/v1/") else error)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:9", "[::1]", "[::1]:80", "127.0.0.2", "my-desk:8080"]
)
def test_names_of_this_machine_are_answered(local, host):
    assert local.ask("GET", "/info", headers={"host": host}).status == 200


def test_a_request_without_a_host_is_no_browsers(local):
    connection = http.client.HTTPConnection(local.host, local.port, timeout=30)
    connection.putrequest("GET", "/info", skip_host=True)
    connection.endheaders()
    assert connection.getresponse().status == 200
    connection.close()


def test_the_refusal_is_counted_and_described(local):
    before = local.service.metrics.value("te_request_failure", err="host")
    local.ask("GET", "/info", headers={"host": "evil.example"})
    assert local.service.metrics.value("te_request_failure", err="host") == before + 1
    paths = local.get("/openapi.json").json["paths"]
    assert all("403" in operation["responses"] for item in paths.values() for operation in item.values())


@pytest.mark.slow
def test_any_name_goes_with_a_key_and_beyond_this_machine(server):
    assert server.ask("GET", "/info", headers={"host": "my.example"}).status == 200
    with serving(rate=50_000.0, hosts=HOSTS, keys=("k",)) as locked:
        assert locked.get("/info", host="my.example", authorization="Bearer k").status == 200


@pytest.mark.parametrize("kind", ["text/plain", "text/plain; application/json", "application/x-www-form-urlencoded",
                                  "multipart/form-data; boundary=a", "text/plain, application/json", ""])  # fmt: skip
def test_a_page_cannot_send_json_across_without_asking(librarian, kind):
    """Browsers send these types to any origin without asking it first; none is read as JSON."""
    counted = librarian.service.metrics.value("te_request_count", method="single")
    headers = {"content-type": kind, "origin": "http://evil.example"}
    paths = librarian.get("/openapi.json").json["paths"]
    for path in [path for path, item in paths.items() if "post" in item]:
        assert librarian.ask("POST", path, headers=headers, raw=b'{"query": "a"}').status == 415, path
    assert librarian.service.metrics.value("te_request_count", method="single") == counted


def test_no_other_origin_is_given_leave(librarian):
    """What a browser asks before it sends application/json across, and answers that it would hand to the page."""
    ask = {"origin": "http://evil.example", "access-control-request-method": "POST",
           "access-control-request-headers": "content-type"}  # fmt: skip
    for route in librarian.app.routes:
        answers = [librarian.ask(method, route.path, headers=ask) for method in ("OPTIONS", "GET")]
        assert answers[0].status == 405, route.path
        for answer in answers:
            assert not [name for name in answer.headers if name.startswith("access-control")], route.path
