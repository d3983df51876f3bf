"""Toys that see: a family's toy with the small eyes, the tokenizer and the processor that it needs.

What the processor is made of is transformers' own; sizes are small, and each marker that a family's
prompts have is a token.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
)
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

from inference.vision.processor import Processor

EOS = "<eos>"
_SPREAD = 0.15  # as of other toys
_TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
}
_EYES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
_CROPPED = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
_SQUARE = {"size": {"height": 32, "width": 32}}
_QWEN_EYES: dict[str, Any] = {"depth": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
_QWEN_ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 2, 2]}
_QWEN_PIXELS = {
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 256,
    "max_pixels": 4096,
}
_QWEN = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}

# Of each family: its language model, and its configuration's own members, the eyes', the image processor's
# and the processor's; members whose value is a token's text get that token's id in the configuration.
_FAMILIES: dict[str, dict[str, Any]] = {
    "llava": {
        "text": {"model_type": "llama"},
        "eyes": {"model_type": "clip_vision_model", **_EYES, "image_size": 32, "patch_size": 8},
        "own": {"image_token_index": "<image>", "vision_feature_layer": -1},
        "pixels": _CROPPED,
        "processor": {
            "patch_size": 8,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    },
    "llava_next": {
        "text": {"model_type": "mistral", "sliding_window": None},
        "eyes": {"model_type": "clip_vision_model", **_EYES, "image_size": 32, "patch_size": 8},
        "own": {
            "image_token_index": "<image>",
            "vision_feature_layer": -1,
            "image_grid_pinpoints": [[32, 64], [64, 32], [64, 64]],
        },
        "pixels": {**_CROPPED, "image_grid_pinpoints": [[32, 64], [64, 32], [64, 64]]},
        "processor": {
            "patch_size": 8,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    },
    "idefics3": {
        "text": {"model_type": "llama"},
        "eyes": {**_EYES, "image_size": 32, "patch_size": 8},
        "own": {"image_token_id": "<image>", "scale_factor": 2},
        "pixels": {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}},
        "processor": {"image_seq_len": 4},
        "marks": (
            "<fake_token_around_image>",
            "<global-img>",
            "<end_of_utterance>",
            "<row_1_col_1>",
            "<row_1_col_2>",
            "<row_2_col_1>",
            "<row_2_col_2>",
        ),
    },
    "qwen2_vl": {
        "text": {"rope_parameters": _QWEN_ROPE},
        "eyes": {**_QWEN_EYES, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2},
        "own": _QWEN,
        "pixels": _QWEN_PIXELS,
        "processor": {},
    },
    "qwen2_5_vl": {
        "text": {"rope_parameters": _QWEN_ROPE},
        "eyes": {
            **_QWEN_EYES,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": 64,
            "window_size": 16,
            "fullatt_block_indexes": [1],
        },
        "own": _QWEN,
        "pixels": _QWEN_PIXELS,
        "processor": {},
    },
    "gemma3": {
        "text": {
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        "eyes": {**_EYES, "image_size": 32, "patch_size": 8},
        "own": {
            "image_token_index": "<image_soft_token>",
            "boi_token_index": "<start_of_image>",
            "eoi_token_index": "<end_of_image>",
            "mm_tokens_per_image": 16,
        },
        "pixels": _SQUARE,
        "processor": {"image_seq_length": 16},
        "runs": ("\n\n", "\n\n\n", "\n\n\n\n"),  # tokens of its own, beside which its images have line breaks
    },
}
_FAMILIES["smolvlm"] = _FAMILIES["idefics3"]
_PATCHES = {"image_size": 32, "patch_size": 8}
_FAMILIES["vipllava"] = {
    **_FAMILIES["llava"],
    "own": {"image_token_index": "<image>", "vision_feature_layers": [-1, -2]},
}
_FAMILIES["llava_onevision"] = {
    "text": {"model_type": "qwen2"},
    "eyes": {"model_type": "siglip_vision_model", **_EYES, **_PATCHES},
    "own": {
        "image_token_index": "<image>",
        "video_token_index": "<video>",
        "image_grid_pinpoints": [[32, 64], [64, 32], [64, 64]],
        "vision_feature_layer": -1,
    },
    "pixels": {**_SQUARE, "image_grid_pinpoints": [[32, 64], [64, 32], [64, 64]]},
    "processor": {"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
}
_FAMILIES["mistral3"] = {
    "text": {"model_type": "mistral", "sliding_window": None},
    "eyes": {"model_type": "pixtral", **_EYES, "head_dim": 16, **_PATCHES},
    "own": {"image_token_index": "[IMG]", "spatial_merge_size": 2, "vision_feature_layer": -1},
    "pixels": {"size": {"longest_edge": 64}, "patch_size": 16},
    "processor": {"patch_size": 8, "spatial_merge_size": 2},
    "marks": ("[IMG_BREAK]", "[IMG_END]"),
}
_FAMILIES["internvl"] = {
    "text": {"model_type": "qwen2"},
    "eyes": {**_EYES, "image_size": [32, 32], "patch_size": [8, 8]},
    "own": {"image_token_id": "<IMG_CONTEXT>", "image_seq_length": 4, "downsample_ratio": 0.5},
    "pixels": {**_SQUARE, "crop_to_patches": True, "min_patches": 1, "max_patches": 4},
    "processor": {"image_seq_length": 4},
    "marks": ("<img>", "</img>", "<video>"),
}
_FAMILIES["aya_vision"] = {
    "text": {"model_type": "cohere2", "layer_types": ["full_attention"] * 3},
    "eyes": {"model_type": "siglip_vision_model", **_EYES, **_PATCHES},
    "own": {"image_token_index": "<|IMG_PATCH|>", "downsample_factor": 2, "vision_feature_layer": -1},
    "pixels": {**_SQUARE, "crop_to_patches": True, "min_patches": 1, "max_patches": 4},
    "processor": {"patch_size": 8, "img_size": 32, "downsample_factor": 2},
    "marks": (
        "<image>",
        "<|START_OF_IMG|>",
        "<|END_OF_IMG|>",
        "TILE_GLOBAL",
        "TILE_1",
        "TILE_2",
        "TILE_3",
        "TILE_4",
    ),
}
_FAMILIES["qwen3_vl"] = {
    "text": {"rope_parameters": {**_QWEN_ROPE, "mrope_interleaved": True}},
    "eyes": {
        **_QWEN_EYES,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "out_hidden_size": 64,
        "deepstack_visual_indexes": [0],
        "num_position_embeddings": 64,
    },
    "own": _QWEN,
    "pixels": _QWEN_PIXELS,
    "processor": {},
}
_FAMILIES["idefics2"] = {
    "text": {"model_type": "mistral", "sliding_window": None},
    "eyes": {**_EYES, **_PATCHES},
    "own": {
        "image_token_id": "<image>",
        "perceiver_config": {
            "hidden_size": 64,
            "resampler_n_latents": 4,
            "resampler_depth": 1,
            "resampler_n_heads": 2,
            "resampler_head_dim": 16,
            "num_key_value_heads": 1,
        },
    },
    "pixels": {"size": {"shortest_edge": 24, "longest_edge": 32}, "do_image_splitting": True},
    "processor": {"image_seq_len": 4},
    "marks": ("<fake_token_around_image>", "<end_of_utterance>"),
}
_PLACEHOLDERS = {"qwen2_vl": "<|vision_start|><|image_pad|><|vision_end|>", "gemma3": "<start_of_image>"}
_PLACEHOLDERS["qwen3_vl"] = _PLACEHOLDERS["qwen2_5_vl"] = _PLACEHOLDERS["qwen2_vl"]
_PLACEHOLDERS |= {"mistral3": "[IMG]", "internvl": "<IMG_CONTEXT>"}
_NAMED = {  # tokens that a family's processor finds by these names
    "gemma3": {
        "image_token": "<image_soft_token>",
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
    },
    "idefics2": {"image_token": "<image>", "image_boundary_token": "<fake_token_around_image>"},
    "internvl": {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    },
}
SEEING = tuple(_FAMILIES)


def placeholder(family: str) -> str:
    """Return what a family's chat template writes for an image."""
    return _PLACEHOLDERS.get(family, "<image>")


