"""Tiny encoders and texts for the tests: real Hugging Face directories with random weights, made in milliseconds."""

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

WORDS = re.findall(
    r"\w+",
    """
    the a dog cat bird tree river stone house market singer planet runs sleeps sings falls grows turns sees near under
    over behind quickly slowly red green old young quiet bright two seven many and but while because of to in on it she
    he they was were not
    """,
)
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'-"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*SPECIAL, *WORDS, *(c for c in LETTERS if c not in WORDS), *(f"##{c}" for c in LETTERS[:36]), "##s", "##ing"]
VOCABULARY = list(dict.fromkeys(PIECES))
LAYERED = "embedding-first-last"  # the pooling of the models made here: layers of the encoder are computed
POSITIONS = 128  # of BERT, DistilBERT and ELECTRA; RoBERTa's table has two rows more


def make_sentences(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    out: dict[str, None] = {}
    while len(out) < count:
        out[" ".join(rng.choices(WORDS, k=rng.randint(2, 16))).capitalize() + "."] = None
    return list(out)


def read_languages() -> dict[str, str]:
    """Sentences written for the tests, by the name of their language."""
    lines = Path(__file__).with_name("languages.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(": ", 1) for line in lines)


def wordpiece(
    pieces: list[str] = VOCABULARY, special: list[str] = SPECIAL, first: str = "[CLS]", last: str = "[SEP]"
) -> Tokenizer:
    """BERT's uncased tokenizer on ``VOCABULARY``."""
    ids = {piece: i for i, piece in enumerate(pieces)}
    out = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    out.normalizer = normalizers.BertNormalizer()
    out.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    out.decoder = decoders.WordPiece()
    out.add_special_tokens(special)
    ends = [(token, ids[token]) for token in (first, last)]
    out.post_processor = processors.TemplateProcessing(single=f"{first} $A {last}", special_tokens=ends)
    return out


def byte_level() -> Tokenizer:
    """RoBERTa's tokenizer: byte-level BPE with a few merges."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = [("t", "h"), ("th", "e"), ("Ġ", "s"), ("i", "n"), ("in", "g"), ("Ġ", "the")]
    pieces += ["".join(pair) for pair in merges] + ["<mask>"]
    ids = {piece: i for i, piece in enumerate(pieces)}
    out = Tokenizer(models.BPE(ids, merges))
    out.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    out.decoder = decoders.ByteLevel()
    out.add_special_tokens([*(AddedToken(t, special=True) for t in pieces[:4]), AddedToken("<mask>", lstrip=True)])
    out.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return out


def fairseq_wordpiece() -> Tokenizer:
    """MPNet's tokenizer: BERT's pieces after RoBERTa's special tokens."""
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    return wordpiece([*names, *VOCABULARY], [*names, "[UNK]"], "<s>", "</s>")


def unigram() -> Tokenizer:
    """XLM-R's tokenizer: SentencePiece's unigram model."""
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -4.0)]
    pieces += [(f"▁{word}", -5.0 - i / 10) for i, word in enumerate(WORDS)]
    pieces += [(letter, -9.0 - i / 10) for i, letter in enumerate(LETTERS + "ABCDEFGHIJKLMNOPQRSTUVWXYZ")]
    out = Tokenizer(models.Unigram(pieces, unk_id=3))
    out.pre_tokenizer = pre_tokenizers.Metaspace()
    out.decoder = decoders.Metaspace()
    out.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    out.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return out


TOKENIZERS = {"roberta": byte_level, "xlm-roberta": unigram, "camembert": unigram, "mpnet": fairseq_wordpiece}
BERT = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
ROBERTA = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}

