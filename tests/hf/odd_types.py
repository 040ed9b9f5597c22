"""Settings, classes and batches of model types for which the rules of `tests.hf.tiny` are not enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.hf.tiny_batches import BATCH, TOKENS, VOCABULARY, batch_for, words


@dataclass(frozen=True)
class Odd:
    """The settings, the class and the batch of one model type, if the rules are not enough."""

    settings: Mapping[str, Any] | None = None
    model_class: str | None = None
    batch: Callable[[Any], dict[str, Tensor]] | None = None


def _with_pictures(model: Any) -> dict[str, Tensor]:
    batch = batch_for(model)
    batch["visual_feats"] = torch.randn(BATCH, 9, model.config.visual_feat_dim)
    batch["visual_pos"] = torch.rand(BATCH, 9, 4)
    return batch


def _series(model: Any) -> dict[str, Tensor]:
    config = model.config
    past = config.context_length + max(config.lags_sequence)
    ahead = config.prediction_length
    return {
        "past_values": torch.randn(BATCH, past),
        "past_time_features": torch.randn(BATCH, past, config.num_time_features),
        "past_observed_mask": torch.ones(BATCH, past),
        "future_values": torch.randn(BATCH, ahead),
        "future_time_features": torch.randn(BATCH, ahead, config.num_time_features),
    }


def _channels(model: Any) -> dict[str, Tensor]:
    return {"past_values": torch.randn(BATCH, model.config.context_length, model.config.num_input_channels)}


def _decisions(model: Any) -> dict[str, Tensor]:
    config = model.config
    return {
        "states": torch.randn(BATCH, TOKENS, config.state_dim),
        "actions": torch.randn(BATCH, TOKENS, config.act_dim),
        "rewards": torch.randn(BATCH, TOKENS, 1),
        "returns_to_go": torch.randn(BATCH, TOKENS, 1),
        "timesteps": torch.arange(TOKENS).expand(BATCH, TOKENS).contiguous(),
        "attention_mask": torch.ones(BATCH, TOKENS, dtype=torch.long),
    }


_SERIES = {"prediction_length": 6, "context_length": 12, "num_time_features": 1, "lags_sequence": [1, 2]}
# sections: half of a head of 8
_MROPE = {
    "rope_type": "default",
    "rope_theta": 1e4,
    "partial_rotary_factor": 1.0,
    "mrope_section": [2, 1, 1],
}  # half of a head of 8
_MROPE_FAMILIES = ("glm4v", "glm46v", "glm4v_moe", "glm_ocr", "glm_image", "glmga", "colqwen2")
_PATCHES = {"context_length": 32, "patch_length": 4, "patch_stride": 4, "num_input_channels": 3}

_SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4}

ODD: dict[str, Odd] = {
    "lxmert": Odd({"l_layers": 2, "r_layers": 2, "x_layers": 2}, "LxmertModel", _with_pictures),
    "prophetnet": Odd({"num_encoder_layers": 2, "num_decoder_layers": 2}),
    "informer": Odd(_SERIES, None, _series),
    "autoformer": Odd(_SERIES, None, _series),
    "time_series_transformer": Odd(_SERIES, None, _series),
    "patchtst": Odd(_PATCHES, None, _channels),
    "patchtsmixer": Odd(_PATCHES, None, _channels),
    "decision_transformer": Odd({"max_ep_len": 40}, "DecisionTransformerModel", _decisions),
    "swin": Odd(_SWIN),
    "swinv2": Odd(_SWIN),
    "donut-swin": Odd(_SWIN),
    "swin2sr": Odd({"image_size": 16, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4}),
    "maskformer-swin": Odd(_SWIN),
    "funnel": Odd({"block_sizes": [2, 2], "d_head": 8}),
    "reformer": Odd(
        {
            "axial_pos_embds_dim": [16, 16],
            "axial_pos_shape": [4, 4],
            "attn_layers": ["local", "lsh"],
            "attention_head_size": 8,
            "lsh_attn_chunk_length": 4,
            "local_attn_chunk_length": 4,
            "num_buckets": 2,
            "feed_forward_size": 48,
            "is_decoder": False,
        },
        "ReformerModel",
        lambda model: {"input_ids": words(model.config, 16)},
    ),
    "layoutlmv3": Odd({"input_size": 32, "patch_size": 8, "coordinate_size": 6, "shape_size": 4}),
    "qwen2_vl": Odd(
        {"vision_config": {"embed_dim": 32, "hidden_size": 32}, "text_config": {"rope_parameters": _MROPE}}
    ),
    "qwen2_vl_text": Odd({"rope_parameters": _MROPE}),
    "clap": Odd(
        {
            "audio_config": {
                "spec_size": 32,
                "num_mel_bins": 8,
                "patch_size": 4,
                "patch_stride": [4, 4],
                "depths": [2, 2],
                "num_attention_heads": [2, 2],
                "window_size": 4,
                "patch_embeds_hidden_size": 16,
                "hidden_size": 32,
            },
            "text_config": {"projection_dim": 32},
        },
        None,
        lambda model: {
            "input_ids": words(model.config),
            "input_features": torch.randn(BATCH, 1, 128, 8),
            "is_longer": torch.zeros(BATCH, 1, dtype=torch.bool),
        },
    ),
    **{f"{name}_text": Odd({"rope_parameters": _MROPE}) for name in _MROPE_FAMILIES},
    **{name: Odd({"text_config": {"rope_parameters": _MROPE}}) for name in _MROPE_FAMILIES},
    **{name: Odd({"image_grid_pinpoints": [[32, 32]]}) for name in ("llava_next", "llava_next_video")},
    "llava_onevision": Odd({"image_grid_pinpoints": [[32, 32]]}),
    "blip-2": Odd({"image_token_index": 90, "num_query_tokens": 4}),
    "instructblip": Odd({"image_token_index": 90, "num_query_tokens": 4}),
    "bridgetower": Odd({"vision_config": {"hidden_size": 64}}),
    "bridgetower_vision_model": Odd({"hidden_size": 64}),
    "mamba2": Odd({"num_heads": 8, "head_dim": 8, "expand": 2, "hidden_size": 32}),
    "lfm2_moe": Odd({"layer_types": ["conv", "full_attention"]}),
    "ernie4_5_moe": Odd({"moe_k": 2}),
    "longformer": Odd({"attention_window": 4}),
    "led": Odd({"attention_window": 4}),
    "longt5": Odd({"local_radius": 3}),
    "sam": Odd(
        {
            "vision_config": {
                "image_size": 32,
                "patch_size": 8,
                "output_channels": 32,
                "num_pos_feats": 16,
                "window_size": 3,
                "global_attn_indexes": [1],
            },
            "prompt_encoder_config": {
                "hidden_size": 32,
                "num_point_embeddings": 4,
                "image_size": 32,
                "patch_size": 8,
                "image_embedding_size": 4,
            },
            "mask_decoder_config": {"hidden_size": 32, "mlp_dim": 48, "iou_head_hidden_dim": 32},
        }
    ),
    "gpt_neo": Odd({"attention_types": [[["global", "local"], 1]], "window_size": 4}),
    "gemma3": Odd({"mm_tokens_per_image": 4}),
    "esm": Odd({"vocab_size": VOCABULARY, "pad_token_id": 1, "mask_token_id": 2}),
    "bamba": Odd({"num_hidden_layers": 4, "attn_layer_indices": [2], "mamba_n_groups": 1}),
    "granitemoehybrid": Odd(
        {"num_hidden_layers": 3, "layer_types": ["mamba", "mamba", "attention"], "mamba_n_groups": 1}
    ),
    "kimi_linear": Odd({"num_experts_per_tok": 2, "num_experts": 4}),
    "deepseek_v2": Odd({"num_experts_per_tok": 2}),
    "falcon_h1": Odd({"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1}),
}
