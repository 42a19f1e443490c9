"""fastflow-train --ray: what does not go together with it is refused before a cluster starts."""

from __future__ import annotations

import sys

import pytest

from fastflow.errors import missing_extra

from support.commands import assert_one_sentence


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--source", "-"), "--ray reads the corpus twice, which standard input cannot be: give a file"),
        (("--encoder-dropout",), "--encoder-dropout runs the encoder at every step, which workers cannot"),
        (("--device", "cuda"), "workers compute on CPUs: leave out --device"),
    ],
)
def test_what_is_refused(train, options, message):
    source = {"source": "-", "stdin": "a dog\n"} if options[0] == "--source" else {}
    assert_one_sentence(train("--ray", "local", *(() if source else options), **source), 2, message)


@pytest.mark.parametrize(("address", "message"), [("ray://head:10001", "Ray Client is not supp"), ("x", "--ray needs")])
def test_an_address_is_host_and_port(train, address, message):
    assert_one_sentence(train("--ray", address), 2, message)


def test_without_ray_the_command_to_install_it_is_said(train, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    assert_one_sentence(train("--ray", "local"), 1, str(missing_extra("ray", "ray.data", "fastflow-train --ray")))
