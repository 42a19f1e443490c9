"""Every field that transformers and Sentence Transformers read of a directory, and whether it has an effect.

A field with an effect is obeyed as in the libraries, or an unusual value is an error that names it. ``values`` are
tried, by default one of the field's type.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

CONFIG, TOKENIZER, SETTINGS = "config.json", "tokenizer.json", "tokenizer_config.json"
MAP, ADDED = "special_tokens_map.json", "added_tokens.json"
BERT_CONFIG, POOLING = "sentence_bert_config.json", "1_Pooling/config.json"
SENTENCE = "config_sentence_transformers.json"
WORD = "dog"  # replaced by a word of the directory's vocabulary


class Field(NamedTuple):
    file: str
    names: str  # separated by spaces; a dot leads into an object
    values: tuple[Any, ...] = ()
    effect: bool = True


def special(content: str, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    return {"content": content, **plain, "special": True, **flags}


ENCODER = """
    hidden_size dim num_hidden_layers n_layers num_attention_heads n_heads intermediate_size hidden_dim vocab_size
    max_position_embeddings type_vocab_size attention_bias mlp_bias norm_bias layer_types local_attention
    global_attn_every_n_layers rope_parameters global_rope_theta local_rope_theta rope_theta rope_scaling embedding_size
    model_type tokenizer_class output_hidden_states
"""
OF_TRAINING = """
    dtype torch_dtype architectures id2label label2id num_labels problem_type transformers_version _name_or_path
    return_dict output_attentions use_cache torchscript tf_legacy_loss use_bfloat16 is_encoder_decoder
    cross_attention_hidden_size tie_encoder_decoder tie_word_embeddings finetuning_task task_specific_params prefix
    bos_token_id eos_token_id sep_token_id cls_token_id decoder_start_token_id initializer_range
    initializer_cutoff_factor hidden_dropout_prob attention_probs_dropout_prob attention_dropout dropout
    embedding_dropout mlp_dropout qa_dropout seq_classif_dropout classifier_dropout classifier_activation
    classifier_bias classifier_pooling decoder_bias sinusoidal_pos_embds sparse_prediction sparse_pred_ignore_index
    deterministic_flash_attn reference_compile repad_logits_with_grad attn_implementation max_length min_length
    do_sample early_stopping num_beams temperature top_k top_p typical_p num_beam_groups diversity_penalty
    repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences output_scores return_dict_in_generate forced_bos_token_id forced_eos_token_id
    remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens gradient_checkpointing
    auto_map _commit_hash name_or_path experts_implementation per_layer_config
"""
OF_DECODING = """
    add_bos_token add_eos_token backend clean_up_tokenization_spaces trim_offsets errors is_local local_files_only
    name_or_path processor_class special_tokens_map_file chat_template response_template response_schema
    chat_control_tokens verbose never_split do_basic_tokenize use_fast auto_map files_loaded init_inputs legacy
    tokenizer_object slow_tokenizer from_slow gguf_file fix_mistral_regex vocab merges
    clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output spaces_between_special_tokens _commit_hash
    __slow_tokenizer _json_padding _json_truncation _spm_precompiled_charsmap model_specific_special_tokens
    post_processor tokenizer tokenizer_padding tokenizer_truncation unk_id
"""
REPLACED = """
    version truncation padding decoder decoder.type decoder.prefix decoder.cleanup decoder.replacement
    decoder.prepend_scheme decoder.split decoder.add_prefix_space decoder.trim_offsets decoder.use_regex
    truncation.strategy truncation.stride truncation.max_length padding.strategy padding.pad_to_multiple_of
    padding.pad_id padding.pad_type_id padding.pad_token
"""
PARTS = """
    normalizer.type normalizer.clean_text normalizer.handle_chinese_chars normalizer.strip_accents normalizer.lowercase
    pre_tokenizer.type pre_tokenizer.add_prefix_space pre_tokenizer.use_regex pre_tokenizer.replacement
    pre_tokenizer.prepend_scheme pre_tokenizer.split pre_tokenizer.pretokenizers model.unk_token model.unk_id
    model.continuing_subword_prefix model.max_input_chars_per_word model.dropout model.end_of_word_suffix
    model.fuse_unk model.byte_fallback model.ignore_merges post_processor.type post_processor.single
    post_processor.special_tokens post_processor.sep post_processor.cls
"""
UNUSUAL = """
    transformer_task modality_config module_output_name model_args model_kwargs tokenizer_args processor_kwargs
    config_args config_kwargs processing_kwargs query_length document_length query_expansion tokenizer_name_or_path
"""
MODES = """
    pooling_mode_cls_token pooling_mode_max_tokens pooling_mode_mean_tokens pooling_mode_mean_sqrt_len_tokens
    pooling_mode_weightedmean_tokens pooling_mode_lasttoken
