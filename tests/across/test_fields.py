"""Every field of a directory's files that the libraries read is obeyed, refused by name, or changes nothing.

The fields come from signatures, sources and saved files of the installed libraries; ``support.fields`` has a row for
each. ``just old-libraries`` asks transformers 4.57 with Sentence Transformers 5.1.
"""

from __future__ import annotations

import inspect
import json
import shutil
from collections import Counter

import numpy as np
import pytest

import fastflow
from fastflow.errors import FastflowError
from fastflow.values import panics

from support.builders import make_encoder, make_sentences
from support.fields import ADDED, BERT_CONFIG, CONFIG, MAP, SETTINGS, TOKENIZER, asked, change, changes, keys, row_of
from support.sentence_dirs import make_directory, pooling, write
from support.static_dirs import model2vec_dir, static_embedding_dir

pytestmark = [pytest.mark.doors, pytest.mark.filterwarnings("ignore")]
TEXTS = [  # none with spaces at its ends, which Sentence Transformers 5 takes away
    *("The Dog SINGS", "Élan 東京 dog", "the <mask> dog [MASK] <s> [SEP] the", "dog  runs", "the dog-house"),
    *("young stars" + ", young stars" * 8, "a\x07b \u200d bird", "singing", ""), *make_sentences(3),
]  # fmt: skip
CLASSES = {  # name: the family, and the class that opens its tokenizer
    "bert": ("bert", "BertTokenizer"), "distilbert": ("distilbert", "DistilBertTokenizer"),
    "roberta": ("roberta", "RobertaTokenizer"), "xlm-roberta": ("xlm-roberta", "XLMRobertaTokenizer"),
    "mpnet": ("mpnet", "MPNetTokenizer"), "modernbert": ("modernbert", "PreTrainedTokenizerFast"),
    "unigram": ("xlm-roberta", "PreTrainedTokenizerFast"),
}  # fmt: skip
SAID = {  # as their makers saved it
    "mpnet": {"unk_token": "[UNK]"}, "modernbert": {"model_input_names": ["input_ids", "attention_mask"]},
}  # fmt: skip
CLOSE = {"dtype": 2e-2, "torch_dtype": 2e-2}  # the library computes in it


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """``directories(name)``: a directory whose tokenizer the installed library saved, and the table's two kinds."""
    pytest.importorskip("sentence_transformers", exc_type=ImportError)
    from transformers import AutoTokenizer

    def get(name):
        root = tmp_path_factory.mktemp("fields")
        if name == "static":
            return static_embedding_dir(root / "model", folder="")
        if name == "model2vec":
            return model2vec_dir(root / "model")
        family, kind = CLASSES[name]
        encoder = make_encoder(root / "encoder", family)
        rows = json.loads((encoder / CONFIG).read_text())["vocab_size"]
        shutil.rmtree(encoder)
        make_encoder(encoder, family, vocab_size=rows + 8)  # for tokens that are added
        write(
            encoder / SETTINGS,
            json.loads((encoder / SETTINGS).read_text()) | SAID.get(name, {}) | {"tokenizer_class": kind},
        )
        if name == "xlm-roberta":
            tree = json.loads((encoder / TOKENIZER).read_text())
            splits = [{"type": "WhitespaceSplit"}, tree["pre_tokenizer"]]
            write(encoder / TOKENIZER, tree | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": splits}})
        AutoTokenizer.from_pretrained(encoder).save_pretrained(encoder)
        return make_directory(root / "model", encoder, [pooling("mean")], length=24)

    return get


def theirs(path):
    from model2vec import StaticModel
    from sentence_transformers import SentenceTransformer

    config = path / CONFIG
    try:
        with panics():
            if config.is_file() and json.loads(config.read_text()).get("model_type") == "model2vec":
                return StaticModel.from_pretrained(path).encode(TEXTS)
            model = SentenceTransformer(str(path), device="cpu", local_files_only=True)
            return np.asarray(model.encode(TEXTS, batch_size=4), np.float32)
    except Exception:  # whatever it raises for what it cannot read
        return None


def ours(path):
    try:
        with fastflow.Runtime(path, dtype="float32") as rt:
            return rt.encode(TEXTS)
    except FastflowError as error:
        return str(error)


def is_close(a, b, least=1e-4):
    return a.shape == b.shape and bool(np.abs(a - b).max() <= least * max(1.0, np.abs(b).max()))


class Walk:
    def __init__(self, path, scratch, strict):
        self.path, self.scratch, self.strict = path, scratch, strict  # strict: of a table, a field too many is refused
        self.base = theirs(path)
        self.wrong, self.counts = [], Counter()
        assert is_close(ours(path), self.base)

    def vectors(self, made):
        shutil.copytree(self.path, self.scratch)
        change(self.scratch, made)
        found = theirs(self.scratch), ours(self.scratch)
        shutil.rmtree(self.scratch)
        return found

    def together(self, made):
        """Make the changes at once, by halves if they change a vector."""
        want, found = self.vectors(made)
        if all(isinstance(each, np.ndarray) and is_close(each, self.base) for each in (want, found)):
            self.counts["unchanged"] += len(made)
        elif len(made) == 1:
            self.judge(*made[0], want, found)
        else:
            self.together(made[: len(made) // 2])
            self.together(made[len(made) // 2 :])

    def judge(self, row, field, value, want, found):
        if row.file == BERT_CONFIG and field == "do_lower_case" and want is not None:
            want[2] = found[2]  # Sentence Transformers 5 lowercases special tokens in a text too
        if isinstance(found, str):
            kind = "refused"
            names = [*field.split("."), "pooling_mode", "the weights lack", f"{row.file} cannot be read"]
            named = any(each in found for each in names) or (field == "tokenizer_class" and "releases" in found)
            bad = want is not None and ((not row.effect and not self.strict) or not named)
        else:
            kind = "obeyed" if want is not None and not is_close(want, self.base) else "unchanged"
            bad = want is not None and not is_close(found, want, CLOSE.get(field, 1e-4))
            bad |= not row.effect and kind == "obeyed" and field not in CLOSE
        self.counts[kind] += 1
        if bad:
            self.wrong.append(f"{row.file}, {field} = {value!r:.60}: {found if isinstance(found, str) else kind}")


@pytest.mark.parametrize("name", [*CLASSES, "static", "model2vec"])
def test_every_field_is_obeyed_or_refused_or_changes_nothing(directories, name, tmp_path):
    walk = Walk(directories(name), tmp_path / "other", strict=name not in CLASSES)
    vocabulary = json.loads((walk.path / TOKENIZER).read_text())["model"]["vocab"]
    ids = vocabulary if isinstance(vocabulary, dict) else {piece: i for i, (piece, _) in enumerate(vocabulary)}
    word = next(word for word in ("dog", "▁dog", "the") if word in ids)
    every = changes(walk.path, word, ids[word])
    without = [each for each in every if not each.row.effect]
    for start in range(0, len(without), 32):
        walk.together(without[start : start + 32])
    for each in every:
        if each.row.effect:
            walk.judge(*each, *walk.vectors([each]))
    print(f"{name}: {sum(walk.counts.values())} changes, {dict(walk.counts)}")
    assert not walk.wrong, "\n".join(walk.wrong)


def known_fields(path):
    import transformers
    from transformers import AutoConfig, AutoTokenizer, tokenization_utils_base

    for file in path.rglob("*.json"):
        tree = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(tree, dict) and file.name not in ("vocab.json", ADDED):
            where = file.relative_to(path).as_posix()
            yield from ((where, each) for each in keys(tree, 2 if where == TOKENIZER else 1))
    config, tokenizer = AutoConfig.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    base = tokenization_utils_base.PreTrainedTokenizerBase
    for kind in type(config).__mro__:
        if issubclass(kind, transformers.PretrainedConfig):
            yield from ((CONFIG, each) for each in inspect.signature(kind.__init__).parameters)
    for name in {"__init__", "__post_init__"} & vars(transformers.PretrainedConfig).keys():
        maker = vars(transformers.PretrainedConfig)[name]
        if not inspect.unwrap(maker).__code__.co_filename.startswith("<"):  # as dataclass makes one
            yield from ((CONFIG, each) for each in asked(inspect.getsource(maker)))
    makers = [kind.__init__ for kind in type(tokenizer).__mro__ if "__init__" in vars(kind) and issubclass(kind, base)]
    for maker in (*makers, base._from_pretrained):
        yield from ((SETTINGS, each) for each in asked(inspect.getsource(maker)))
    for maker in makers:
        yield from ((SETTINGS, each) for each in inspect.signature(maker).parameters)
    yield from ((MAP, each) for each in (*base.SPECIAL_TOKENS_ATTRIBUTES, "additional_special_tokens"))


def test_every_field_that_the_libraries_know_has_a_row(directories):
    names = {"self", "args", "kwargs"}
    found = {each for name in CLASSES for each in known_fields(directories(name)) if each[1] not in names}
    unknown = sorted(each for each in found if row_of(*each) is None)
    assert not unknown, f"no row in support/fields.py: {unknown}"