# name -> (transformers' model type, settings); minilm is BERT at MiniLM's proportions: twelve narrow heads
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {}),
    "minilm": ("bert", {"hidden_size": 48, "num_attention_heads": 12, "intermediate_size": 192}),
    "roberta": ("roberta", {"max_position_embeddings": POSITIONS + 2, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "xlm-roberta": ("xlm-roberta", {"max_position_embeddings": POSITIONS + 2, "type_vocab_size": 1}),
    "camembert": ("camembert", {"max_position_embeddings": POSITIONS + 2, "type_vocab_size": 1}),
    "distilbert": ("distilbert", {}),
    "electra": ("electra", {"embedding_size": 24}),
    "mpnet": ("mpnet", {"max_position_embeddings": POSITIONS + 2}),
    "modernbert": ("modernbert", {"local_attention": 8, "num_hidden_layers": 5}),
}


# what transformers runs and the equations do not cover
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "albert": ("albert", {"embedding_size": 24}),
    "longformer": ("longformer", {"max_position_embeddings": POSITIONS + 2, "pad_token_id": 1, "attention_window": 8}),
    "deberta-v2": ("deberta-v2", {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "bert-silu": ("bert", {"hidden_act": "silu"}),
}


def make_encoder(directory: Path, family: str = "bert", seed: int = 0, **settings: Any) -> Path:
    """Save an encoder of ``family`` with its tokenizer, every parameter random; ``settings``: of its configuration."""
    import torch
    import transformers

    kind, own = (FAMILIES | OTHERS)[family]
    tokenizer = TOKENIZERS.get(kind, wordpiece)()
    config = _config(kind, tokenizer.get_vocab_size(), {**own, **settings})
    torch.manual_seed(seed)
    model = transformers.AutoModel.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "LayerNorm" in name or "norm." in name:
                parameter.normal_(1.0 if name.endswith("weight") else 0.0, 0.2)
            else:
                parameter.normal_(0.0, 0.5 if "embeddings" in name else 0.2)
    model.save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    names = ROBERTA if kind in TOKENIZERS else BERT
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": POSITIONS, **names}
    (directory / "tokenizer_config.json").write_text(json.dumps(said), encoding="utf-8")
    return directory


def calm(encoder: Path, hidden: int) -> None:
    """Scale the matrices of a wide random encoder to the size of trained ones; as drawn, its attention saturates."""
    weights = load_file(encoder / "model.safetensors")
    for name, tensor in weights.items():
        if tensor.ndim == 2 and "embeddings" not in name:
            weights[name] = tensor * (5 / hidden**0.5)  # drawn with deviation 0.2
    save_file(weights, encoder / "model.safetensors", {"format": "pt"})


def make_tuned(directory: Path, encoder: Path) -> Path:
    """A copy of the BERT ``encoder`` whose embeddings of unrelated sentences are spread out, as tuning leaves them.

    The last LayerNorm's bias takes the mean of the probe out of them, which random weights leave in a cone.
    """
    import torch
    import transformers

    from fastflow.train.data.embeddings import Embedder
    from fastflow.train.data.encoder import open_encoder
    from fastflow.train.selection.heuristics import read_probe

    shutil.copytree(encoder, directory)
    mean = Embedder(open_encoder(str(encoder), "last", None), "cpu")(read_probe()).mean(axis=0)
    model = transformers.AutoModel.from_pretrained(encoder)
    with torch.no_grad():
        model.encoder.layer[-1].output.LayerNorm.bias -= torch.from_numpy(mean)
    model.save_pretrained(directory)
    return directory


def _config(kind: str, vocabulary: int, settings: dict[str, Any]) -> Any:
    if kind == "distilbert":
        shape = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 64}
    else:
        shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    pad = 1 if kind in TOKENIZERS else 0
    shape |= {"vocab_size": vocabulary, "max_position_embeddings": POSITIONS, "pad_token_id": pad}
    from transformers import AutoConfig

    return AutoConfig.for_model(kind, **{**shape, **settings})


def fitted(method: str, pooled: Any) -> list[Any]:
    """The stages of ``method`` fitted on pooled embeddings (n, D), fastflow-train's defaults but four epochs."""
    from fastflow.train.methods.chain import fit_chain
    from fastflow.train.methods.loop import Schedule, Training
    from fastflow.train.options import DEFAULTS, parse_method

    return fit_chain(parse_method(method), pooled, DEFAULTS.shape(), Training(Schedule(epochs=4, save_steps=0))).stages


def hub_cache(root: Path, encoder: Path, monkeypatch: Any) -> Path:
    """A local Hub cache under ``root`` that holds ``encoder`` as someone/tiny at one revision; returns that folder."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(root))
    revision = "0123456789abcdef0123456789abcdef01234567"
    folder = root / "models--someone--tiny"
    shutil.copytree(encoder, folder / "snapshots" / revision)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(revision)
    return folder / "snapshots" / revision


def make_model(directory: Path, encoder: Path, texts: list[str], method: str = "flow", **settings: Any) -> Path:
    """Train ``method`` on ``encoder``'s embeddings of ``texts`` and save the model, through the training package.

    ``settings``: pooling, max_length, weighted (tokens count by their frequency), ordered (export gets the embeddings,
    for truncate_dim and int8), and of the flow levels, depth, width, coupling, permutation.
    """
    from fastflow.train.data.background import load_english
    from fastflow.train.data.embeddings import Embedder
    from fastflow.train.data.encoder import open_encoder
    from fastflow.train.data.token_weights import weigh
    from fastflow.train.export.export import export
    from fastflow.train.methods.chain import fit_chain
    from fastflow.train.methods.loop import Schedule, Training
    from fastflow.train.options import DEFAULTS, parse_method

    frozen = open_encoder(str(encoder), settings.pop("pooling", LAYERED), settings.pop("max_length", 64))
    if settings.pop("weighted", False):
        frozen = weigh(frozen, texts, load_english())
    ordered, reference = settings.pop("ordered", False), frozen.hub_id is not None
    shape = DEFAULTS.shape() | {"depth": 2, "width": 8} | settings
    fitting = Training(Schedule(batch_size=32, epochs=2, save_steps=0))
    pooled = Embedder(frozen, "cpu")(texts)
    fitted = fit_chain(parse_method(method), pooled, shape, fitting)
    card = "# A model for tests\n"
    export(directory, frozen, fitted, {"texts": len(texts)}, card, texts, pooled if ordered else None, reference)
    return directory


def vocabulary_only(directory: Path, **settings: object) -> Path:
    """Fill ``directory`` with a vocabulary and no tokenizer.json; ``settings`` go to tokenizer_config.json."""
    (directory / "config.json").write_text(json.dumps({"vocab_size": len(VOCABULARY)}))
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    if settings:
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory
