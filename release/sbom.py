"""The bill of materials of a wheel (CycloneDX 1.7): models, data, compiled code, dependencies.

``seal.py`` puts it at ``*.dist-info/sboms/fastflow.cdx.json`` (PEP 770). It names every file of the wheel that is
neither Python nor metadata, with its sha256. A folder with weights is a model; its README.md names the licence.
"""

from __future__ import annotations

import hashlib
import json
import re
from email import message_from_bytes
from email.message import Message
from typing import Any

Part = dict[str, Any]
OURS = "Apache-2.0"
UNICODE: Part = {
    "type": "data",
    "bom-ref": "unicode",
    "name": "Unicode Character Database",
    "description": "classes, lower case, decompositions and graphemes of characters, as tables in the compiled code",
    "licenses": [{"license": {"id": "Unicode-3.0"}}],
}
DATA = {  # file -> its description
    "fastflow/model/tokenizer/languages.txt": "the commonest words of 28 languages, counted for this project",
    "fastflow/train/data/background.txt.gz": "how often English words occur, counted for this project",
    "fastflow/train/data/sentences.txt.gz": "English sentences of SNLI, QNLI, Leipzig news, Wikipedia and old novels",
    "fastflow/train/selection/probe.txt": "sentences written for this project",
}
OTHERS = {  # file -> the licences of its parts, if it is not ours
    "fastflow/train/data/sentences.txt.gz": ("CC-BY-SA-4.0", "CC-BY-SA-3.0", "CC BY", "public domain"),
}


def make_licences(name: str) -> list[Part]:
    """Make the entry of a licence, an SPDX id or words."""
    return [{"license": {"id": name} if re.fullmatch(r"[A-Za-z]+[\w.-]*-[\d.]+|MIT", name) else {"name": name}}]


def describe_file(name: str, files: dict[str, bytes]) -> Part:
    """Describe a file of the wheel."""
    digest = hashlib.sha256(files[name]).hexdigest()
    part = {"type": "file", "bom-ref": name, "name": name, "hashes": [{"alg": "SHA-256", "content": digest}]}
    return part | ({"description": DATA[name]} if name in DATA else {})


def find_models(files: dict[str, bytes]) -> dict[str, Part]:
    """Find the models of the wheel, by folder."""
    found = {}
    for folder in sorted({"/".join(name.split("/")[:2]) for name in files if name.endswith(".safetensors")}):
        card = files.get(f"{folder}/README.md", b"").decode("utf-8")
        named = re.search(r"^\*\*Licence\.\*\* ([\w.-]*\w)", card, re.M)
        found[folder] = {
            "type": "machine-learning-model",
            "bom-ref": folder,
            "name": folder,
            "licenses": make_licences(named[1] if named else f"see {folder}/README.md"),
            "components": [describe_file(name, files) for name in sorted(files) if name.startswith(f"{folder}/")],
        }
    return found


def find_dependencies(metadata: Message) -> list[Part]:
    """Find the packages that are always installed with this one."""
    found = []
    for line in metadata.get_all("Requires-Dist", []):
        asked, _, condition = line.partition(";")
        name, versions = re.findall(r"^([\w.-]+)\s*(.*?)\s*$", asked)[0]
        if "extra" not in condition:
            reach = {"isExternal": True, "versionRange": f"vers:pypi/{versions.replace(',', '|')}", "scope": "required"}
            found.append(
                {"type": "library", "bom-ref": f"pkg:pypi/{name}", "name": name, **reach, "purl": f"pkg:pypi/{name}"}
            )
    return found


def make_sbom(files: dict[str, bytes]) -> bytes:
    """Make the bill of ``files``, name -> content: equal bytes for equal files."""
    metadata = message_from_bytes(next(data for name, data in files.items() if name.endswith(".dist-info/METADATA")))
    whole = f"pkg:pypi/{metadata['Name']}@{metadata['Version']}"
    kept = find_models(files)
    held = {part["name"] for model in kept.values() for part in model["components"]}
    others = [name for name in sorted(files) if not name.endswith(".py") and ".dist-info/" not in name]
    others = [name for name in others if name not in held]
    compiled = [name for name in others if name.endswith(".so")]
    licences = {name: [one for each in OTHERS.get(name, (OURS,)) for one in make_licences(each)] for name in others}
    parts = [
        *(describe_file(name, files) | {"licenses": licences[name]} for name in others),
        *([UNICODE] if compiled else []),
        *kept.values(),
        *find_dependencies(metadata),
    ]
    subject = {
        "type": "library",
        "bom-ref": whole,
        "name": metadata["Name"],
        "version": metadata["Version"],
        "purl": whole,
    }
    bill = {
        "$schema": "http://cyclonedx.org/schema/bom-1.7.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.7",
        "version": 1,
        "metadata": {"component": subject | {"licenses": make_licences(OURS)}},
        "components": parts,
        "dependencies": [
            {"ref": whole, "dependsOn": [part["bom-ref"] for part in parts]},
            *({"ref": name, "dependsOn": ["unicode"]} for name in compiled),
        ],
    }
    return json.dumps(bill, indent=1).encode() + b"\n"
