"""Tiny random models of whatever transformers can build: `tiny(model_type)`.

A configuration is made with its defaults and every number in it whose name says what it is (layers, heads, widths,
vocabularies, pictures) is made small; lists that follow from such numbers are made anew by the configuration itself. A
batch follows from what the model's forward takes. `ODD` holds what cannot be had that way, by model type.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import Tensor
from transformers import CONFIG_MAPPING

from attnscope.hf.loading.classes import candidates

BATCH, TOKENS, DECODER_TOKENS, VOCABULARY = 2, 12, 7, 96

_BY_NAME: dict[str, int] = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "layers", "depth", "num_blocks"), 2),
    **dict.fromkeys(("encoder_layers", "num_encoder_layers", "decoder_num_hidden_layers", "speech_encoder_layers"), 2),
    **dict.fromkeys(("decoder_layers", "num_decoder_layers", "t2u_encoder_layers", "t2u_decoder_layers"), 3),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "decoder_num_attention_heads"), 4),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "emb_dim"), 32),
    **dict.fromkeys(("hidden_dim", "embedding_dim", "decoder_hidden_size", "encoder_hidden_size"), 32),
    **dict.fromkeys(("out_hidden_size", "output_hidden_size", "projection_dim", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("head_dim", "d_kv", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "dim_head"), 8),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "rotary_dim"), 8),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "mlp_dim"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "d_inner", "n_inner"), 48),
    **dict.fromkeys(("decoder_intermediate_size", "ffn_hidden_size", "shared_intermediate_size"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_target_positions", "max_source_positions"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts"), 1),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "linear_num_heads"), 4),
    **dict.fromkeys(("mamba_d_state", "state_size", "ssm_state_size"), 8),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "mamba_d_head", "mamba_head_dim"), 8),
    **dict.fromkeys(("vocab_size", "text_vocab_size"), VOCABULARY),
    "num_key_value_heads": 2,
    "image_size": 32,
    "patch_size": 8,
    "window_size": 4,
    "sliding_window": 6,
    "num_mel_bins": 16,
    "num_queries": 6,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCABULARY,
    "block_size": 16,
    "mamba_chunk_size": 4,
    "chunk_size": 8,
    "num_frames": 4,
}
_BY_LIST: dict[str, Callable[[int], list[int]]] = {
    "depths": lambda n: [2] * n,
    "hidden_sizes": lambda n: [16 * 2 ** min(i, 2) for i in range(n)],
    "num_heads": lambda n: [2] * n,
    "num_attention_heads": lambda n: [2] * n,
    "image_size": lambda n: [32] * n,
    "conv_dim": lambda n: [16] * n,
    "tdnn_dim": lambda n: [16] * n,
}


@dataclass(frozen=True)
class Odd:
    """What one model type needs beyond the rules: settings, a class, a batch."""

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
_MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}  # half of a head of 8
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
    "longformer": Odd({"attention_window": 4}),
    "led": Odd({"attention_window": 4}),
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


def tiny(model_type: str) -> tuple[Any, dict[str, Tensor]]:
    """A small model of this type with random weights, in evaluation mode, and a batch it runs on."""
    odd = ODD.get(model_type, Odd())
    config = tiny_config(model_type)
    torch.manual_seed(7)
    chosen = [getattr(hf, odd.model_class)] if odd.model_class else candidates(config)
    if not chosen:
        raise LookupError(f"transformers has no model class for '{model_type}' alone")
    model = chosen[0]._from_config(config).eval()
    torch.manual_seed(8)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():  # fresh weights make attention nearly uniform: mistakes would hide
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model, (odd.batch or batch_for)(model)


def tiny_config(model_type: str) -> Any:
    cls = CONFIG_MAPPING[model_type]
    given = ODD.get(model_type, Odd()).settings or {}
    settings = _small(cls())
    config = cls(**_joined(settings, given))
    return config


def _small(config: Any) -> dict[str, Any]:
    """The settings of a configuration that are not small already, made small; of those inside it too."""
    small: dict[str, Any] = {}
    for name, value in vars(config).items():
        if isinstance(value, hf.PreTrainedConfig):
            small[name] = {"model_type": value.model_type, **_small(value)}
        elif isinstance(value, bool) or name.startswith("_"):
            continue
        elif isinstance(value, int) and name in _BY_NAME:
            small[name] = min(value, _BY_NAME[name]) if value > 0 else value
        elif isinstance(value, int) and name.endswith(("_token_id", "_token_index")) and value >= VOCABULARY:
            small[name] = None  # numbered below, apart from each other
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], int) and name in _BY_LIST:
            small[name] = _BY_LIST[name](len(value))
    rope = getattr(config, "rope_parameters", None)
    if isinstance(rope, Mapping) and "mrope_section" in rope:
        small["rope_parameters"] = {**rope, "mrope_section": [2, 1, 1]}  # half of a head of 8
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    if isinstance(kinds, (list, tuple)) and len(set(kinds)) > 1 and "num_hidden_layers" in small:
        # hybrids: as many layers as it takes to have one of every kind
        enough = 1 + max(list(kinds).index(kind) for kind in set(kinds))
        if enough <= 12:
            small["num_hidden_layers"] = max(2, enough)
            for name in ("layer_types", "layers_block_type"):
                if name in vars(config):
                    small[name] = list(kinds[: small["num_hidden_layers"]])
    if "num_key_value_heads" in small and "num_attention_heads" in small:
        same = config.num_key_value_heads == config.num_attention_heads
        small["num_key_value_heads"] = small["num_attention_heads"] if same else min(2, config.num_key_value_heads)
    special = [name for name, value in small.items() if value is None]
    small.update({name: VOCABULARY - 1 - number for number, name in enumerate(special)})
    return small


def _joined(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`more` over `base`, inside settings that are mappings too."""
    both = dict(base)
    for name, value in more.items():
        inner = both.get(name)
        both[name] = _joined(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return both


# batches


def batch_for(model: Any) -> dict[str, Tensor]:
    """Inputs by what the model's forward takes, from the first one it wants to the ones it cannot do without."""
    takes = inspect.signature(model.forward).parameters
    config = model.config
    needed = {n for n, p in takes.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    main = getattr(model, "main_input_name", "input_ids")
    wanted = needed | {main}
    towers = {"vision_config", "text_config"} <= set(vars(config)) or "text_config" in vars(config)
    if towers:
        wanted |= {"input_ids", "pixel_values", "input_features", "input_values"} & set(takes)
    batch: dict[str, Tensor] = {}
    torch.manual_seed(9)
    if "pixel_values" in wanted and "pixel_values" in takes:
        batch |= pictures(model, takes)
    if "pixel_values_videos" in wanted:
        batch["pixel_values_videos"] = _videos(config)
    if "input_features" in wanted and "input_features" in takes:
        batch["input_features"] = sounds(config)
    if "input_values" in wanted and "input_values" in takes:
        batch["input_values"] = torch.randn(BATCH, 2000)
    if "input_ids" in wanted and "input_ids" in takes:
        batch["input_ids"] = words(config)
        if "attention_mask" in takes:
            batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        if "bbox" in takes:
            batch["bbox"] = torch.tensor([1, 2, 5, 9]).expand(*batch["input_ids"].shape, 4).contiguous()
    if "decoder_input_ids" in takes and getattr(config, "is_encoder_decoder", False):
        batch["decoder_input_ids"] = words(config, DECODER_TOKENS)
    if batch.keys() >= {"input_ids", "pixel_values"}:
        batch = with_image_tokens(model, batch)
    return batch


def words(config: Any, tokens: int = TOKENS) -> Tensor:
    """Token ids that are none of the special ones, which stand at both ends of a vocabulary."""
    text = config.get_text_config() if callable(getattr(config, "get_text_config", None)) else config
    vocabulary = getattr(text, "vocab_size", None) or getattr(config, "vocab_size", None) or VOCABULARY
    return torch.randint(4, max(5, min(vocabulary, VOCABULARY) - 16), (BATCH, tokens))


def pictures(model: Any, takes: Mapping[str, Any]) -> dict[str, Tensor]:
    config = (
        getattr(model.config, "vision_config", None) or getattr(model.config, "backbone_config", None) or model.config
    )
    size = getattr(config, "image_size", None) or getattr(model.config, "image_size", None) or 32
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    channels = getattr(config, "num_channels", 3)
    channels = channels if isinstance(channels, int) else 3
    frames = getattr(config, "num_frames", None)
    if "image_grid_thw" in takes:
        time, patch = getattr(config, "temporal_patch_size", 1), config.patch_size
        channels = getattr(config, "in_channels", channels)
        return {
            "pixel_values": torch.randn(BATCH * 16, channels * time * patch * patch),
            "image_grid_thw": torch.tensor([[1, 4, 4]] * BATCH),
        }
    shape = (BATCH, frames, channels, height, width) if frames else (BATCH, channels, height, width)
    return {"pixel_values": torch.randn(*shape)}


def _videos(config: Any) -> Tensor:
    frames = int(getattr(config, "frames_per_clip", None) or getattr(config, "num_frames", None) or 4)
    size = int(getattr(config, "crop_size", None) or getattr(config, "image_size", None) or 32)
    return torch.randn(BATCH, frames, 3, size, size)


def sounds(config: Any) -> Tensor:
    bins = getattr(config, "num_mel_bins", None) or getattr(config, "input_feat_per_channel", None) or 16
    length = 2 * getattr(config, "max_source_positions", 32)
    by_time = getattr(config, "feature_projection_input_dim", None)
    if by_time:
        return torch.randn(BATCH, length, by_time)
    return torch.randn(BATCH, bins, length)


def with_image_tokens(model: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """As many placeholders before the text as the model makes features of its pictures."""
    names = ("image_token_id", "image_token_index")
    place = next((token for name in names if isinstance(token := getattr(model.config, name, None), int)), None)
    if place is None or not hasattr(model, "get_image_features"):
        return batch
    picture = {n: v for n, v in batch.items() if n.startswith(("pixel", "image"))}
    takes = inspect.signature(model.get_image_features).parameters
    with torch.no_grad():
        found = model.get_image_features(**{n: v for n, v in picture.items() if n in takes})
    found = getattr(found, "pooler_output", found)
    found = found if isinstance(found, Tensor) else torch.cat([f.flatten(0, -2) for f in found])
    each = found.numel() // found.shape[-1] // BATCH
    ids = torch.cat([torch.full((BATCH, each), place), batch["input_ids"]], dim=1)
    more = {"mm_token_type_ids": (ids == place).long()} if "mm_token_type_ids" in _takes(model) else {}
    return {**batch, "input_ids": ids, "attention_mask": torch.ones_like(ids), **more}


def _takes(model: Any) -> Mapping[str, Any]:
    return inspect.signature(model.forward).parameters
