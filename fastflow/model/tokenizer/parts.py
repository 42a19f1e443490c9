"""Check the JSON of a tokenizer, and read the parts that WordPiece and Unigram share."""

from __future__ import annotations

from typing import Any

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
TYPES = {bool: "true or false", int: "a whole number", str: "a text", list: "a list", dict: "an object"}


def check_tree(tree: Any) -> list[dict[str, Any]]:
    """Raise ValueError unless ``tree`` has the usual fields; return its added tokens."""
    names = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model")
    fields(
        tree, "tokenizer.json", version=str, truncation=None, padding=None, added_tokens=list, **dict.fromkeys(names)
    )
    if tree["version"] != "1.0":
        raise ValueError("its version is not 1.0")
    _check_limits(tree["truncation"], tree["padding"])
    added: list[dict[str, Any]] = tree["added_tokens"]
    for token in added:
        fields(token, "added token", id=int, content=str, **dict.fromkeys(FLAGS, bool))
    if len({token["content"] for token in added}) < len(added):
        raise ValueError("it adds a token twice")
    return added


def read_ends(processor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids at the start and the end of a text."""
    if processor is None:
        return (), ()
    name = processor.get("type") if isinstance(processor, dict) else None
    if name in ("BertProcessing", "RobertaProcessing"):
        more = {"trim_offsets": bool, "add_prefix_space": bool} if name == "RobertaProcessing" else {}
        kind(processor, "post_processor", name, sep=list, cls=list, **more)
        sep, cls = processor["sep"], processor["cls"]
        if not all(len(each) == 2 and is_a(each[0], str) and is_a(each[1], int) for each in (sep, cls)):
            raise ValueError("its post_processor has no pairs of token and id")
        return (cls[1],), (sep[1],)
    kind(processor, "post_processor", "TemplateProcessing", single=list, pair=list, special_tokens=dict)
    known = {}
    for token, entry in processor["special_tokens"].items():
        fields(entry, "special token", id=str, ids=list, tokens=list)
        sound = all(is_a(each, int) for each in entry["ids"]) and all(is_a(each, str) for each in entry["tokens"])
        if not sound or len(entry["ids"]) != len(entry["tokens"]):
            raise ValueError(f"the ids or tokens of its special token {token!r:.40} are odd")
        known[token] = tuple(entry["ids"])
    single: list[Any] = _template(processor["single"], known)
    _template(processor["pair"], known)
    if [each for each in single if isinstance(each, str)] != ["A"]:
        raise ValueError("its template does not have a text once")
    place = single.index("A")
    return sum(single[:place], ()), sum(single[place + 1 :], ())


def _template(pieces: list[Any], known: dict[str, tuple[int, ...]]) -> list[tuple[int, ...] | str]:
    out: list[tuple[int, ...] | str] = []
    for piece in pieces:
        alone = is_a(piece, dict) and len(piece) == 1
        name, value = next(iter(piece.items())) if alone else ("", {})
        fields(value, "piece of the template", id=str, type_id=int)
        if name == "Sequence" and value["id"] in ("A", "B"):
            out.append(value["id"])
        elif name == "SpecialToken" and value["id"] in known:
            out.append(known[value["id"]])
        else:
            raise ValueError("its template is not known in every piece")
    return out


def _check_limits(truncation: Any, padding: Any) -> None:
    """Refuse truncation and padding that the library refuses, though a Tokenizer replaces them."""
    if isinstance(truncation, dict):
        truncation = {"direction": "Right"} | truncation
    if truncation is not None:
        fields(truncation, "truncation", direction=str, max_length=int, strategy=str, stride=int)
        known = truncation["strategy"] in ("LongestFirst", "OnlyFirst", "OnlySecond")
        if not known or truncation["direction"] != "Right" or truncation["stride"]:
            raise ValueError("its truncation is not a usual one")
    if padding is not None:
        names = {"pad_to_multiple_of": None, "pad_id": int, "pad_type_id": int, "pad_token": str}
        fields(padding, "padding", strategy=None, direction=str, **names)
        strategy, multiple = padding["strategy"], padding["pad_to_multiple_of"]
        fixed = is_a(strategy, dict) and list(strategy) == ["Fixed"] and is_a(strategy["Fixed"], int)
        known = padding["direction"] in ("Left", "Right") and (multiple is None or is_a(multiple, int))
        if not known or not (fixed or strategy == "BatchLongest"):
            raise ValueError("its padding is not a usual one")


def kind(value: Any, place: str, name: str, **types: type | None) -> None:
    """Raise ValueError unless ``value`` is of the type ``name`` with exactly these fields."""
    found = value.get("type") if isinstance(value, dict) else None
    if found != name:
        raise ValueError(f"its {place} is {found if is_a(found, str) else 'none'!s:.40}, not {name}")
    fields(value, place, type=str, **types)


def fields(value: Any, place: str, **types: type | None) -> None:
    """Raise ValueError unless ``value`` has exactly these fields and types; None: any type."""
    if not isinstance(value, dict) or set(value) != set(types):
        raise ValueError(f"the fields of its {place} are not the usual ones")
    for name, wanted in types.items():
        if wanted is not None and not is_a(value[name], wanted):
            raise ValueError(f"the field {name} of its {place} is not {TYPES[wanted]}")


def is_a(value: Any, wanted: type) -> bool:
    """Return whether a JSON value has a type; an int has at most 31 bits."""
    if wanted is int:
        return type(value) is int and 0 <= value < 2**31
    return type(value) is wanted
