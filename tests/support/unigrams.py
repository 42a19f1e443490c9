"""Small tokenizers of SentencePiece's Unigram, trained on the spot."""

from __future__ import annotations

import io
import json
from base64 import b64encode
from functools import cache
from random import Random
from typing import Any

from support.builders import make_sentences
from support.unicode import ODD, ORDERED, changed, mixed

RULES = ("nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity")  # SentencePiece's maps of characters
SPACES = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
RIGHT = {"type": "Strip", "strip_left": False, "strip_right": True}
MARKED = SPACES | {"content": "\u2581"}
SPLIT = {"type": "WhitespaceSplit"}
SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich",
    "Съешь же ещё этих мягких французских булок, да выпей чаю",
    "いろはにほへと ちりぬるを 我が世誰ぞ 常ならむ",
    "다람쥐 헌 쳇바퀴에 타고파",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा",
    "نص حكيم له سر قاطع وذو شأن عظيم",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า",
    "視野無限廣，窗外有藍天 ＡＢＣ１２３",
    "Tiếng Việt: mỗi người một vẻ, mười phân vẹn mười",
    "½ ﬁnd ﷺ ① ㌔ … “quote” — dash",
    "👩\u200d👩\u200d👧 🇩🇪 ❤\ufe0f 👍🏽",
    "a\u0301 e\u0302\u0323 Å \u1112\u1161\u11ab ẹ\u0301ẹ\u0301",
]


def metaspace(scheme: str = "always", split: bool = True) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": split}


def sequence(*parts: Any) -> dict[str, Any]:
    """Several steps as one normalizer, or several splitters as one."""
    name = "pretokenizers" if any(each["type"] in ("WhitespaceSplit", "Metaspace") for each in parts) else "normalizers"
    return {"type": "Sequence", name: list(parts)}


@cache
def train(rule: str) -> tuple[tuple[tuple[str, float], ...], bytes]:
    """Train a model; return its pieces with scores, and its map of characters."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as protocol

    rng = Random(3)
    lines = [*SENTENCES, *make_sentences(60), *(mixed(rng, 2).replace("\0", "") for _ in range(12))]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=1000,
        normalization_rule_name=rule,
        character_coverage=0.98,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
    )
    found = protocol.ModelProto()
    found.ParseFromString(model.getvalue())
    return tuple((each.piece, each.score) for each in found.pieces), found.normalizer_spec.precompiled_charsmap


def precompiled(rule: str) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": b64encode(train(rule)[1]).decode()}


def token(content: str, number: int, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    return {"id": number, "content": content} | plain | flags


def make_tree(
    pieces: Any, normalizer: Any = None, splitter: Any = None, unknown: int = 0, added: Any = ()
) -> dict[str, Any]:
    """A tokenizer.json with <s> and </s> at the ends of a text."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added),
        "normalizer": normalizer,
        "pre_tokenizer": splitter,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "</s>", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {
                name: {"id": name, "ids": [i + 1], "tokens": [name]} for i, name in enumerate(("<s>", "</s>"))
            },
        },
        "decoder": None,
        "model": {"type": "Unigram", "unk_id": unknown, "vocab": list(map(list, pieces)), "byte_fallback": False},
    }


def make_xlm(rule: str = "nmt_nfkc", **change: Any) -> dict[str, Any]:
    """A tokenizer.json as XLM-R's, with a mask that takes the spaces before it."""
    pieces = train(rule)[0]
    steps = [SPACES] if rule == "identity" else [precompiled(rule), SPACES]
    added = [token(pieces[i][0], i) for i in range(3)] + [token("<mask>", len(pieces), lstrip=True)]
    return make_tree(pieces, sequence(*steps), sequence(SPLIT, metaspace()), added=added) | change


CLUSTERS = (
    *("\r\n", "\r", "\n", "e\u0301", "ﬁ\u0301", "か\u3099", "\u1112\u1161\u11ab", "\u1112\u0301", "각\u0301"),
    *("\u0600a\u0301", "👩\u200d👩", "🇩🇪🇫", "©\u200d™\u0301", "©\u200d", "™\u0301", "क\u094dष\u0301", "\u0915\u093c"),
    *("\u200b\u0301", "①\ufe0f", "Ω\u0301", "\u0344", "\xa8\u0301", "\x7f", "\u2581", "\u2581\u2581"),
    *("\u3000", "  ", "   "),
    *("ﷺ", "½", "㌔", "İ", "ẞ", "ΑΣ", "<mask>", " <mask> ", "<s>", "</s>", "＜s＞", "<MASK>", "<unk>", "☃☃"),
    *("\U000e0100", "a\U000e0100", "a\u200d", "ẹ\u0301ẹ\u0301"),
)


def draw(rng: Random, words: int = 12) -> str:
    """A text of all scripts in which graphemes, spaces and added tokens are next to each other."""
    kind = rng.random()
    if kind < 0.3:
        return mixed(rng, words)
    if kind < 0.6:
        parts = (*CLUSTERS, *CLUSTERS, *ODD, *ORDERED, "a", "the ", " dog")
        return "".join(rng.choice(parts) for _ in range(rng.randint(0, 2 * words)))
    text = rng.choice(SENTENCES)
    return changed(text, rng) if kind < 0.9 else text + rng.choice(CLUSTERS) + mixed(rng, 3)


def as_bytes(tree: dict[str, Any]) -> bytes:
    return json.dumps(tree, ensure_ascii=False).encode()
