"""Which recipe a diagnosis makes of the options that were asked for: a table, and what it refuses."""

from dataclasses import replace

import pytest

from fastflow.errors import FastflowError, UsageError
from fastflow.train.options import COLOURS, LARGE, LARGE_CORPUS, SMALL, TrainOptions, make_options
from fastflow.train.pipeline.recipe import AUTO, AUTO_STREAMED, POOLING, TUNED_SPECTRUM, Diagnosis, recipe
from fastflow.train.reporter import name_arguments

PLAIN = Diagnosis(layers=3)  # an untuned encoder, before the texts are read
TUNED = Diagnosis("it is", layers=3)
WHOLE = replace(TUNED, whole=True)  # a directory of Sentence Transformers
TABLE = Diagnosis()  # of tokens
SIF, EQUAL = COLOURS["sif"], COLOURS["none"]


@pytest.mark.parametrize(
    ("seen", "given", "method", "pooling", "weights", "layers", "colour"),
    [
        (PLAIN, {}, AUTO, POOLING, "sif", True, SIF),
        (TABLE, {}, AUTO, POOLING, "sif", True, SIF),
        (PLAIN, {"stream": True}, AUTO_STREAMED, POOLING, "sif", True, SIF),
        (PLAIN, {"token_weights": "none"}, AUTO, POOLING, "none", True, EQUAL),
        (PLAIN, {"method": "whiten"}, "whiten", POOLING, "sif", True, SIF),
        (PLAIN, {"method": "none", "stop": "budget"}, "none", POOLING, "sif", True, SIF),
        (PLAIN, {"spectrum": 0.3, "mean_share": 0.2}, AUTO, POOLING, "sif", True,
         SIF | {"spectrum": 0.3, "mean_share": 0.2}),
        (PLAIN, {"pooling": "last"}, AUTO, "last", "sif", False, SIF),
        (PLAIN, {"pooling": "cls"}, AUTO, "cls", "none", False, EQUAL),  # token weights are of a mean
        (PLAIN, {"pooling": "cls", "demoted": 1}, AUTO, "cls", "none", False, EQUAL | {"demoted": 1}),
        (PLAIN, {"pooling": "model"}, AUTO, "model", "none", False, EQUAL),
        # tuned: kept as it is, unless a method or weights are named
        (TUNED, {}, "none", "last", "none", False, EQUAL),
        (TUNED, {"token_weights": "none"}, "none", "last", "none", False, EQUAL),
        (TUNED, {"stream": True}, "none", "last", "none", False, EQUAL),
        (TUNED, {"pooling": "cls"}, "none", "cls", "none", False, EQUAL),
        (TUNED, {"background": 50, "language": "de"}, "none", "last", "none", False, EQUAL),
        (TUNED, {"method": "none"}, "none", POOLING, "sif", True, SIF),
        (TUNED, {"method": "whiten"}, "whiten", "last", "none", False, EQUAL | {"spectrum": TUNED_SPECTRUM}),
        (TUNED, {"method": "flow", "spectrum": 0.4}, "flow", "last", "none", False, EQUAL | {"spectrum": 0.4}),
        (TUNED, {"token_weights": "sif"}, AUTO, "last", "sif", False, SIF | {"spectrum": TUNED_SPECTRUM}),
        (TUNED, {"method": "flow", "spectrum": 0.3, "pooling": "words", "token_weights": "sif"}, "flow", "words",
         "sif", False, SIF | {"spectrum": 0.3}),
        (WHOLE, {}, "none", "model", "none", False, EQUAL),
        (WHOLE, {"max_length": 9}, "none", "last", "none", False, EQUAL),
        (WHOLE, {"pooling": "last"}, "none", "last", "none", False, EQUAL),
        (WHOLE, {"token_weights": "sif"}, AUTO, "last", "sif", False, SIF | {"spectrum": TUNED_SPECTRUM}),
        (WHOLE, {"method": "flow"}, "flow", "model", "none", False, EQUAL | {"spectrum": TUNED_SPECTRUM}),
    ],
)  # fmt: skip
@pytest.mark.each
def test_nothing_is_left_to_auto(seen, given, method, pooling, weights, layers, colour):
    plan = recipe(seen, TrainOptions(**given))
    options = plan.options
    assert (options.method, options.pooling, options.token_weights) == (method, pooling, weights)
    assert (plan.chooses_layers, options.colour) == (layers, colour)
    assert plan.automatic == ("method" not in given)
    kept = method == "none" != given.get("method")
    asked = {name: value for name, value in given.items() if not (kept and name in ("background", "language"))}
    assert all(getattr(options, name) == value for name, value in asked.items())
    if kept:
        assert (options.background, options.language) == (None, "en")
    read = recipe(replace(seen, texts=300), TrainOptions(**given))
    assert (read.options, read.chooses_layers) == (options, layers)
    assert [text.startswith("this encoder was tuned for similarity: it is") for text in read.reasons] == [True] * kept
    gentle = seen.tuning is not None and method != "none"
    doubt = "as this one was (it is): whiten,recolour and flow cost"
    assert [doubt in text for text in read.warnings] == [True] * gentle == [f"WARNING: {text}" in read.lines
                                                                            for text in read.warnings]  # fmt: skip


