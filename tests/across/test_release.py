"""The parts of a release: equal bytes, the bill of materials, absolute links."""

import base64
import gzip
import io
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from hashlib import sha256

import pytest
from description import link_readme
from sbom import make_sbom
from seal import seal

from fastflow.kernels import processor

from support.places import ROOT, TESTS

METADATA = b"Name: fastflow\nVersion: 9\nRequires-Dist: numpy>=1.26\nRequires-Dist: torch>=2; extra == 'train'\n"
FILES = {  # of a wheel with two models
    "fastflow/runtime.py": b"",
    "fastflow/kernels/_cpu.so": b"machine code",
    "fastflow/serve/page/page.js": b"let",
    "fastflow/default/README.md": b"# A model\n\n**Licence.** Apache-2.0 for weights.\n",
    "fastflow/default/0_Transformer/model.safetensors": b"weights",
    "fastflow/static/model.safetensors": b"rows",
    "fastflow-9.dist-info/METADATA": METADATA,
}


def a_wheel(path, names, moment):
    with zipfile.ZipFile(path, "w") as wheel:
        for name in names:
            entry = zipfile.ZipInfo(name, moment)
            entry.external_attr = 0o100600 << 16
            wheel.writestr(entry, FILES.get(name, b"stale"))
    return path


def test_a_wheel_that_is_as_this_checkout_passes_its_smoke_test(run_python):
    done = run_python((TESTS / "smoke.py").read_text(encoding="utf-8"))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == len(processor.usable_isas())


def test_a_sealed_wheel_depends_on_its_files_alone(tmp_path):
    names = [*FILES, "fastflow-9.dist-info/RECORD"]
    one = a_wheel(tmp_path / "a.whl", names, (2001, 2, 3, 4, 5, 6))
    other = a_wheel(tmp_path / "b.whl", reversed(names), (2020, 1, 1, 0, 0, 0))
    assert one.read_bytes() != other.read_bytes()
    assert (seal(one), seal(other)) == (str(one), str(other))
    assert one.read_bytes() == other.read_bytes()
    seal(one)
    assert one.read_bytes() == other.read_bytes(), "sealed twice"
    with zipfile.ZipFile(one) as wheel:
        held = {name: wheel.read(name) for name in wheel.namelist()}
        assert {entry.filename: entry.external_attr >> 16 & 0o777 for entry in wheel.infolist()} == {
            name: 0o755 if name.endswith(".so") else 0o644 for name in held
        }
    *listed, last = held.pop("fastflow-9.dist-info/RECORD").decode().splitlines()
    assert last == "fastflow-9.dist-info/RECORD,,"
    assert set(held) == {*FILES, "fastflow-9.dist-info/sboms/fastflow.cdx.json"}
    assert len(listed) == len(held)
    for line in listed:
        name, digest, size = line.split(",")
        assert int(size) == len(held[name])
        assert base64.urlsafe_b64decode(digest.removeprefix("sha256=") + "=") == sha256(held[name]).digest()


def test_a_sealed_sdist_depends_on_its_files_alone(tmp_path):
    for number, (path, names) in enumerate([("a.tar.gz", "xyz"), ("b.tar.gz", "zyx")]):
        with tarfile.open(tmp_path / path, "w:gz") as sdist:
            folder = tarfile.TarInfo("folder")
            folder.type = tarfile.DIRTYPE
            sdist.addfile(folder)
            for name in names:
                entry = tarfile.TarInfo(f"folder/{name}")
                entry.size, entry.mtime, entry.uid, entry.uname = 1, 1e9 + number, number, f"user{number}"
                entry.mode = (0o775, 0o700)[number] if name == "x" else (0o664, 0o600)[number]
                sdist.addfile(entry, io.BytesIO(name.encode()))
        seal(tmp_path / path)
    one, other = ((tmp_path / name).read_bytes() for name in ("a.tar.gz", "b.tar.gz"))
    assert one == other
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(one))) as sdist:
        modes = {entry.name: entry.mode for entry in sdist if entry.isfile()}
        assert modes == {"folder/x": 0o755, "folder/y": 0o644, "folder/z": 0o644}
        assert sdist.extractfile("folder/y").read() == b"y"


