"""Imports: no circle among files, in Python or in C, and dependencies that point one way."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from support.arrows import GRAPH, KNOWN, UNITS, C, circle, definitions, imported, includes, links, room_of

ABOVE = {  # a room -> those that it may not import
    "fastflow.kernels": ("fastflow",),
    "fastflow": ("fastflow.bench",),
    "fastflow.train": ("fastflow.bench",),
}


def test_a_circle_is_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set()})
    assert circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def test_no_circle_in_python():
    assert len(GRAPH) > 200
    assert sum(map(len, GRAPH.values())) > 800
    assert circle(GRAPH) == []


def test_no_circle_among_included_files_of_c():
    graph = includes()
    assert sum(map(len, graph.values())) > 100
    assert circle(graph) == []


def test_a_circle_of_linked_files_is_found():
    units = {
        "a.c": "int ff_a(void)\n{\n    return ff_b(1);\n}\n",
        "b.c": "#define BODY ff_b\nint BODY(int x)\n{\n    return x + *ff_table;\n}\n",
        "c.c": "const int ff_table[] = {1};\nstatic int ff_own(void)\n{\n    return 0;\n}\n",
        "d.c": "__thread ff_state ff_mine;\nint *ff_own(int x,\n            int y)\n{\n    return ff_a();\n}\n",
    }
    graph = links(units)
    assert graph == {"a.c": {"b.c"}, "b.c": {"c.c"}, "c.c": {"d.c"}, "d.c": {"a.c"}}
    assert circle(graph)
    assert circle(links(units | {"c.c": "const int ff_table[] = {1};\n"})) == []


def test_every_declared_function_of_c_is_defined_once():
    headers = "".join(re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.S) for path in C.rglob("*.h"))
    inline = set(re.findall(r"(?:static inline|FF_SCALAR|typedef)[\w *]* (ff_\w+)\(", headers))
    lists = re.findall(r"^ff_\w+ ((?:ff_\w+,\s*)*ff_\w+);", headers, re.M)  # functions of one type
    declared = set(re.findall(r"\b(ff_\w+)\(", headers)) | set(re.findall(r"\w+", " ".join(lists)))
    files = {name: [file for file, text in UNITS.items() if name in definitions(text)] for name in declared - inline}
    assert len(files) > 60
    assert {name: found for name, found in files.items() if len(found) != 1} == {}


def test_no_circle_among_linked_files_of_c():
    graph = links(UNITS)
    assert sum(map(len, graph.values())) > 40
    assert circle(graph) == []


@pytest.mark.each
@pytest.mark.parametrize("room", ABOVE)
def test_dependencies_point_one_way(room):
    """Commands may import what they start, inside their functions."""
    for name, path in KNOWN.items():
        if room_of(name) == room:
            found = imported(path, KNOWN, anywhere=room == "fastflow.kernels")
            assert not [other for other in found if room_of(other) in ABOVE[room]], name


def test_what_tables_import_by_name_is_there():
    pytest.importorskip("torch")
    pytest.importorskip("onnx")
    from fastflow.backends import choose
    from fastflow.bench.cli import SUITES
    from fastflow.exports.export import WRITERS as FORMATS
    from fastflow.files.write.outputs import WRITERS

    named = [(f"bench.suites.{module}", name) for module, name in SUITES.values()]
    named += [(f"files.{module}", name) for module, name in WRITERS.values()]
    named += [tuple(path.removeprefix("fastflow.").split(":")) for path in FORMATS.values()]
    tables = (each for each in vars(choose).values() if isinstance(each, dict))
    rows = (row for table in tables for row in table.values() if isinstance(row, choose.BackendClass))
    named += [(f"backends.{row.module}", row.name) for row in rows if row.module != "triton"]
    assert len(named) > 20
    for module, name in named:
        assert hasattr(import_module(f"fastflow.{module}"), name), (module, name)
