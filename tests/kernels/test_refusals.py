"""What kernels refuse, in one sentence: a row is the arguments of the call, then words of the sentence."""

import json
import sys
from itertools import product

import numpy as np
import pytest

from fastflow import Runtime
from fastflow.errors import UsageError
from fastflow.kernels import _cpu, embed
from fastflow.kernels import tokens as compiled
from fastflow.kernels.encoder import PLAIN, PoolingSpec, Unit
from fastflow.kernels.encoder.cpu import CpuEncoder
from fastflow.kernels.encoder.cpu_layers import assemble
from fastflow.kernels.encoder.cpu_layout import Products
from fastflow.kernels.encoder.triton import TritonEncoder
from fastflow.kernels.flow.cpu import CpuFlow
from fastflow.kernels.flow.triton import TritonFlow
from fastflow.kernels.launch import prepare
from fastflow.kernels.search import cpu, reference
from fastflow.kernels.stored import record
from fastflow.kernels.table.cpu import CpuTable
from fastflow.kernels.table.reference import Table, pool
from fastflow.kernels.tokens import MOST_ADDED, NormalizerStep, Token, UnigramRules, Vocabulary, WordPieceRules
from fastflow.plan import fold

from support import definitions
from support import stages as make
from support.laws import check_refusal, every, refuse
from support.packed import random_encoder, random_modernbert, random_mpnet, token_weights

LOWERED = NormalizerStep(_cpu.LOWERED)
TWO = np.zeros((2, 48), np.float32)
PIECES = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "##a": 4, "中": 5}
BERT = WordPieceRules(True, True, True, True, False, "[UNK]", 100, tuple(list(PIECES.items())[:4]), (2,), (3,))
ODD_WORDS = ["", "A", "a b", "a-b", "a_b", "é", "中", "가", "\u302e", "€", "i̇", "w" * 101]
ODD_NUMBERS = ["01", "065", "-1", "1.0", "1e3", "2147483648", "99999999999", '"1"', ""]
ODD_PIECES = ["x" * 256, "a\n", r"\x", r"\u12", r"\u12g4", r"\ud800", r"\udc00", r"\ud800\u0041"]
ODD_SCORES = ["01", "1.", ".5", "+1", "1e", "1e+", "--1", "1.2.3", '"1"', "", "null", "1e400", "1e-99", f"{2**64}"]
VOCABULARIES = [
    *("", " ", "{", '{"a"', '{"a":', '{"a":1', '{"a":1,', '{"a":1,}', '{"a":1 "b":2}', "{,}", "[", '{"a" 1}', "{a:1}"),
    *(f'{{"a":{number}}}' for number in ODD_NUMBERS),
    *(f'{{"{odd}":1}}' for odd in ODD_PIECES),
    *(b'{"\xff":1}', b'{"\xc0\xaf":1}', b'{"\xe2\x82":1}', b'{"\xed\xa0\x80":1}', b'{"\xf4\x90\x80\x80":1}', b'{"\xf0'),
    *("[", "[]", "[[", '[["a"', '[["a",', '[["a",1', '[["a",1]', '[["a",1],', '[["a",1],]', '[["a",1]["b",2]]'),
    *('[["a" 1]]', "[[1,1]]", '[["a",1,2]]', f'[["{"x" * 256}",1]]', '[["a\n",1]]', r'[["\ud800",1]]', b'[["\xff",1]]'),
    *(f'[["a",{number}]]' for number in ODD_SCORES),
]
ENDS = np.empty(0, np.int32)
E_ACUTE, NO_ISAS = ("é".encode(), 0, 0), ("avx1024", "AVX2", " portable")
ONE, SCORED = Vocabulary(b'{"a":0}'), Vocabulary(b'[["a",0]]')
WORDS, TILE = compiled.WordPiece(Vocabulary(json.dumps(PIECES).encode()), BERT), np.zeros((16, 64), np.uint8)
FLOW_24 = CpuFlow(fold([], 24))
IDENTITY, FLOW = fold([], 8), make.flow(np.random.default_rng(0), 48)
UNALIGNED = np.frombuffer(bytes(25), np.uint8)[1:].view(np.float32).reshape(2, 3)
WEIGHTS, MADE = token_weights(1), random_encoder(5, 3, 72, 3, 130)
NO_RULES = ((), False, 0, (), (), ())
OF_200 = r"float32 of shape \(200,\), not "
FRONTS = {
    "flow": lambda device: TritonFlow(IDENTITY, device),
    "encoder": lambda device: TritonEncoder(*random_encoder(1, 1, 32, 2, 32), (1,), device=device),
    "launch": prepare,
}


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def open_wordpiece(at, definition, change):
    pieces = PIECES if definition else Vocabulary(json.dumps(PIECES).encode())
    (definitions if definition else compiled).WordPiece(pieces, BERT._replace(**change))


