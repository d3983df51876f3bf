"""By which rules a family's default configuration is made small: tables of members and their values."""

from __future__ import annotations

import re
from typing import Any

VOCABULARY = 97
EOS = 2
POSITIONS = 256
LAYERS = 3

LAYER_NAMES = r"(num_)?hidden_layers|num_layers|n_layers?|(num_)?(en|de)coder_layers|num_blocks|depth"

# The first rule that matches a member's name gives its value; others above 128 become 32
RULES: tuple[tuple[str, int], ...] = (
    (r"(.*_)?vocab_size(_.*)?", VOCABULARY),
    (r"pad_token_id", 0),
    (r"bos_token_id|decoder_start_token_id", 1),
    (r"eos_token_id|forced_eos_token_id", EOS),
    (LAYER_NAMES, LAYERS),
    (r"hidden_size_per_layer_input|laurel_rank|ple_embed_dim", 16),
    (r"hidden_size(_global)?|n_embd|d_model|emb_dim|embedding_(dim|size)|lru_width", 64),
    (r"word_embed_proj_dim|(in|out)put_embedding_size|attention_hidden_size", 64),
    (r"(num_|n_|swa_num_)?key_value_heads|num_kv_heads|kv_n_heads", 2),
    (r"(conf_|swa_)?(num_)?(en|de)?(coder_)?(attention_heads|heads)|n_heads?|num_query_groups", 4),
    (r"linear_num_(key|value)_heads|linear_num_heads", 4),
    (r"qk_head_dim", 24),
    (r"qk_rope_head_dim|rotary_dim", 8),
    (r"(.*_)?head_dim|d_head|dim_head|attention_head_size|d_kv|kv_channels|mamba_headdim", 16),
    (r"(.*_)?lora_rank|adapter_rank|hc_lowrank|prompt_mid_dim", 16),
    (r"moe_intermediate_size|(.*_)?shared_expert.*_size|expert_ffn_hidden_size|shared_intermediate_size", 32),
    (r"(.*_)?intermediate_size(_mlp)?|(.*_)?ffn_dim|ffn_hidden_size|dff|d_ff|dim_ff|n_inner|mlp_dim", 96),
    (r"(n_routed|num|num_local|moe_num)_experts|zero_expert_num", 4),
    (r"num_experts_per_tok(en)?|moe_top_?k|moe_k", 2),
    (r"n_group|topk_group|num_expert_group|o_groups|mamba_n_?groups|n_groups|first_k_dense_replace", 1),
    (r"index_topk|index_block_size", 8),
    (r"index_topk_blocks", 2),
    (r"max_position_embeddings|n_positions|n_ctx|max_seq_len|max_(source|target)_positions", POSITIONS),
    (
        r"context_length|original_max_position_embeddings|model_max_length|position_bias_max_distance",
        POSITIONS,
    ),
    (r"(.*_)?sliding_window(_size)?|window_size|attention_window_size|local_attention(_window_len)?", 6),
    (r"mamba_d_state|ssm_state_size|state_size|time_step_rank|mamba_dt_rank", 8),
    (r"(mamba_)?chunk_size", 8),
    (r"mamba_(n|num)_heads", 8),
    (r"mamba_d_head", 16),
    (r"mamba_d_ssm", 128),
    (r"image_size", 32),
    (r"patch_size", 8),
    (r"block_size|attention_chunk_size|(local|lsh)_attn_chunk_length", 16),
)
# What some families leave open by default, and then can't do without
MISSED = {
    "head_dim": 16,
    "num_key_value_heads": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
}
KEPT = re.compile(r"seed|.*(scale|factor|multiplier).*|.*sampling_rate|hop_length|.*_pattern|floor_.*")

_MAMBA_HEADS = {"attention_hidden_size": 128, "attention_head_dim": 32, "mamba_headdim": 16}
_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
_FOUR_LAYERS = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
}
_SEEING_ROPE = {"text_config": {"rope_parameters": {**_ROPE, "mrope_section": [4, 2, 2]}}}  # of half a head
_LLAMA_4 = {"floor_scale": 8, "attn_temperature_tuning": True}
_INDEXER = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
}

# What the rules don't find out
OWN: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "chameleon": {
        "vocabulary_map": {"<image>": 3, "IMGIMGAZ": 4, "IMGIMGBZ": 5},
        "vq_config": {"base_channels": 32, "channel_multiplier": [1, 1]},
    },
    "cohere_compass_text": {
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            kind: {**_ROPE, "mrope_section": [4, 2, 2]} for kind in ("full_attention", "sliding_attention")
        },
    },
    "dbrx": {"attn_config": {"rope_theta": 10_000.0, "clip_qkv": 8.0}},
    "deepseek_v4": {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8}},
    "doge": {"keep_window_size": POSITIONS},  # beyond it equal keys are chosen from by how many there are
    "dots1": {"n_shared_experts": 1},
    "dots3_note_text": {"per_layer_config": {}, "head_dim": 24},
    "gemma3n_text": {
        **_FOUR_LAYERS,
        "intermediate_size": [96] * 4,
        "activation_sparsity_pattern": [0.5, 0.0] * 2,
    },
    **dict.fromkeys(
        (
            "glm46v",
            "glm4v",
            "glm_ocr",
            "glmga",
            "paddleocr_vl",
            "qwen2_5_omni_thinker",
            "qwen2_5_vl",
            "qwen2_vl",
        ),
        _SEEING_ROPE,
    ),
    "glm4v_moe": {"text_config": {"rope_parameters": {**_ROPE, "mrope_section": [2, 1, 1]}}},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "jamba": {"attn_layer_period": 3, "attn_layer_offset": 1},
    "llama4": _LLAMA_4,
    "llama4_text": _LLAMA_4,
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"], "full_attn_idxs": [1]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"]},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "qwen4_exp_text": _INDEXER,
    "qwen4_exp": {"text_config": _INDEXER},
    "reformer": {
        "attn_layers": ["local", "lsh", "local"],
        "axial_pos_shape": (16, 16),
        "axial_pos_embds_dim": (16, 48),
        "num_buckets": 4,
        "hash_seed": 0,  # without it each forward draws other hashes
    },
    "xlstm": {"hidden_size": 128, "embedding_dim": 128},
    "xmod": {"default_language": "en_XX"},
    "zamba": _MAMBA_HEADS,
    "zamba2": {**_MAMBA_HEADS, "hybrid_layer_ids": [1]},
}
