"""Settings with which the census builds types of transformers that their defaults do not build, or not small."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

TINY_PERCEPTION = {"architecture": "vit_pe_core_tiny_patch16_384"}  # of timm, whose smallest it is
# Settings of types that cannot be built without them, or only large.
NEEDED: Mapping[str, Mapping[str, Any]] = {
    **{name: {"prediction_length": 4} for name in ("autoformer", "informer", "time_series_transformer")},
    **{name: {"head_dim": 32} for name in ("hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl_text", "ministral")},
    **{name: {"dropout_rate": 0.0} for name in ("t5gemma2_text", "t5gemma2_decoder")},
    **{name: {"vocabulary_map": {"<image>": 4, "IMGIMGAZ": 5}} for name in ("chameleon", "emu3")},
    "nemotron": {"num_key_value_heads": 48},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "pix2struct_text_model": {"initializer_range": 0.02},
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 64},
    "moonshine_streaming": {"num_key_value_heads": 8, "num_attention_heads": 8},
    "cohere_compass": {"text_config": {"rope_parameters": {
        kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("full_attention", "sliding_attention")}}},
    "idefics": {"freeze_vision_layers": False, "freeze_text_layers": False},
    "granite4_vision": {"downsample_rate": "4/8", "deepstack_layer_map": [[0, 0], [1, 1]],
                        "spatial_target_layers": [0, 0, 1, 1],
                        "vision_config": {"model_type": "siglip_vision_model", "patch_size": 16, "image_size": 256}},
    "diffusion_gemma": {"text_config": {"per_layer_config": {}, "moe_intermediate_size": 64, "num_experts": 8,
                                        "top_k_experts": 2}, "vision_config": {}},
    "gemma4_unified": {"text_config": {"per_layer_config": {}},
                       "vision_config": {"mm_embed_dim": 128, "output_proj_dims": 128}},
    "hunyuan_vl": {"text_config": {"head_dim": 32}},
    "maskformer": {"backbone_config": {
        "model_type": "swin", "image_size": 224, "embed_dim": 32, "window_size": 7, "depths": [1, 1, 1, 1],
        "num_heads": [2, 4, 8, 16], "out_features": ["stage1", "stage2", "stage3", "stage4"]}},
    "nougat": {"encoder": {"model_type": "donut-swin"}, "decoder": {"model_type": "mbart", "is_decoder": True,
                                                                  "add_cross_attention": True}},
    "pe_audio_video_encoder": {"video_config": {"model_type": "pe_video_encoder", "vision_config": TINY_PERCEPTION}},
    "pe_video_encoder": {"vision_config": TINY_PERCEPTION},
    "pe_video": {"video_config": {"vision_config": TINY_PERCEPTION}},
    "pe_audio_video": {"audio_video_config": {"video_config": {"vision_config": TINY_PERCEPTION}}},
    "perception_lm": {"vision_config": {**TINY_PERCEPTION, "model_args": {"embed_dim": 192}}},
    "t5gemma2_encoder": {"text_config": {"dropout_rate": 0.0}},
}  # fmt: skip
# Fields set after a config was made narrow: to a value, or to that of another field, if a path names one.
AFTERWARDS: Mapping[str, Mapping[str, Any]] = {
    "deepseek_ocr2": {"text_config.mlp_layer_types": ["dense", "sparse"]},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
    "florence2": {"vision_config.projection_dim": "text_config.hidden_size"},
    "granite_docling": {"vision_config.out_hidden_size": "text_config.hidden_size"},
    "hunyuan_vl": {"vision_config.out_hidden_size": "text_config.hidden_size",
                   "vision_config.text_hidden_size": "text_config.hidden_size"},
    "inkling2": {"vision_config.text_hidden_size": "text_config.hidden_size"},
    "janus": {"vq_config.base_channels": 32},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "molmo2": {"adapter_config.vision_feature_layer": [1, 0],
               "adapter_config.text_hidden_size": "text_config.hidden_size"},
    "muse_spark": {"audio_config.out_hidden_size": "text_config.hidden_size", "text_config.moe_intermediate_size": 64,
                   "text_config.moe_hidden_size": 64},
}  # fmt: skip
# The classes of types for which AutoModel has none, or a part alone.
CLASSES: Mapping[str, str] = {
    "musicgen": "MusicgenForConditionalGeneration",
    "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
    "nougat": "VisionEncoderDecoderModel",
    "pp_chart2table": "GotOcr2ForConditionalGeneration",
}
# Why the others cannot be built, where transformers' own message does not say it.
PART = "a part of a model: transformers has no model of this part alone"
NOT_BUILT: Mapping[str, str] = {
    "dinat": "needs the package natten",
    "layoutlmv2": "needs the package detectron2",
    "layoutxlm": "transformers has no model of this type: its files are those of LayoutLMv2, which needs detectron2",
    "nougat": "transformers rejects its own default, a part of type donut_swin, which it calls donut-swin. Files of "
              "Nougat have the type vision-encoder-decoder",
    "timm_backbone": "TimmBackbone.from_pretrained takes a name of timm, and no folder with a checkpoint",
    **dict.fromkeys(("glmga", "internlm3", "iquestcoder"), "transformers has a config of this type, but no model"),
}  # fmt: skip
IS_PART = re.compile(r"(encoder|decoder|head|perciever|module|vision|audio|text|tokenizer|diffusion)$")


def why_not_built(name: str, why: str) -> str:
    """Returns why a type cannot be built. why: the exception."""
    if why.startswith("LookupError") and IS_PART.search(name):
        return PART
    return NOT_BUILT.get(name, why)


def set_afterwards(config: Any, settings: Mapping[str, Any]) -> None:
    for path, value in settings.items():
        *above, name = path.split(".")
        if isinstance(value, str) and "." in value:
            value = field(config, value.split("."))
        setattr(field(config, above), name, value)


def field(config: Any, path: list[str]) -> Any:
    for name in path:
        config = getattr(config, name)
    return config