def compile_unigram(at, unknown, added, pieces=SCORED):
    _cpu.Unigram(pieces, unknown, added, ENDS, ENDS, [], _cpu.Normalizer([]), str, (9, 9), True, False)


def compile_table(at, change):
    rows = np.ones((4, 2), np.float32).reshape(-1).view(np.uint8)
    given = {"rows": rows, "stored": 0, "width": 2, "run": 1, "isa": 0, "scales": None, "weights": None}
    _cpu.Table(**given | {"mapping": None} | change)


def run_table(at, kind, ids, offsets):
    table, texts = Table(np.ones((400, 8), np.float32)), (ids, np.array(offsets))
    CpuTable(table)(*texts) if kind == "compiled" else pool(table, *texts, None, np.float32)


def write_program(at, form, mode, without="-", **settings):
    weights, shape = random_encoder(5, 2, 64, 4, 97)
    made = {name: array for name, array in weights.items() if not name.startswith(without)}, shape._replace(**settings)
    assemble(*made, PoolingSpec(mode, (2,)), Products(32, form, _cpu.FLOAT, PLAIN))


def with_weight(value):
    table = token_weights(1)
    table[7] = value
    return {"token_weights": table}


def open_embedder(width, limit=16):
    return embed.Texts(WORDS, CpuTable(Table(zeros(30, width))), limit)


def force_runtime(at, name):
    model = at.model  # made for the session, so before the variable
    at.monkeypatch.setenv("FASTFLOW_ISA", name)
    Runtime(model, backend="cpu")


def force_isa(at, name):
    at.monkeypatch.setenv("FASTFLOW_ISA", name)
    CpuFlow(IDENTITY)


def open_front(at, front, device):
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    at.monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    FRONTS[front](device)


def lack_module(at, front, module):
    at.monkeypatch.setitem(sys.modules, module, None)
    FRONTS[front]("cuda")


