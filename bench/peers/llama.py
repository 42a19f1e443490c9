"""llama.cpp in process, by the package xllamacpp: a GGUF file of the subject, token ids in, pooled vectors out.

The package exposes llama.cpp's server without its HTTP: a call takes arrays of token ids as JSON and gives base64 of
float32. The request is written before the clock starts; the server's own work for it, at most 0.4 ms a text, is timed.
The wheels on PyPI are built for AVX2, and only a build from source uses more: a row's backend names the
instruction set that the installed build uses.

All three precisions are servers of one process and share one OpenMP. While they were open, 1 x 16 tokens of MiniLM's
shape in float32 took 15 ms at best, and 9 ms if it was the only server (a likely cause, not proven: OpenMP spins
less once it has more threads than there are processors). Rows of small batches are thus to llama.cpp's disadvantage.

int8 is llama.cpp's Q8_0: int8 weights and activations in groups of 32. bfloat16 rounds both to bfloat16; a build for
AVX2 multiplies them in float32.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastflow.bench.measure.subject import Array, Subject
from fastflow.bench.peers.pooled import Pooled
from fastflow.model.encoder.architecture import read_config

Call = Callable[[], Any]
TYPES = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0"}  # of the layers' matrices; all else is float32
ACTIVATIONS = ("gelu", "gelu_tanh")  # llama.cpp has one GELU, by its tanh form
SETS = ("AMX_INT8", "AVX512", "AVX2", "NEON")  # as llama.cpp names them, the widest first
SLOTS = 64  # texts that may share a pass
TOKENS = 512  # of a pass: each text attends over all, so that larger passes are no faster


def xllamacpp(subject: Subject, dtype: str, threads: int) -> Callable[[Array, Array], Call]:
    """llama.cpp with flash attention, which is its fastest on every shape."""
    import xllamacpp as library

    server = library.Server(settings(subject, gguf_file(subject, dtype), threads))

    def prepare(ids: Array, mask: Array) -> Call:
        texts = [row[kept].tolist() for row, kept in zip(ids, mask.astype(bool), strict=True)]
        request = json.dumps({"input": texts, "encoding_format": "base64"})  # not timed, in its favour
        return lambda: vectors(json.loads(server.handle_embeddings(request)))

    return prepare


def backend() -> str:
    """The package with the widest instruction set that its build uses, such as ``xllamacpp avx2``."""
    import xllamacpp as library

    info = str(library.get_system_info())
    return " ".join(["xllamacpp", *[name.lower() for name in SETS if f" {name} = 1 " in info][:1]])


def settings(subject: Subject, path: Path, threads: int) -> Any:
    """llama.cpp's parameters: mean vectors as they are, without normalisation."""
    import xllamacpp as library

    longest = subject.shape.positions
    params = library.CommonParams()
    params.model.path = str(path)
    params.embedding, params.embd_normalize = True, -1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_batch = params.n_ubatch = max(longest, TOKENS)  # a text has to fit into one pass
    params.n_ctx, params.kv_unified, params.n_parallel = longest, True, SLOTS
    params.flash_attn_type = library.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.verbosity = -1  # standard output is the bench's table
    return params


def vectors(reply: dict[str, Any]) -> Array:
    """The (B, D) float32 vectors of a ``reply``; raises ValueError with llama.cpp's reason if it has none."""
    if "data" not in reply:
        raise ValueError(f"llama.cpp answers: {reply.get('error', reply)}")
    return np.stack([np.frombuffer(base64.b64decode(text["embedding"]), np.float32) for text in reply["data"]])


def gguf_file(subject: Subject, dtype: str) -> Path:
    """The subject as a GGUF file; raises ValueError where llama.cpp has not the same computation."""
    import gguf

    check(subject)
    path = subject.folder / f"llama-{dtype}.gguf"
    if path.exists():
        return path
    kind = gguf.GGMLQuantizationType[TYPES[dtype]]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, subject.depth)
    encoder = Pooled(subject, torch.float32).encoder
    writer = gguf.GGUFWriter(None, "bert")
    add_fields(writer, subject, encoder.config.vocab_size, encoder.config.type_vocab_size)
    for name, tensor in encoder.state_dict().items():
        if name.startswith("pooler."):
            continue
        array, known = tensor.numpy(), names.get_name(name, try_suffixes=(".weight", ".bias"))
        if known is None:
            raise ValueError(f"the GGUF format has no name for the tensor {name}")
        if array.ndim == 2 and name.startswith("encoder."):
            writer.add_tensor(known, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(known, array)
    part = path.with_suffix(".part")  # a file that failed half way is not taken for a whole one
    writer.write_header_to_file(part)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return part.rename(path)


def check(subject: Subject) -> None:
    """Raises ValueError if the vectors would not be the subject's."""
    family = read_config(subject.encoder).get("model_type")
    if family != "bert" or subject.shape.activation not in ACTIVATIONS:
        raise ValueError(f"this peer's file is made of BERT with GELU, not of {family} with {subject.shape.activation}")
    if subject.saved is not None or subject.mode != "mean" or subject.weights is not None:
        raise ValueError("the plain mean is all that this peer pools, without token weights or modules behind it")
    if subject.layers != (subject.depth,):
        raise ValueError(f"it gives the last layer only, and this model pools layers {subject.layers}")


def add_fields(writer: Any, subject: Subject, vocabulary: int, types: int) -> None:
    """The sizes, and in the tokenizer's place a numbered one, which token ids do without."""
    import gguf

    shape = subject.shape
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.positions)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_layer_norm_eps(shape.eps)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_token_type_count(types)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"[{number}]" for number in range(vocabulary)])
    writer.add_token_types([gguf.TokenType.NORMAL] * vocabulary)
