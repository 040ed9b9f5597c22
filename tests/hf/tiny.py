"""Tiny random models of any type of transformers: `tiny(model_type)`.

Start from the default configuration, and make all numbers small whose names are known (layers, heads, widths,
vocabularies, pictures); the configuration recomputes the lists that depend on them. If a model does not run that way,
its widths stay at their defaults. Batches are tried in the order of `tests.hf.tiny_batches`. `tests.hf.odd_types` has
the types for which these rules are not enough.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers as hf
from torch import Tensor
from transformers import CONFIG_MAPPING

from attnscope.hf.loading.classes import candidates
from tests.hf.odd_types import ODD, Odd
from tests.hf.tiny_batches import VOCABULARY, batches_for

_MOST_PARAMETERS = 30_000_000

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
    "entity_vocab_size": VOCABULARY,
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
_WIDTHS = frozenset(
    name
    for name, value in _BY_NAME.items()
    if value in (4, 8, 32, 48) and not name.endswith(("layers", "experts", "num_local_experts", "num_frames"))
)


def tiny(model_type: str) -> tuple[Any, dict[str, Tensor]]:
    """Return a small model of this type with random weights, in evaluation mode, and a batch that it runs on."""
    first: Exception | None = None
    for widths in (True, False):
        try:
            config = tiny_config(model_type, widths)
            if not widths:
                _refuse_large(model_type, config)
            model = _built(model_type, config)
            return model, _batch_it_runs_on(model_type, model)
        except Exception as error:
            first = first or error
    assert first is not None
    raise first


def _class_of(model_type: str, config: Any) -> Any:
    odd = ODD.get(model_type, Odd())
    chosen = [getattr(hf, odd.model_class)] if odd.model_class else candidates(config) or _parts(config)
    if not chosen:
        raise LookupError(f"transformers has no model class for '{model_type}' alone")
    return chosen[0]


def _refuse_large(model_type: str, config: Any) -> None:
    with torch.device("meta"):
        size = sum(p.numel() for p in _class_of(model_type, config)._from_config(config).parameters())
    if size > _MOST_PARAMETERS:
        raise LookupError(f"'{model_type}' has {size:,} parameters where its widths are not made small")


def _built(model_type: str, config: Any) -> Any:
    torch.manual_seed(7)
    model = _class_of(model_type, config)._from_config(config).eval()
    torch.manual_seed(8)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():  # initial weights make attention nearly uniform, which would hide errors
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def _parts(config: Any) -> list[Any]:
    """Return the model classes in the file of a configuration, for parts of models that no registry lists."""
    code = importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
    found: list[Any] = [
        cls
        for _, cls in inspect.getmembers(code, inspect.isclass)
        if issubclass(cls, hf.PreTrainedModel)
        and getattr(cls, "config_class", None) is type(config)
        and not inspect.isabstract(cls)
    ]
    return sorted((cls for cls in found if "forward" in vars(cls)), key=lambda cls: not cls.__name__.endswith("Model"))


def _batch_it_runs_on(model_type: str, model: Any) -> dict[str, Tensor]:
    own = ODD.get(model_type, Odd()).batch
    first: Exception | None = None
    for batch in [own(model)] if own else batches_for(model):
        try:
            with torch.no_grad():
                model(**batch)
            return batch
        except Exception as error:
            first = first or error
    raise first or LookupError(f"no batch could be made for {type(model).__name__}")


def tiny_config(model_type: str, widths: bool = True) -> Any:
    cls = CONFIG_MAPPING[model_type]
    given = ODD.get(model_type, Odd()).settings or {}
    return cls(**_joined(_small(cls(), widths), given))


def _small(config: Any, widths: bool) -> dict[str, Any]:
    """Return smaller values for the settings of a configuration, and for nested configurations."""
    small: dict[str, Any] = {}
    for name, value in vars(config).items():
        if isinstance(value, hf.PreTrainedConfig):
            small[name] = {"model_type": value.model_type, **_small(value, widths)}
        elif isinstance(value, bool) or name.startswith("_") or (name in _WIDTHS and not widths):
            continue
        elif isinstance(value, int) and name in _BY_NAME:
            small[name] = min(value, _BY_NAME[name]) if value > 0 else value
        elif name == "head_dim" and value is None:
            small[name] = _BY_NAME[name]
        elif isinstance(value, int) and name.endswith(("_token_id", "_token_index")) and value >= VOCABULARY:
            small[name] = None  # numbered below, apart from each other
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], int) and name in _BY_LIST:
            small[name] = _BY_LIST[name](len(value))
    rope = getattr(config, "rope_parameters", None)
    if isinstance(rope, Mapping) and "mrope_section" in rope:
        small["rope_parameters"] = {**rope, "mrope_section": [2, 1, 1]}  # half of a head of 8
    kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    if isinstance(kinds, (list, tuple)) and len(set(kinds)) > 1 and "num_hidden_layers" in small:
        # hybrids: enough blocks to have one of every kind
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
    """Merge `more` into `base`, recursively for mappings."""
    both = dict(base)
    for name, value in more.items():
        inner = both.get(name)
        both[name] = _joined(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return both
