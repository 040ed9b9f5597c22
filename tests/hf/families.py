"""Tiny random models of every family that must work, and what is known about each: one list for tests and
docs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

BATCH, TOKENS, DECODER_TOKENS, VOCABULARY = 2, 11, 6, 64
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GROUPED: dict[str, Any] = {**TEXT, "num_key_value_heads": 2}
IDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 24,
    "patch_size": 8,
}
TWO_STACKS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    **IDS,
    "decoder_start_token_id": 1,
}


@dataclass(frozen=True)
class Family:
    """A family: how to build its tiny model, its inputs, and what the probe must find."""

    name: str
    build: Callable[[], nn.Module]
    route: str
    norm: str
    inputs: str = "text"  # "text", "pair", "image", "sound", "both" or "vectors"
    heads: int = 4
    kv_heads: int = 4
    layers: dict[str, int] = field(default_factory=lambda: {"model": 2})
    sites: dict[str, tuple[str, ...]] = field(default_factory=lambda: {"model": ("self",)})
    weights: str = "qkvo"
    causal: tuple[str, ...] = ()  # stacks with causal self-attention
    note: str = ""

    def model(self) -> nn.Module:
        torch.manual_seed(7)
        model = self.build().eval()
        torch.manual_seed(8)
        with torch.no_grad():
            for parameter in model.parameters():
                # Initial weights make attention nearly uniform and gains equal, which would hide errors.
                parameter.add_(torch.randn_like(parameter) * 0.1)
        return model

    @property
    def paddings(self) -> tuple[str, ...]:
        """Return the sides on which the family's inputs can be padded."""
        return ("none", "left", "right") if self.inputs in {"text", "pair", "both", "vectors"} else ("none",)

    @property
    def padded_stacks(self) -> set[str]:
        return {"pair": {"encoder"}, "both": {"text"}}.get(self.inputs, {"model"})

    def example(self) -> Any:
        """Example inputs for the probe; transformers models need none."""
        return self.batch() if self.inputs in {"vectors", "heads"} else None

    def batch(self, padding: str = "none") -> Any:
        """Return inputs; with `left` or `right`, the first sequence is padded by three tokens on that side."""
        generator = torch.Generator().manual_seed(9)
        if self.inputs == "vectors":
            return {"src": torch.randn(BATCH, TOKENS, 32, generator=generator), **_padding_row(padding)}
        if self.inputs == "heads":
            vectors = torch.randn(BATCH, TOKENS, 32, generator=generator)
            return {"query": vectors, "key": vectors, "value": vectors}
        batch: dict[str, Tensor] = {}
        if self.inputs in ("text", "pair", "both"):
            batch["input_ids"] = torch.randint(3, VOCABULARY, (BATCH, TOKENS), generator=generator)
            batch["attention_mask"] = (~_padding(padding)).long()
        if self.inputs in ("image", "both"):
            batch["pixel_values"] = torch.randn(BATCH, 3, 24, 24, generator=generator)
        if self.inputs == "sound":
            batch["input_features"] = torch.randn(BATCH, 8, 40, generator=generator)
        if self.inputs in ("pair", "sound"):
            batch["decoder_input_ids"] = torch.randint(3, VOCABULARY, (BATCH, DECODER_TOKENS), generator=generator)
        return batch


def _padding(side: str) -> Tensor:
    padded = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    if side == "left":
        padded[0, :3] = True
    if side == "right":
        padded[0, -3:] = True
    return padded


def _padding_row(side: str) -> dict[str, Tensor]:
    return {} if side == "none" else {"src_key_padding_mask": _padding(side)}


def _encoder_decoder() -> dict[str, Any]:
    return {
        "inputs": "pair",
        "layers": {"encoder": 2, "decoder": 3},
        "sites": {"encoder": ("self",), "decoder": ("self", "cross")},
        "causal": ("decoder",),
    }


def _torch_encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 2)


