"""Loaded: a model in memory, its kind, its limits and its provenance."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn
from transformers.models.auto import modeling_auto as auto

from attnscope.core.stamp import stamped
from attnscope.hf.loading.model_files import Header

Kind = Literal["causal", "masked", "encoder-decoder", "vision", "audio", "multimodal"]


@dataclass(frozen=True)
class Loaded:
    """A model ready to be measured: in evaluation mode, without gradients."""

    model: nn.Module
    tokenizer: Any | None
    name: str
    class_name: str
    sha256: str
    parameters: int
    pad: int | None
    bos: int | None
    kind: Kind
    accepts: frozenset[str]
    positions: int | None = None
    vocab_size: int | None = None
    decoder_start: int | None = None
    reads_text: bool = True
    header: Header = field(default_factory=Header)  # the BOS fields of a GGUF file
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """Say that a model in memory was copied into another precision."""
        cast = self.provenance.get("cast")
        kept = "pass `dtype='auto'` to keep its precision"
        return () if cast is None else (f"The model in memory was copied from {cast}: {kept}.",)

    def stamped(self, **notes: Any) -> dict[str, Any]:
        """Return the provenance of a record about this model: the model, `notes`, versions and the time."""
        return stamped({**self.provenance, "name": self.name, "hash": self.sha256}, **notes)


def fields_of(model: nn.Module) -> dict[str, Any]:
    """Return the fields of `Loaded` that follow from a transformers model and its configuration."""
    return {
        "kind": kind_of(model),
        "positions": positions_of(model),
        "vocab_size": vocab_size_of(model),
        "decoder_start": decoder_start_of(model),
        "accepts": accepted_by(model),
        "reads_text": reads_text(model),
    }


def accepted_by(model: nn.Module) -> frozenset[str]:
    return frozenset(inspect.signature(model.forward).parameters)


def kind_of(model: nn.Module) -> Kind:
    config: Any = model.config
    senses = [f"{sense}_config" for sense in ("text", "vision", "audio") if hasattr(config, f"{sense}_config")]
    if "text_config" in senses and len(senses) > 1:
        return "multimodal"
    match getattr(model, "main_input_name", "input_ids"):
        case "pixel_values" | "pixel_values_videos":
            return "vision"
        case "input_features" | "input_values":
            return "audio"
    if config.is_encoder_decoder:
        return "encoder-decoder"
    generates = type(config) in auto.MODEL_FOR_CAUSAL_LM_MAPPING
    reads_both_ways = type(config) in auto.MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False)
    return "causal" if generates and not reads_both_ways else "masked"


def positions_of(model: nn.Module) -> int | None:
    """Return the largest number of tokens in a sequence, or None if the configuration sets no limit."""
    config: Any = model.config
    text = config.get_text_config()
    limits = [getattr(text, name, None) for name in ("max_position_embeddings", "max_target_positions")]
    known = [limit for limit in limits if isinstance(limit, int) and limit > 0]
    if not known:
        return None
    # Models like RoBERTa number positions from padding index + 1, so that the first rows of the table are unused.
    unused = [
        module.padding_idx + 1
        for name, module in model.named_modules()
        if type(module) is nn.Embedding and name.endswith("position_embeddings") and module.padding_idx is not None
    ]
    return min(known) - max(unused, default=0)


def vocab_size_of(model: Any) -> int | None:
    try:
        embeddings = model.get_input_embeddings()
    except NotImplementedError:
        return None
    return embeddings.num_embeddings if isinstance(embeddings, nn.Embedding) else None


def decoder_start_of(model: nn.Module) -> int | None:
    """Return the first token that a decoder reads, or None if the model is not an encoder-decoder."""
    config: Any = model.config
    if not config.is_encoder_decoder:
        return None
    names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    return next((token for name in names if isinstance(token := getattr(config, name, None), int)), 0)


def reads_text(model: Any) -> bool:
    """Return whether token ids are enough: yes for a vision-language model, no for CLIP."""
    kind = kind_of(model)
    return kind not in ("vision", "audio") and (kind != "multimodal" or model.can_generate())