def test_the_time_of_files_is_that_of_the_environment(tmp_path):
    wheel = a_wheel(tmp_path / "a.whl", [*FILES, "fastflow-9.dist-info/RECORD"], (2001, 2, 3, 4, 5, 6))
    command = [sys.executable, str(ROOT / "release" / "seal.py"), str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, env={"SOURCE_DATE_EPOCH": "1700000000"}, check=True)
    assert done.stdout == f"{sha256(wheel.read_bytes()).hexdigest()} {wheel}\n"
    with zipfile.ZipFile(wheel) as held:
        assert {entry.date_time for entry in held.infolist()} == {(2023, 11, 14, 22, 13, 20)}


def test_the_bill_names_every_file_that_is_no_python():
    bill = json.loads(make_sbom(FILES))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.7")
    assert bill["metadata"]["component"]["purl"] == "pkg:pypi/fastflow@9"
    parts = {part["bom-ref"]: part for part in bill["components"]}
    models = {name: part for name, part in parts.items() if part["type"] == "machine-learning-model"}
    assert {name: part["licenses"] for name, part in models.items()} == {
        "fastflow/default": [{"license": {"id": "Apache-2.0"}}],
        "fastflow/static": [{"license": {"name": "see fastflow/static/README.md"}}],  # its card is missing
    }
    files = [part for part in bill["components"] if part["type"] == "file"]
    files += [part for model in models.values() for part in model["components"]]
    assert {part["name"]: part["hashes"][0]["content"] for part in files} == {
        name: sha256(data).hexdigest() for name, data in FILES.items() if not name.endswith((".py", "METADATA"))
    }
    needed = parts["pkg:pypi/numpy"]
    assert (needed["versionRange"], needed["isExternal"], needed["scope"]) == ("vers:pypi/>=1.26", True, "required")
    assert "pkg:pypi/torch" not in parts
    assert parts["unicode"]["licenses"] == [{"license": {"id": "Unicode-3.0"}}]
    pure = json.loads(make_sbom({name: data for name, data in FILES.items() if not name.endswith(".so")}))
    assert "unicode" not in {part["bom-ref"] for part in pure["components"]}
    references = [part["bom-ref"] for part in [*files, *bill["components"]]]
    assert {name for each in bill["dependencies"] for name in each["dependsOn"]} <= set(references)


def test_texts_of_others_keep_their_licences_in_the_bill():
    name = "fastflow/train/data/sentences.txt.gz"
    data = (ROOT / name.removeprefix("fastflow/")).read_bytes()
    parts = {part["bom-ref"]: part for part in json.loads(make_sbom(FILES | {name: data}))["components"]}
    named = [each["license"].get("id") or each["license"]["name"] for each in parts[name]["licenses"]]
    assert "Apache-2.0" not in named
    head = [line for line in gzip.decompress(data).decode("utf-8").splitlines() if line.startswith("# ")][1:]
    stated = {line.rpartition(", ")[2].replace("CC BY-SA ", "CC-BY-SA-") for line in head}
    assert stated == set(named)


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("[a](docs/a.md#b)", "[a](https://x.example/y/blob/v1.2/docs/a.md#b)"),
        ("![a](docs/a.png)", "![a](https://x.example/y/raw/v1.2/docs/a.png)"),
        ("[a](https://b.example/c)", "[a](https://b.example/c)"),
        ("[a](#b)", "[a](#b)"),
    ],
)
def test_links_are_made_absolute(text, link):
    assert link_readme(text, 'version = "1.2"\nRepository = "https://x.example/y"\n') == link


def test_each_python_is_named_tested_and_built_for():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    workflow = (ROOT / ".github" / "workflows" / "check.yml").read_text(encoding="utf-8")
    tested = re.search(r"python: \[(.*)\]", workflow)[1]
    assert re.findall(r'"cp3(\d+)-\*"', project) == [version.removeprefix("3.") for version in named]
    assert re.findall(r'"(3\.\d+)"', tested) == named
    assert f'requires-python = ">={named[0]}"' in project


def test_workflows_may_read_and_no_more():
    """But for the job that publishes, which gets a token of identity and no password."""
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert [path.name for path in workflows] == ["check.yml", "fuzz.yml", "release.yml"]
    for path in workflows:
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"^permissions:\n((?:  .*\n)+)", text, re.M) == ["  contents: read\n"], path.name
        assert re.findall(r"^ +([\w-]+): write", text, re.M) == ["id-token"] * (path.name == "release.yml")
        assert "secrets." not in text
        assert text.count("persist-credentials: false") == text.count("actions/checkout@") > 0
        for used in re.findall(r"uses: (.*)", text):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", used), f"pin the commit of {used}"