"""
TOKENS = "unk_token sep_token pad_token cls_token mask_token bos_token eos_token"
GIVEN = "max_length stride truncation_strategy pad_to_multiple_of pad_token_type_id"  # by Sentence Transformers
OF_OFFSETS = (
    "pre_tokenizer.trim_offsets post_processor.trim_offsets post_processor.add_prefix_space post_processor.pair"
)
CLASSES = ("PreTrainedTokenizerFast", "BertTokenizer", "RobertaTokenizer", "XLMRobertaTokenizer")
TABLE = [
    Field(CONFIG, ENCODER),
    Field(CONFIG, "layer_norm_eps norm_eps", (1e-3,)),
    Field(CONFIG, "hidden_act activation hidden_activation", ("relu", "silu")),
    Field(CONFIG, "pad_token_id", (0, 2, None)),
    Field(CONFIG, "is_decoder", (True,)),
    Field(CONFIG, "add_cross_attention chunk_size_feed_forward pruned_heads", (True, 4, {"0": [0, 1]})),
    Field(CONFIG, "position_embedding_type", ("relative_key",)),
    Field(CONFIG, "relative_attention_num_buckets", (16,)),
    Field(CONFIG, "quantization_config", ({"quant_method": "bitsandbytes"},)),
    Field(CONFIG, OF_TRAINING, effect=False),
    Field(SETTINGS, "do_lower_case strip_accents tokenize_chinese_chars add_prefix_space", (True, False)),
    Field(SETTINGS, "truncation_side padding_side", ("left",)),
    Field(SETTINGS, "split_special_tokens", (True,)),
    Field(SETTINGS, "model_input_names", (["input_ids"],)),
    Field(SETTINGS, "tokenizer_file vocab_file merges_file", ("elsewhere.json",)),
    Field(SETTINGS, TOKENS, (WORD, special(WORD), None)),
    Field(SETTINGS, "additional_special_tokens extra_special_tokens", ([WORD], [special(WORD)], {"a": WORD}, [])),
    Field(SETTINGS, "image_token", (WORD,)),
    Field(SETTINGS, "added_tokens_decoder", ({"9": special(WORD)},)),
    Field(SETTINGS, "added_tokens_decoder", ({"9": special(WORD, special=False, normalized=True, single_word=True)},)),
    Field(SETTINGS, "tokenizer_class", CLASSES),
    Field(SETTINGS, "model_max_length max_len", (9,)),
    Field(SETTINGS, GIVEN, (7, 3, "only_first", 8, 0), effect=False),
    Field(SETTINGS, OF_DECODING, (True, False), effect=False),
    Field(MAP, TOKENS, (WORD, special(WORD))),
    Field(MAP, "additional_special_tokens", ([WORD], [special(WORD)])),
    Field(ADDED, WORD, (9,)),
    Field(TOKENIZER, "truncation.direction padding.direction", ("Left",)),
    Field(TOKENIZER, REPLACED, (None,), effect=False),
    Field(TOKENIZER, "added_tokens", ([],)),
    Field(TOKENIZER, "normalizer pre_tokenizer post_processor model model.vocab model.merges model.type", (None,)),
    Field(TOKENIZER, PARTS),
    Field(TOKENIZER, OF_OFFSETS, effect=False),
    Field(BERT_CONFIG, "max_seq_length", (7, None)),
    Field(BERT_CONFIG, "do_lower_case", (True,)),
    Field(BERT_CONFIG, "unpad_inputs", effect=False),
    Field(BERT_CONFIG, UNUSUAL, ({"a": 1}, "fill-mask", 3)),
    Field(POOLING, MODES, (True, False)),
    Field(POOLING, "pooling_mode", ("cls", "lasttoken")),
    Field(POOLING, "include_prompt", (False,)),
    Field(POOLING, "word_embedding_dimension embedding_dimension", (31,)),
    Field(SENTENCE, "prompts default_prompt_name similarity_fn_name truncate_dim", (None,)),
    Field(SENTENCE, "__version__", ({},), effect=False),
    Field(SENTENCE, "model_type", ("CrossEncoder",)),
]


def row_of(file: str, name: str) -> Field | None:
    return next((row for row in TABLE if row.file == file and name in row.names.split()), None)


def made_up(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int | float):
        return (value + 1,)
    return ({str: "other", list: [], dict: {}}.get(type(value), True),)


def get(tree: Any, name: str) -> Any:
    for part in name.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def put(tree: dict[str, Any], name: str, value: Any) -> bool:
    """Set a field of a JSON tree; False if the object that holds it is not there, or if the field has the value."""
    *path, last = name.split(".")
    for part in path:
        tree = tree.get(part)  # type: ignore[assignment]
        if not isinstance(tree, dict) or last not in tree:
            return False
    if last in tree and tree[last] == value and type(tree[last]) is type(value):
        return False
    tree[last] = value
    return True


class Change(NamedTuple):
    row: Field
    name: str
    value: Any


def changes(directory: Path, word: str, number: int) -> list[Change]:
    """Every change to a directory; ``word`` of its vocabulary, and its id ``number``, replace WORD and 9."""
    out = []
    for row in TABLE:
        path = directory / row.file
        if not path.is_file() and row.file not in (SETTINGS, MAP, ADDED):
            continue
        tree = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        for name in row.names.split():
            for value in row.values or made_up(get(tree, name)):
                text = json.dumps(value).replace('"9"', f'"{number}"').replace(f'"{WORD}"', json.dumps(word))
                change = Change(row, word if name == WORD else name, number if row.file == ADDED else json.loads(text))
                if put(json.loads(json.dumps(tree)), change.name, change.value):
                    out.append(change)
    return out


def change(directory: Path, made: list[Change]) -> None:
    for row, name, value in made:
        path = directory / row.file
        tree = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        put(tree, name, value)
        path.write_text(json.dumps(tree), encoding="utf-8")


def keys(tree: Any, depth: int = 2) -> set[str]:
    """The names of a JSON tree's fields, with a dot between those of objects; of a vocabulary only the name."""
    out = set()
    for name, value in tree.items() if isinstance(tree, dict) else ():
        out.add(name)
        if depth > 1 and name not in ("vocab", "special_tokens", "added_tokens_decoder", "added_tokens"):
            out |= {f"{name}.{each}" for each in keys(value, depth - 1)}
    return out


def asked(source: str) -> set[str]:
    return set(re.findall(r"(?:kwargs|config|configuration|init_kwargs)\.(?:pop|get|setdefault)\(\s*\"(\w+)\"", source))
