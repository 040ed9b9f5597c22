"""Read the binary format of CTranslate2, and Whisper in it.

A file is: version, name of the specification, revision, then for each variable its name, shape, type and bytes. 8-bit
matrices come with one scale a row: weight = stored / scale. Queries, keys and values of self-attention are one matrix.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_TYPES: tuple[Any, ...] = (np.float32, np.int8, np.int16, np.int32, np.float16)
_NORMS = {"gamma": "weight", "beta": "bias"}


def variables(path: Path) -> dict[str, Tensor]:
    """Return the variables of a file as float32 tensors, dequantised."""
    data, at = path.read_bytes(), 0

    def take(form: str) -> Any:
        nonlocal at
        (value,) = struct.unpack_from(f"<{form}", data, at)
        at += struct.calcsize(form)
        return value

    def text() -> str:
        nonlocal at
        size = take("H")
        at += size
        return data[at - size : at - 1].decode()

    take("I"), text(), take("I")
    found: dict[str, np.ndarray[Any, Any]] = {}
    for _ in range(take("I")):
        name, rank = text(), take("B")
        shape = [take("I") for _ in range(rank)]
        kind, size = take("B"), take("I")
        found[name] = np.frombuffer(data, _TYPES[kind], size // _TYPES[kind]().itemsize, at).reshape(shape)
        at += size
    result: dict[str, Tensor] = {}
    for name, array in found.items():
        values = torch.from_numpy(array.astype(np.float32))
        if f"{name}_scale" in found:
            scale = torch.from_numpy(found[f"{name}_scale"].astype(np.float32))
            values = values / scale.reshape(-1, *[1] * (values.ndim - 1))
        result[name] = values
    return {name: tensor for name, tensor in result.items() if not name.endswith("_scale")}


def whisper(path: Path) -> tuple[Any, dict[str, Tensor]]:
    """Return an untrained Whisper of the right shape, and its stored weights by transformers' names."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    stored = variables(path)
    words, width = stored["decoder/embeddings/weight"].shape
    layers = [len({n for n in stored if re.match(rf"{side}/layer_\d+/ffn/linear_0/weight$", n)}) for side in _SIDES]
    config = WhisperConfig(
        vocab_size=words,
        d_model=width,
        num_mel_bins=stored["encoder/conv1/weight"].shape[1],
        encoder_layers=layers[0],
        decoder_layers=layers[1],
        encoder_attention_heads=width // 64,
        decoder_attention_heads=width // 64,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        max_target_positions=stored["decoder/position_encodings/encodings"].shape[0],
        decoder_start_token_id=50258,
        bos_token_id=50257,
        eos_token_id=50257,
        pad_token_id=50257,
    )
    return WhisperForConditionalGeneration(config), _whisper_names(stored)


_SIDES = ("encoder", "decoder")


def _whisper_names(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        side, *path = name.split("/")
        if tensor.ndim == 0 or path[-1] in ("alignment_heads", "num_heads") or tensor.numel() <= 1:
            continue
        place = ".".join(path)
        place = re.sub(r"layer_(\d+)\.", r"layers.\1.", place)
        place = re.sub(r"(gamma|beta)$", lambda match: _NORMS[match[0]], place)
        place = place.replace("embeddings.weight", "embed_tokens.weight").replace(
            "position_encodings.encodings", "embed_positions.weight"
        )
        place = place.replace("self_attention.layer_norm", "self_attn_layer_norm")
        place = place.replace("attention.layer_norm", "encoder_attn_layer_norm").replace(
            "ffn.layer_norm", "final_layer_norm"
        )
        place = place.replace("ffn.linear_0", "fc1").replace("ffn.linear_1", "fc2")
        for old, new, roles in _FUSED:
            if old in place:
                kept = place.replace(old, new)
                for role, part in zip(roles, tensor.chunk(len(roles)), strict=True):
                    if role == "k_proj" and place.endswith("bias"):
                        if part.abs().max() > 0:
                            raise SystemExit(f"{name}: Whisper's keys have no bias.")
                        continue
                    state[f"model.{side}.{kept.replace('ROLE', role)}"] = part.clone()
                break
        else:
            state[f"model.{side}.{place}"] = tensor
    return {name: tensor for name, tensor in state.items() if ".projection." not in name}


_FUSED = (
    ("self_attention.linear_0", "self_attn.ROLE", ("q_proj", "k_proj", "v_proj")),
    ("self_attention.linear_1", "self_attn.ROLE", ("out_proj",)),
    (".attention.linear_0", ".encoder_attn.ROLE", ("q_proj",)),
    (".attention.linear_1", ".encoder_attn.ROLE", ("k_proj", "v_proj")),
    (".attention.linear_2", ".encoder_attn.ROLE", ("out_proj",)),
)