def compile_flow(at, shift, ops, isa):
    memory = np.zeros(64, np.float32)
    weights = memory[-(memory.ctypes.data // 4) % 16 + shift :]
    numbers = {"inputs": 1, "outputs": 1, "result": 0, "stride": 16, "block": 14}
    _cpu.Flow(weights, ops, np.zeros(1, np.int32), **numbers, cost=1, isa=isa)


OPS = np.zeros(1, _cpu.OP)
CODES = [
    *(("dots", rows.astype(np.int8), zeros(width, dtype=np.int8)) for rows, width in (
        (zeros(2, 3), 4), (zeros(2, 0), 0), (zeros(1, 65537), 65537), (zeros(3), 3))),
    ("dots", zeros(2, 3, dtype=np.uint8), zeros(3, dtype=np.int8)),
    ("dots", zeros(2, 6, dtype=np.int8)[:, ::2], zeros(3, dtype=np.int8)),
    ("hammings", zeros(2, 6, dtype=np.uint8)[:, ::2], zeros(3, dtype=np.uint8)),
]  # fmt: skip
FLOATS = [
    (zeros(2, 3, dtype=float), zeros(1, 3)), (zeros(2, 3), zeros(1, 3, dtype=float)), (zeros(2, 3), zeros(1, 4)),
    (zeros(2, 3), zeros(3)), (zeros(2, 6)[:, ::2], zeros(1, 3)), (zeros(2, 0), zeros(1, 0)), (UNALIGNED, zeros(1, 3)),
]  # fmt: skip
BYTES, SUMS = zeros(2, 3, dtype=np.uint8), zeros(2, dtype=np.int32)
APART = "do not belong together|cannot run"
ROWS = [
    *refuse(
        ValueError, open_wordpiece,
        *((definition, *row) for definition in (False, True) for row in [
            *(({"longest": number}, f"{number} characters are cut") for number in (257, -1)),
            *(({"unknown": piece}, "lacks the unknown token") for piece in ("[NO]", "##a")),
            *(({"added": ((piece, 1),)}, "another id in the vocabulary") for piece in ("[NO]", "[SEP]")),
            ({"added": (("中", PIECES["中"]),)}, "no word of ASCII"),
            ({"added": (("[SEP]", 3),) * (MOST_ADDED + 1)}, "257 tokens are added"),
            *((change, "31 bits") for change in ({"before": (2**31,)}, {"after": (-1,)})),
            ({"clean": False, "whole": (("zebra", 90),)}, "control characters are not dropped"),
            ({"whole": (("zebra", 2**31),)}, "no normalized word"),
            *(({"whole": ((word, 90),)}, "no normalized word") for word in ODD_WORDS),
        ]),
    ),
    *refuse(
        ValueError, lambda at, change: compiled.Unigram(SCORED, UnigramRules(*NO_RULES)._replace(**change), str),
        ({"added": (Token("a b", 3),)}, "'a b' is no word of ASCII"),
        ({"added": (Token("", 3),)}, "'' is no word of ASCII"),
        ({"added": (Token("a", 3),) * 257}, "257 tokens are added"),
        ({"after": (-1,)}, "31 bits"),
        ({"steps": (LOWERED,), "added": (Token("<A>", 0, later=True), Token("<a>", 1, later=True))},
         "the same once normalized"),
    ),
    *refuse(
        ValueError, lambda at, text, *start: Vocabulary(text if isinstance(text, bytes) else text.encode(), *start),
        *every(VOCABULARIES, said="vocabulary"),
        *every([b'{"a":0}'], [-1, 7, 8], said="cannot begin at"),
    ),
    *refuse(
        ValueError, lambda at, longest, added, *more: _cpu.WordPiece(ONE, 0, added, ENDS, ENDS, 0, longest, *more),
        *((*row, "the most here|an added token is")
          for row in [(257, []), (-1, []), (9, [(b"", 0, 0)]), (9, [E_ACUTE])]),
        (9, [], ONE, "whole words need"),
    ),
    *refuse(
        ValueError, compile_unigram,
        *((*row, "has no piece|an added token is|257 tokens are added")
          for row in [(1, []), (-1, []), (0, [E_ACUTE]), (0, [E_ACUTE] * 257)]),
        (0, [], ONE, "has no piece with a score"),
    ),
    *refuse(ValueError, lambda at: _cpu.WordPiece(SCORED, 0, [], ENDS, ENDS, 0, 9), ("the pieces have scores",)),
    *refuse(
        ValueError, lambda at, steps: _cpu.Normalizer(steps),
        *(([step], "nothing to replace|no units") for step in [
            (_cpu.REPLACED, b"", b"x"), (_cpu.MAPPED, b"123", b"\0"), (_cpu.MAPPED, b"1234", b"x")]),
        ([(_cpu.KEPT, b"", b"")] * 17, "17 steps, more than 16"),
    ),
    *refuse(ValueError, lambda at, code: _cpu.character(code), *every([-1, 0x110000], said="no code point")),
    *refuse(
        ValueError, lambda at, module, name, *given: getattr(module, name)(*given),
        *((module, *row, "codes") for module, row in product([cpu, reference], CODES)),
        *((module, "products", *row, "rows") for module, row in product([cpu, reference], FLOATS)),
    ),
    *refuse(
        ValueError, lambda at, query, out, scan: _cpu.scan(BYTES, query, out, scan, 0, 1),
        *((*row, APART) for row in [(BYTES[0, :2], SUMS, 0), (BYTES[0], SUMS[:1], 0), (BYTES[0], SUMS, 2)]),
    ),
    *refuse(
        ValueError, lambda at, queries, out, isa: _cpu.products(zeros(2, 3), queries, out, isa, 1),
        *((*row, APART) for row in [(zeros(2, 2), zeros(1, 2), 0), (zeros(2, 3), zeros(1, 2), 0),
                                    (zeros(1, 3), zeros(1, 1), 0), (zeros(1, 3), zeros(1, 2), 99)]),
    ),
    *refuse(
        ValueError, lambda at, name, rows, queries: getattr(cpu, name)(rows, queries, isa="none"),
        ("products", zeros(2, 3), zeros(1, 3), "cannot run"),
        ("hammings", BYTES, BYTES[0], "cannot run"),
    ),
    *refuse(
        ValueError, compile_table,
        *((change, "no whole rows") for change in ({"rows": zeros(7, dtype=np.uint8)}, {"stored": 3})),
        ({"scales": np.ones(3, np.float32)}, "3 scales do not fit"),
        ({"weights": np.ones(5, np.float32)}, "5 weights do not fit"),
        ({"mapping": np.array([0, 4], np.int32)}, "id 1 has row 4"),
        ({"mapping": np.array([-1], np.int32)}, "id 0 has row -1"),
        ({"rows": zeros(33, dtype=np.uint8)[1:]}, "aligned"),
        ({"run": 0}, "a run of tokens is at least 1"),
        ({"isa": 99}, "instruction set 99"),
    ),
    *refuse(
        ValueError, run_table,
        *((kind, np.array([0, bad, 0], np.int32), [0, 1, 1, 3], "text 2 has .*0 to 399")
          for kind in ("compiled", "definition") for bad in (-1, 400)),
        ("compiled", zeros(4, dtype=np.int32), [0, 3, 2, 4], "text 1"),
        ("compiled", zeros(4, dtype=np.int32), [0, 3], "offsets must start at 0"),
    ),
    *refuse(
        ValueError, lambda at, x, options: CpuFlow(fold([FLOW], 48))(x, **options),
        (TWO[:, 1:], {}, r"\(B, 48\).*\(2, 47\)"),
        (TWO[0], {}, r"\(B, 48\).*\(48,\)"),
        (zeros(2, 48, dtype=float), {}, "float32.*not float64"),
        (zeros(4, 48)[::2], {}, "C-contiguous"),
        *((TWO, {"truncate": number}, "truncate must be 1 to 48") for number in (0, 49)),
        (TWO, {"out": zeros(2, 47)}, r"out must be.*\(2, 48\)"),
        (TWO, {"out": zeros(2, 48, dtype=float)}, "out must be .*float32"),
        (TWO, {"out": zeros(4, 48)[::2]}, "out must be C-contiguous"),
    ),
    *refuse(
        ValueError, compile_flow,
        (1, OPS, 0, "64-byte aligned"),
        (0, OPS, 99, "instruction set 99"),
        (0, OPS[:0], 0, "needs weights, operations and a table"),
        (0, zeros(1, 8, dtype=np.int32), 0, "Buffer"),
        (0, np.zeros(1, [(name, np.int64) for name in _cpu.OP.names]), 0, "Buffer"),
    ),
    *refuse(ValueError, lambda at: CpuFlow(IDENTITY, threads=0), ("threads must be at least 1, not 0",)),
    *refuse(ValueError, lambda at: record(_cpu.OP, {"width": 1}), ("width",)),
    *refuse(
        ValueError, lambda at, mode, layers, rest: CpuEncoder(*MADE, PoolingSpec(mode, layers, **rest)),
        ("median", (3,), {}, "pooling 'median' is not known; known are cls, "),
        ("mean+pooler", (3,), {}, "pooling 'pooler' is not known"),
        ("max", (1, 3), {}, "pooling 'max' is of one layer, not of several"),
        ("cls+max", (1,), {"shares": [0.5]}, "pooling 'max' takes its layer whole, not a share of it"),
        ("pooler", (3,), {"head": [Unit()]}, "pooling 'pooler' runs without modules behind it"),
        ("pooler", (1,), {"token_weights": WEIGHTS}, "token weights cannot run with pooling 'pooler'"),
        ("mean", (1,), {"token_weights": WEIGHTS[1:]}, OF_200 + r"float32 of \(199,\)"),
        ("mean", (1,), {"token_weights": WEIGHTS[:, None]}, OF_200 + r"float32 of \(200, 1\)"),
        ("mean", (1,), {"token_weights": WEIGHTS.astype(float)}, OF_200 + "float64"),
        *(("mean", (1,), with_weight(value), "every token weight must be between 1e-30 and 1e")
          for value in (-1, np.nan, np.inf, 1e-40, 1e-31, 2e30)),
    ),
    *refuse(
        ValueError, lambda at, *given: write_program(at, *given[:3], **dict(given[3:])),
        (_cpu.BF16, "mean", "-", ("activation", "tanh"), r"'layer\.0\.up' applies tanh to results of float32 alone"),
        (_cpu.FLOAT, "pooler", "pooler", "the encoder has no pooler"),
    ),
    *refuse(
        ValueError, lambda at, isa: CpuFlow(IDENTITY, isa=isa),
        *((isa, f"instruction set '{isa}' cannot run.*usable here:.*portable") for isa in NO_ISAS),
    ),
    *refuse(UsageError, force_runtime, *((isa, f"FASTFLOW_ISA={isa} cannot run") for isa in NO_ISAS)),
    *refuse(
        ValueError, lambda at, isa, width: _cpu.try_tile(isa, True, TILE, TILE[:, :width].copy(), TILE),
        *((isa, 64, f"instruction set {isa} has no tiles") for isa in (0, _cpu.isas().get("avx512", (99,))[0], 99, -1)),
    ),
    *refuse(
        ValueError, lambda at, width, limit=16: open_embedder(width, limit)(FLOW_24, ["a"]),
        (23, "the pooling has 23 numbers, and the flow takes 24"),
        (24, 1, "1 ids are fewer than those at the ends of a text"),
    ),
    *refuse(
        ValueError, lambda at, rows, *pooled: open_embedder(24).compiled.run(
            FLOW_24.compiled, ["a"], zeros(rows, 24), False, 1, *pooled),
        (2, r"out must be \(1, 24\) or narrower, not \(2, 24\)"),
        (1, zeros(1, 20), r"pooled must be \(1, 24\), not \(1, 20\)"),
    ),
    *refuse(
        ValueError, lambda at: _cpu.Embedder(WORDS.compiled, None, 16, True, -1),
        ("a pooling is a Table or an Encoder",),
    ),
    *refuse(ValueError, force_isa, *((isa, f"FASTFLOW_ISA={isa} cannot run.*here:.*portable") for isa in NO_ISAS)),
    *refuse(
        ValueError, open_front,
        *every(FRONTS, ["cuda"], said="needs an NVIDIA GPU with a CUDA build of torch"),
        *every(FRONTS, ["cpu"], said="not on 'cpu': use device='cuda'"),
    ),
    *refuse(
        ValueError, lack_module,
        *((*row, f"device='cuda' needs {row[1]}, which is not installed: pip install -e '.\\[gpu\\]'")
          for row in product(FRONTS, ["torch", "triton"])),
    ),
    *refuse(
        ValueError, lambda at, made: TritonEncoder(*made(1, 2, 32, 2, 32), (1,), device="cpu"),
        *every([random_mpnet, random_modernbert], said="the Triton encoder runs BERT's family alone"),
    ),
    *refuse(ValueError, lambda at: TritonFlow(()), ("at least one plan",)),
]  # fmt: skip


@pytest.mark.each
@pytest.mark.parametrize(("error", "call", "given", "said"), ROWS)
def test_it_is_refused_in_one_sentence(request, error, call, given, said):
    check_refusal(request, error, call, given, said)
