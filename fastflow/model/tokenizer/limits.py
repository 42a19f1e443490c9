"""Bounds on tokenizer.json, checked before the library loads it: a few rules can make a text grow without bound."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from fastflow.errors import FastflowError

CHARSMAP = re.compile(rb'"precompiled_charsmap"\s*:\s*"([A-Za-z0-9+/]*)')
RULES = re.compile(r'"(normalizer|pre_tokenizer)"\s*:\s*(?=\{)')
SPELT_OUT = re.compile(r"\\u00[2-7]")  # an escaped printable ASCII character, which no writer needs: it may hide a key
GROWTH = 1024  # the most a text may grow; XLM-R's rules allow 132, with NFKC's longest replacement


def check_rules(data: bytes, path: Path) -> None:
    """Raise a FastflowError if rules of the tokenizer.json ``path`` claim unbounded memory."""
    _check_charsmap(data, path)
    text = data.decode("utf-8", "replace")
    if SPELT_OUT.search(text):
        text = json.dumps(_parse(text, path))
    for match in RULES.finditer(text):
        try:
            rules, _ = json.JSONDecoder().raw_decode(text, match.end())
            grows = _growth(rules)
        except RecursionError:
            raise FastflowError(f"{path} cannot be read as a tokenizer: its JSON is nested too deep") from None
        except ValueError:
            return
        if grows > GROWTH:
            raise FastflowError(
                f"{path}, field {match[1]}: its rules can make a text over {GROWTH} times longer; such a tokenizer is "
                "not loaded"
            )


def _parse(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise FastflowError(f"{path} cannot be read as a tokenizer: its JSON is nested too deep") from None
    except ValueError as error:
        raise FastflowError(f"{path} cannot be read as a tokenizer: {error}") from error


def _check_charsmap(data: bytes, path: Path) -> None:
    """The library allocates the claimed size, up to 4 GB, and ends the process if it cannot."""
    if (found := CHARSMAP.search(data)) is None:
        return
    from base64 import b64decode

    if int.from_bytes(b64decode(found[1][:8] + b"A" * (8 - len(found[1][:8])))[:4], "little") > len(found[1]):
        raise FastflowError(f"{path} cannot be read as a tokenizer: its precompiled_charsmap is cut short")


def _growth(rule: Any) -> float:
    if not isinstance(rule, dict):
        return 1.0
    kind, out = rule.get("type"), 1.0
    if kind == "Sequence":
        for name in ("normalizers", "pretokenizers"):
            for part in rule[name] if isinstance(rule.get(name), list) else []:
                out = min(out * _growth(part), float(2 * GROWTH))
    elif kind == "Replace":
        pattern = rule.get("pattern")
        fixed = _size(pattern.get("String")) if isinstance(pattern, dict) else 0
        content = _size(rule.get("content"))
        out = content / fixed if fixed else 1.0 + content  # a regex may match between any two characters
    elif kind == "Prepend":
        out = 1.0 + _size(rule.get("prepend"))
    elif kind == "ByteLevel":
        out = 2.0
    elif kind == "Precompiled":
        out = float(_longest(rule.get("precompiled_charsmap")))
    return max(1.0, out)


def _size(text: Any) -> int:
    return len(text.encode("utf-8", "replace")) if isinstance(text, str) else 0


def _longest(charsmap: Any) -> int:
    from base64 import b64decode

    try:
        data = b64decode(charsmap, validate=True)
    except (TypeError, ValueError):
        return 1
    return max(map(len, data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")))