TEXTS = replace(PLAIN, texts=300)
ENGLISH = replace(PLAIN, words=True, sentences=5000)
LISTED = replace(PLAIN, words=True)  # words of another language


@pytest.mark.parametrize(
    ("seen", "texts", "given", "background", "fitted"),
    [
        (PLAIN, 10**9, {}, (0, 0), 10**9),
        *((LISTED, texts, {}, (0, drawn), min(texts, 2500)) for texts, drawn in (
            (100, 3000), (750, 3000), (751, 3004), (2500, 10_000), (2501, 10_000), (10**9, 10_000))),
        *((ENGLISH, texts, {}, (5000, 5000), min(texts, 1250)) for texts in (100, 1250, 10**9)),
        *((replace(ENGLISH, perplexity=perplexity), texts, {}, (5000, 5000), fitted)
          for texts, perplexity, fitted in (
              (10**9, 540, 1250), (1250, 270, 1250), (1250, 269.9, 1248), (1248, 269.9, 1248), (10**9, 135, 156),
              (10**9, 65.4, 17), (100, 65.4, 17), (10**9, 1, 2))),
        (replace(LISTED, perplexity=1), 10**9, {}, (0, 10_000), 2500),
        (replace(LISTED, perplexity=1), 10**9, {"background": 7}, (0, 7), 10**9),
        (replace(LISTED, sentences=40), 70, {"method": "whiten,recolour", "language": "de"}, (40, 40), 10),
        (ENGLISH, 300, {"background": 0}, (0, 0), 300),
        (PLAIN, 300, {"background": 0}, (0, 0), 300),
        *((ENGLISH, 300, given, (0, 0), 300) for given in (
            {"method": "flow", "latent": True}, {"method": "components:1"}, {"method": "none"},
            {"method": "flow,whiten"})),
    ],
)  # fmt: skip
@pytest.mark.each
def test_random_words_outweigh_the_corpus_fourfold_and_real_sentences_with_as_many_eightfold(
    seen, texts, given, background, fitted
):
    """The smaller the vocabulary of a corpus with real sentences, the fewer of its texts count."""
    plan = recipe(replace(seen, texts=texts), TrainOptions(**given))
    assert ((plan.sentences, plan.drawn), plan.fitted) == (background, fitted)


@pytest.mark.parametrize(
    ("texts", "words", "given", "size"),
    [
        (300, False, {}, SMALL), (LARGE_CORPUS - 1, False, {}, SMALL), (LARGE_CORPUS, False, {}, LARGE),
        (300, True, {}, LARGE), (300, True, {"background": 0}, SMALL), (300, True, {"depth": 4}, LARGE | {"depth": 4}),
        (300, True, {"depth": 1, "width": 9, "levels": 3}, {"depth": 1, "width": 9, "levels": 3}),
    ],
)  # fmt: skip
def test_a_flow_is_larger_on_a_large_corpus_or_with_a_background_unless_its_size_is_named(texts, words, given, size):
    assert (LARGE["depth"], LARGE["width"]) > (SMALL["depth"], SMALL["width"])
    shape = recipe(replace(PLAIN, texts=texts, words=words), TrainOptions(method="flow", **given)).shape
    assert shape == {"levels": 2, "coupling": "additive", "permutation": "reversal"} | size


@pytest.mark.parametrize(("batch", "least"), [(64, 100), (128, 128)])
def test_auto_fits_a_flow_to_enough_texts_and_to_a_batch_at_least(batch, least):
    few, enough = (recipe(replace(ENGLISH, texts=texts, order="by order"), TrainOptions(batch_size=batch))
                   for texts in (least - 1, least))  # fmt: skip
    said = f"auto keeps the pooling as it is: a flow takes {least} texts or more, and these are {least - 1}"
    assert (few.options.method, few.background, few.reasons) == ("none", 0, ("by order", said))
    assert few.options.token_weights == "sif"  # which needs no more texts
    assert (enough.options.method, enough.reasons) == (AUTO, ("by order",))
    assert any(f"flow: {(10_000 + least) // batch} steps of {batch} texts" in line for line in enough.lines)
    assert recipe(replace(PLAIN, texts=9), TrainOptions(stream=True)).options.method == AUTO_STREAMED


LANGUAGE = "{} serves token weights and recolour, and this fit has neither: leave it out"
BARE = {"method": "whiten", "token_weights": "none"}