def save_seeing_toy(family: str, directory: Path, seed: int = 0) -> tuple[PreTrainedModel, ProcessorMixin]:
    """Return a random model of a family and its processor, after both were saved in `directory`."""
    parts = _FAMILIES[family]
    tokenizer = _tokenizer(parts, family)
    model = _model(family, parts, tokenizer, seed)
    model.save_pretrained(directory)
    classes = IMAGE_PROCESSOR_MAPPING[type(model.config)]
    classes["pil"](**parts["pixels"]).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    (directory / "processor_config.json").write_text(json.dumps(parts["processor"]))
    (directory / "chat_template.jinja").write_text(_template(family))
    return model, Processor(directory, model.config).own


def _tokenizer(parts: dict[str, Any], family: str) -> PreTrainedTokenizerFast:
    alphabet = ["<pad>", "<bos>", EOS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    inner = Tokenizer(models.BPE(vocab={char: at for at, char in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    marks = [text for text in parts["own"].values() if isinstance(text, str)]
    texts = dict.fromkeys(("<pad>", "<bos>", EOS, *marks, *parts.get("marks", ())))
    inner.add_special_tokens([AddedToken(text, special=True) for text in texts])
    inner.add_tokens([AddedToken(text, normalized=False) for text in parts.get("runs", ())])
    extra = _NAMED.get(family, {"image_token": marks[0]})
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token=EOS,
        extra_special_tokens=extra,
    )


def _model(
    family: str, parts: dict[str, Any], tokenizer: PreTrainedTokenizerFast, seed: int
) -> PreTrainedModel:
    ids = tokenizer.get_vocab()
    own = {name: ids[value] if isinstance(value, str) else value for name, value in parts["own"].items()}
    text = {**_TEXT, "vocab_size": len(ids), "bos_token_id": 1, "eos_token_id": 2, **parts["text"]}
    config = AutoConfig.for_model(
        family, text_config=text, vision_config=parts["eyes"], tie_word_embeddings=False, **own
    )
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForImageTextToText.from_config(config, attn_implementation="eager")
    model.eval().float()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=_SPREAD)
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=0)
    return model


def _template(family: str) -> str:
    return (
        "{% for message in messages %}<bos>{{ message.role }}: "
        "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
        "{% if part.type == 'image' %}" + placeholder(family) + "{% else %}{{ part.text }}{% endif %}"
        "{% endfor %}{% endif %}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
