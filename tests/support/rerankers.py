"""Directories of cross-encoders with random weights, as transformers and Sentence Transformers save them."""

import json
from pathlib import Path
from typing import Any

from tokenizers import processors

from support.builders import BERT, FAMILIES, POSITIONS, ROBERTA, TOKENIZERS, _config, wordpiece

INPUTS = ["input_ids", "attention_mask", "token_type_ids"]
CLASSES = {
    "bert": "BertTokenizer", "roberta": "RobertaTokenizer", "distilbert": "DistilBertTokenizer",
    "electra": "ElectraTokenizer",
}  # fmt: skip


def make_reranker(
    directory: Path, family: str = "bert", labels: int = 1, *, saved: bool = False, tokenizer: Any = None,
    dtype: str = "float32", seed: int = 0, **settings: Any,
) -> Path:  # fmt: skip
    """Save a cross-encoder; ``saved``: by Sentence Transformers itself; ``settings``: of config.json.

    ``tokenizer``: fields of tokenizer_config.json.
    """
    import torch
    import transformers

    kind, own = FAMILIES[family]
    words = TOKENIZERS.get(kind, wordpiece)()
    fields = {name: settings.pop(name) for name in [*settings] if name in ("sentence_transformers", "problem_type")}
    config = _config(kind, words.get_vocab_size(), {**own, "num_labels": labels, **settings})
    torch.manual_seed(seed)
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = "LayerNorm" in name or "norm." in name
            scale = 0.2 if norm else 0.5 if "embeddings" in name else 0.25
            parameter.normal_(1.0 if norm and name.endswith("weight") else 0.0, scale)
    model.to(getattr(torch, dtype)).save_pretrained(directory)
    if kind not in TOKENIZERS:
        ends = [(token, words.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
        words.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
        )
    elif kind != "roberta":
        words.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
    words.save(str(directory / "tokenizer.json"))
    names = ROBERTA if kind in TOKENIZERS else BERT
    said: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": POSITIONS, **names}
    said |= tokenizer or {"model_input_names": INPUTS[: 3 - (kind in TOKENIZERS)]}
    (directory / "tokenizer_config.json").write_text(json.dumps(said), encoding="utf-8")
    change_config(directory, **fields)
    if saved:
        theirs(directory).save_pretrained(str(directory / "saved"))
        return directory / "saved"
    return directory


def change_config(directory: Path, name: str = "config.json", **fields: Any) -> Path:
    """Set fields of a JSON file; None removes a field."""
    found = json.loads((directory / name).read_text(encoding="utf-8")) | fields
    kept = {field: value for field, value in found.items() if value is not None}
    (directory / name).write_text(json.dumps(kept), encoding="utf-8")
    return directory


def theirs(path: Path) -> Any:
    """The CrossEncoder of Sentence Transformers, in float32."""
    from sentence_transformers import CrossEncoder

    return CrossEncoder(str(path), device="cpu", local_files_only=True, model_kwargs={"dtype": "float32"})