@pytest.mark.parametrize(
    ("seen", "given", "message", "option"),
    [
        (PLAIN, {"method": "flow", "stream": True}, "--stream is for closed forms, such as whiten,recolour", "stream"),
        (PLAIN, {"method": "none", "stream": True, "sample": 9}, "--stream is for closed forms", "stream"),
        (PLAIN, BARE | {"background_words": "w"}, LANGUAGE.format("--background-words"), "background_words"),
        (PLAIN, BARE | {"language": "de"}, LANGUAGE.format("--language"), "language"),
        (PLAIN, {"pooling": "cls", "token_weights": "sif"}, "--token-weights sif is for a mean, and --pooling cls is",
         "token_weights"),
        (PLAIN, {"pooling": "model", "token_weights": "sif"}, "--pooling model pools as the directory says: leave out",
         "pooling"),
        (PLAIN, {"order_from": "f", "pooling": "last"}, "--order-from compares poolings for --pooling auto",
         "order_from"),
        *((seen, {"order_from": "f"}, "--order-from compares layers, and this encoder was tuned or has", "order_from")
          for seen in (TABLE, TUNED)),
        *((PLAIN, given | {"background": 10}, f"--background goes with recolour, and {named} has none", "background")
          for given, named in (
              ({"method": "flow", "latent": True}, "method flow with --latent"), ({"method": "none"}, "method none"),
              ({"method": "components:1"}, "method components:1"), ({"method": "flow,whiten"}, "method flow,whiten"))),
        (TEXTS, {"method": "flow", "background": 5}, "--background draws English words, and the corpus is not English",
         "background"),
        (replace(ENGLISH, texts=40), {"method": "flow"}, "the corpus has 40 distinct texts, fewer than one batch of 64",
         "batch_size"),
    ],
)  # fmt: skip
@pytest.mark.each
def test_options_that_do_not_go_together_are_refused_by_name(seen, given, message, option):
    with pytest.raises(UsageError) as refused:
        recipe(seen, TrainOptions(**given))
    assert message in str(refused.value)
    assert refused.value.option == option
    assert f"{option}=" in name_arguments(refused.value.args[0])


@pytest.mark.parametrize(
    ("given", "message", "option"),
    [
        ({"method": "auto", "stop": "budget"}, "--method auto chooses by the rule: name another --method", "method"),
        ({"language": "de", "background_words": "w"}, "both give the words of the language: leave one", "language"),
        ({"background": 9, "background_sentences": "s"}, "--background N draws random words only", "background"),
        ({"method": "whiten", "epochs": 2}, "--epochs is of flow, which --method whiten lacks", "epochs"),
        ({"method": "flow", "latent": True, "mean_share": 0.5}, "--mean-share is of recolour", "mean_share"),
    ],
)
def test_options_are_refused_without_a_look(given, message, option):
    with pytest.raises(UsageError, match=message) as refused:
        make_options(given)
    assert refused.value.option == option


def test_a_single_text_shows_nothing_to_calibrate():
    with pytest.raises(FastflowError, match="a single distinct text"):
        recipe(replace(PLAIN, texts=1), TrainOptions(method="none"))


PARAGRAPHS = "these texts are paragraphs, of 41 words in the median"


@pytest.mark.parametrize(
    ("seen", "given", "warnings", "lines"),
    [
        (replace(TEXTS, length=40), {}, (), ()),
        (replace(TEXTS, length=41), {}, (), (f"corpus: {PARAGRAPHS}; the defaults were chosen on sentences",)),
        (replace(TEXTS, length=41), {"token_weights": "none"}, (PARAGRAPHS,), (f"WARNING: {PARAGRAPHS}",)),
        (replace(TEXTS, length=41), {"pooling": "cls"}, (PARAGRAPHS,), ()),
        (replace(TEXTS, length=41), {"method": "none", "token_weights": "none"}, (), ()),
        (replace(TEXTS, concerns=("odd",), pooling="32 dimensions"), {}, ("odd",), (
            "corpus: 300 distinct texts; encoder: 32 dimensions", "WARNING: odd",
            "background: none, because the corpus is not English; --language CODE gives one", "flow: 4 steps of 64")),
        (replace(LISTED, texts=300), {}, (), (
            "background: 3000 sentences of random words, to which the method is fitted too; --background-sentence",)),
        (replace(LISTED, texts=9000), {"stream": True}, (), (
            "background: 10000 sentences of random words; the method is fitted to them and to all texts, which c",)),
        (replace(ENGLISH, texts=300, perplexity=9), {"background": 9}, (), (
            "background: 9 sentences of the language at large, to which the method is fitted too",)),
        (replace(ENGLISH, texts=300, perplexity=9), {}, (), (
            "background: 10000 sentences of the language at large; the method is fitted to them and to 2 of the texts, "
            "drawn at random, few because their vocabulary is small",)),
    ],
)  # fmt: skip
@pytest.mark.each
def test_what_a_fit_says_and_warns_of_before_it_begins(seen, given, warnings, lines):
    plan = recipe(seen, TrainOptions(**given))
    assert [text[: len(start)] for text, start in zip(plan.warnings, warnings, strict=True)] == list(warnings)
    assert all(any(line.startswith(start) for line in plan.lines) for start in lines), plan.lines
    assert [line for line in plan.lines if "paragraphs" in line] == [
        line for line in plan.lines if "paragraphs" in line and seen.length > 40 and plan.options.method != "none"
    ]
