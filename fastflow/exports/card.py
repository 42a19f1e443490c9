"""The README.md of an export."""

from __future__ import annotations

from pathlib import Path

from fastflow.model.kinds import Model
from fastflow.stages import calibration
from fastflow.version import __version__

USE = {
    "st": """from sentence_transformers import SentenceTransformer

model = SentenceTransformer("this directory")
model.encode(["A text."])""",
    "onnx": """import onnxruntime
from tokenizers import Tokenizer

session = onnxruntime.InferenceSession("model.onnx")
batch = Tokenizer.from_file("tokenizer.json").encode_batch(["A text.", "Another."])
inputs = {"input_ids": [e.ids for e in batch], "attention_mask": [e.attention_mask for e in batch]}
session.run(None, inputs)[0]""",
    "model2vec": """from model2vec import StaticModel

StaticModel.from_pretrained("this directory").encode(["A text."])""",
}
KNOW = {
    "model2vec": "Unknown tokens are left out of the mean.",
    "onnx": "The graph has one output, sentence_embedding, which is final: pool and normalise nothing after it.",
    "st": "It runs in the PyTorch backend of Sentence Transformers only: its ONNX and OpenVINO backends, and servers "
    "that read only some of its modules, would leave parts of the model out.",
}
NAMES = {"st": "Sentence Transformers", "onnx": "ONNX Runtime", "model2vec": "model2vec"}


def write_card(folder: Path, to: str, model: Model, dim: int, normalize: bool) -> None:
    """Write README.md into ``folder``."""
    steps = [model.pooling.describe(), *(model.modules.names() if model.modules else [])]
    steps += [calibration.describe(model.calibration)] if model.calibration else []
    facts = {
        "made of": f"{model.path.resolve().name} (fingerprint {model.fingerprint[:16]})",
        "steps": ", then ".join(steps),
        "vectors": f"{dim} numbers" + ", of length 1" * normalize,
        "longest text": "any" if model.max_length > 10**6 else f"{model.max_length} tokens",
        "licence": "that of the model",
    }
    prompts = {name: text for name, text in model.prompts.texts.items() if text}
    if prompts:
        facts["prompts"] = "; ".join(f"{name}: {text!r}" for name, text in prompts.items())
    lines = [
        f"# A model for {NAMES[to]}", "", f"Made by `fastflow export --to {to}`, version {__version__}.", "",
        "| | |", "| --- | --- |", *(f"| {name} | {fact} |" for name, fact in facts.items()), "",
        "```python", USE[to], "```", "", KNOW[to], "",
    ]  # fmt: skip
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")
