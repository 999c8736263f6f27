"""Decides whether a config is so ordinary that the tables of its family can be reported without building the model.

transformers checks a config when it builds the model, and contradictions show there: a width that the heads do not
divide, an unknown activation, a number where a text is expected. Without the model, none of this shows. So every field
must be listed here and hold an ordinary value; with any other field or value, the model is built.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Config = Mapping[str, Any]

LARGEST = 2**31
MOST_LAYERS, MOST_GROUPS = 256, 12  # few enough to be built
ACTIVATIONS = ("gelu", "gelu_new", "gelu_fast", "quick_gelu", "relu", "silu", "tanh")
DTYPES = ("float32", "float16", "bfloat16")
TASKS = ("regression", "single_label_classification", "multi_label_classification")
# Model classes that hold all tables of a family: of several tables, and of one.
WHOLE = r"(Model|ForConditionalGeneration|ForSequenceClassification|ForQuestionAnswering)"
ANY = r"(LMHead|DoubleHeads)?Model|For[A-Z][A-Za-z]+"
WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")
HEADS = re.compile(r"heads$|^n_head$")
NULLS: Mapping[str, tuple[str, ...]] = {  # fields that may be null in some families alone
    "classifier_dropout": ("bert", "electra", "roberta", "xlm-roberta", "camembert"),
    "summary_activation": ("gpt2", "openai-gpt"),
    "decoder_start_token_id": ("mbart",),
}
ALIASES: Mapping[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd", "dim", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "encoder_layers"),
    "num_attention_heads": ("n_head", "n_heads", "encoder_attention_heads"),
    "num_key_value_heads": ("encoder_attention_heads",),
}


def is_int(value: Any, low: int, high: int = LARGEST) -> bool:
    return type(value) is int and low <= value <= high


def is_dict(value: Any, key: type, item: type) -> bool:
    return type(value) is dict and all(type(k) is key and type(v) is item for k, v in value.items())


# Names of fields, and what is ordinary there.
ORDINARY: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    ("vocab_size type_vocab_size hidden_size dim hidden_dim d_model n_embd embedding_size intermediate_size ffn_dim "
     "encoder_ffn_dim decoder_ffn_dim word_embed_proj_dim num_attention_heads n_head n_heads encoder_attention_heads "
     "decoder_attention_heads max_position_embeddings n_positions n_ctx image_size patch_size num_channels "
     "encoder_stride pooler_output_size projection_dim num_mel_bins max_source_positions max_target_positions "
     "classifier_proj_size median_filter_width mask_time_length mask_feature_length max_length num_beams num_labels "
     "down_scale_factor",
     lambda value: is_int(value, 1)),
    ("num_hidden_layers n_layer n_layers encoder_layers decoder_layers", lambda value: is_int(value, 1, MOST_LAYERS)),
    ("num_hidden_groups inner_group_num", lambda value: is_int(value, 1, MOST_GROUPS)),
    ("mask_time_min_masks mask_feature_min_masks no_repeat_ngram_size min_length net_structure_type gap_size "
     "num_memory_blocks", lambda value: is_int(value, 0)),
    ("n_inner", lambda value: value is None or is_int(value, 1)),
    ("bos_token_id eos_token_id pad_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id "
     "sep_token_id", lambda value: value is None or is_int(value, 0)),
    ("layers_to_keep", lambda value: value == []),
    ("suppress_tokens begin_suppress_tokens",
     lambda value: value is None or (type(value) is list and all(is_int(each, 0) for each in value))),
    ("dropout hidden_dropout_prob attention_probs_dropout_prob attention_dropout activation_dropout qa_dropout "
     "seq_classif_dropout classifier_dropout_prob resid_pdrop embd_pdrop attn_pdrop summary_first_dropout "
     "summary_last_dropout mask_time_prob mask_feature_prob",
     lambda value: type(value) in (int, float) and 0 <= value <= 1),
    ("classifier_dropout classif_dropout",
     lambda value: value is None or (type(value) in (int, float) and 0 <= value <= 1)),
    ("encoder_layerdrop decoder_layerdrop layerdrop", lambda value: type(value) is float and 0 <= value <= 1),
    ("layer_norm_eps layer_norm_epsilon initializer_range initializer_factor init_std logit_scale_init_value "
     "length_penalty",
     lambda value: type(value) is float and 0 < value < 100),
    ("use_cache tie_word_embeddings tie_weights_ gradient_checkpointing qkv_bias scale_embedding do_layer_norm_before "
     "enable_bias layer_norm_elementwise_affine summary_use_proj summary_proj_to_labels scale_attn_weights "
     "scale_attn_by_inverse_layer_idx reorder_and_upcast_attn return_dict is_encoder_decoder output_past "
     "normalize_before normalize_embedding add_final_layer_norm add_bias_logits predict_special_tokens "
     "use_weighted_layer_sum apply_spec_augment early_stopping", lambda value: type(value) is bool),
    ("is_decoder add_cross_attention sinusoidal_pos_embds output_attentions output_hidden_states "
     "static_position_embeddings _remove_final_layer_norm", lambda value: value is False),
    ("chunk_size_feed_forward", lambda value: is_int(value, 0, 0)),
    ("hidden_act activation activation_function afn pooler_act",
     lambda value: type(value) is str and value in ACTIVATIONS),
    ("summary_activation", lambda value: value is None or (type(value) is str and value in ACTIVATIONS)),
    ("summary_type", lambda value: type(value) is str and value in ("first", "last", "mean", "cls_index")),
    ("position_embedding_type", lambda value: value == "absolute"),
    ("torch_dtype dtype", lambda value: value is None or (type(value) is str and value in DTYPES)),
    ("problem_type", lambda value: value is None or (type(value) is str and value in TASKS)),
    ("model_type _name_or_path transformers_version prefix", lambda value: type(value) is str),
    ("architectures", lambda value: type(value) is list and len(value) == 1 and type(value[0]) is str),
    ("id2label", lambda value: is_dict(value, str, str) and all(key.isdecimal() for key in value)),
    ("label2id", lambda value: is_dict(value, str, int)),
    ("finetuning_task task_specific_params", lambda value: value is None or type(value) in (str, dict)),
)  # fmt: skip
FIELDS = {name: check for names, check in ORDINARY for name in names.split()}


def is_ordinary(config: Config, *, tables: int) -> bool:
    """Returns whether transformers certainly builds the model of a config as its family describes.

    tables: the number of tables that the model must hold.
    """
    parts = {name: value for name, value in config.items() if name in ("text_config", "vision_config")}
    whole = {name: value for name, value in config.items() if name not in parts}
    if not all(isinstance(part, Mapping) for part in parts.values()):
        return False
    values = ((name, value) for part in (whole, *parts.values()) for name, value in part.items())
    if not all(name in FIELDS and FIELDS[name](value) for name, value in values) or "model_type" not in whole:
        return False
    if any(whole.get(name, 0) is None and whole["model_type"] not in families for name, families in NULLS.items()):
        return False
    kind = f"(?i:{re.escape(whole['model_type'].replace('-', ''))})({ANY if tables == 1 else WHOLE})"
    if not all(re.fullmatch(kind, name) for name in whole.get("architectures", ())):
        return False
    return all(map(is_consistent, parts.values() if parts else (whole,)))


def is_consistent(part: Config) -> bool:
    """Returns whether the sizes in a config or section fit each other, and aliases equal the fields they stand for."""
    width = next((part[name] for name in WIDTHS if name in part), None)
    heads = [value for name, value in part.items() if HEADS.search(name)]
    if width is None or not heads or any(width % count for count in heads):
        return False
    if "d_model" in part and not {"pad_token_id", "encoder_attention_heads", "decoder_attention_heads"} <= set(part):
        return False
    padding, tokens = part.get("pad_token_id"), part.get("vocab_size")
    if padding is not None and (tokens is None or padding >= tokens):
        return False
    if part.get("image_size", 1) < part.get("patch_size", 1):
        return False
    pairs = (
        (part[alias], part[name]) for alias, names in ALIASES.items() for name in names if {alias, name} <= {*part}
    )
    return all(one == other for one, other in pairs)