FAMILIES: tuple[Family, ...] = (
    Family("BERT", lambda: hf.BertModel(hf.BertConfig(**TEXT)), "interface", "post"),
    Family("ALBERT", lambda: hf.AlbertModel(hf.AlbertConfig(**TEXT, embedding_size=16)), "interface", "post"),
    Family("RoBERTa", lambda: hf.RobertaModel(hf.RobertaConfig(**TEXT)), "interface", "post"),
    Family(
        "DistilBERT",
        lambda: hf.DistilBertModel(hf.DistilBertConfig(vocab_size=64, dim=32, n_layers=2, n_heads=4, hidden_dim=48)),
        "interface",
        "post",
    ),
    Family(
        "ModernBERT",
        lambda: hf.ModernBertModel(
            hf.ModernBertConfig(
                **TEXT, **IDS, local_attention=6, global_attn_every_n_layers=2, cls_token_id=1, sep_token_id=2
            )
        ),
        "interface",
        "pre",
    ),
    Family(
        "GPT-2",
        lambda: hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64)),
        "interface",
        "pre",
        causal=("model",),
    ),
    Family(
        "GPT-NeoX",
        lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**TEXT)),
        "interface",
        "parallel",
        causal=("model",),
    ),
    Family(
        "Llama",
        lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED)),
        "interface",
        "pre",
        kv_heads=2,
        causal=("model",),
    ),
    Family(
        "Mistral",
        lambda: hf.MistralForCausalLM(hf.MistralConfig(**GROUPED, sliding_window=4)),
        "interface",
        "pre",
        kv_heads=2,
        causal=("model",),
    ),
    Family(
        "Qwen2",
        lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**GROUPED)),
        "interface",
        "pre",
        kv_heads=2,
        causal=("model",),
    ),
    Family(
        "Qwen3",
        lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**GROUPED, head_dim=8)),
        "interface",
        "pre",
        kv_heads=2,
        causal=("model",),
    ),
    Family(
        "Gemma2",
        lambda: hf.Gemma2ForCausalLM(
            hf.Gemma2Config(
                **GROUPED, head_dim=8, sliding_window=4, attn_logit_softcapping=2.0, query_pre_attn_scalar=8
            )
        ),
        "interface",
        "sandwich",
        kv_heads=2,
        causal=("model",),
    ),
    Family(
        "Gemma3",
        lambda: hf.Gemma3ForCausalLM(
            hf.Gemma3TextConfig(**GROUPED, head_dim=8, sliding_window=4, query_pre_attn_scalar=8)
        ),
        "interface",
        "sandwich",
        kv_heads=2,
        causal=("model",),
    ),
    Family(
        "gpt_oss",
        lambda: hf.GptOssForCausalLM(
            hf.GptOssConfig(
                **GROUPED,
                head_dim=8,
                sliding_window=4,
                num_local_experts=2,
                num_experts_per_tok=1,
                rope_parameters=None,
            )
        ),
        "interface",
        "pre",
        kv_heads=2,
        causal=("model",),
    ),
    Family(
        "OPT",
        lambda: hf.OPTForCausalLM(
            hf.OPTConfig(
                vocab_size=64,
                hidden_size=32,
                ffn_dim=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                max_position_embeddings=64,
                word_embed_proj_dim=32,
                **IDS,
            )
        ),
        "interface",
        "pre",
        causal=("model",),
    ),
    Family("Phi", lambda: hf.PhiForCausalLM(hf.PhiConfig(**TEXT)), "interface", "parallel", causal=("model",)),
    Family(
        "T5",
        lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(
                vocab_size=64,
                d_model=32,
                d_kv=8,
                d_ff=48,
                num_layers=2,
                num_decoder_layers=3,
                num_heads=4,
                **IDS,
                decoder_start_token_id=0,
            )
        ),
        "interface",
        "pre",
        **_encoder_decoder(),
    ),
    Family(
        "BART",
        lambda: hf.BartForConditionalGeneration(hf.BartConfig(**TWO_STACKS, max_position_embeddings=64)),
        "interface",
        "post",
        **_encoder_decoder(),
    ),
    Family(
        "Marian",
        lambda: hf.MarianMTModel(hf.MarianConfig(**TWO_STACKS, max_position_embeddings=64)),
        "interface",
        "post",
        **_encoder_decoder(),
    ),
    Family(
        "Whisper",
        lambda: hf.WhisperForConditionalGeneration(
            hf.WhisperConfig(**TWO_STACKS, num_mel_bins=8, max_source_positions=20, max_target_positions=32)
        ),
        "interface",
        "pre",
        **{**_encoder_decoder(), "inputs": "sound"},
    ),
    Family("ViT", lambda: hf.ViTModel(hf.ViTConfig(**VISION)), "interface", "pre", inputs="image"),
    Family(
        "DINOv2 with registers",
        lambda: hf.Dinov2WithRegistersModel(hf.Dinov2WithRegistersConfig(**VISION, num_register_tokens=3)),
        "interface",
        "pre",
        inputs="image",
    ),
    Family(
        "CLIP",
        lambda: hf.CLIPModel(hf.CLIPConfig(text_config={**TEXT, **IDS}, vision_config={**VISION}, projection_dim=16)),
        "interface",
        "pre",
        inputs="both",
        layers={"text": 2, "vision": 2},
        sites={"text": ("self",), "vision": ("self",)},
        causal=("text",),
    ),
    Family("MPNet", lambda: hf.MPNetModel(hf.MPNetConfig(**TEXT)), "softmax", "post"),
    Family(
        "DeBERTa-v2",
        lambda: hf.DebertaV2Model(
            hf.DebertaV2Config(**TEXT, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=4)
        ),
        "softmax",
        "post",
    ),
    Family(
        "GPT-J",
        lambda: hf.GPTJForCausalLM(
            hf.GPTJConfig(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4)
        ),
        "softmax",
        "parallel",
        causal=("model",),
    ),
    Family(
        "Bloom",
        lambda: hf.BloomForCausalLM(hf.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4)),
        "softmax",
        "pre",
        causal=("model",),
    ),
    Family(
        "Falcon",
        lambda: hf.FalconForCausalLM(
            hf.FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
        ),
        "sdpa",
        "parallel",
        kv_heads=1,
        causal=("model",),
    ),
    Family(
        "XLNet",
        lambda: hf.XLNetModel(hf.XLNetConfig(vocab_size=64, d_model=32, n_head=4, d_inner=48, n_layer=2)),
        "softmax",
        "post",
    ),
    Family("torch nn.TransformerEncoder", _torch_encoder, "sdpa", "post", inputs="vectors"),
    Family(
        "torch nn.MultiheadAttention",
        lambda: nn.MultiheadAttention(32, 4, batch_first=True),
        "softmax",
        "none",
        inputs="heads",
        layers={"model": 1},
    ),
)

REFUSED: tuple[Family, ...] = (
    Family(
        "Mamba",
        lambda: hf.MambaForCausalLM(hf.MambaConfig(vocab_size=64, hidden_size=32, state_size=4, num_hidden_layers=2)),
        "refused",
        "none",
    ),
    Family(
        "RWKV",
        lambda: hf.RwkvForCausalLM(
            hf.RwkvConfig(vocab_size=64, context_length=16, hidden_size=32, num_hidden_layers=2)
        ),
        "refused",
        "none",
    ),
)
