"""Convert real weights from their original layout to transformers models, and load real inputs for them.

    dinov2()     DINOv2-S/14 with registers, from the original state dict   -> Dinov2WithRegistersModel
    whisper()    Whisper tiny.en, from the original state dict              -> WhisperForConditionalGeneration
    whisper_words()  its tokenizer
    photographs()  {"pixel_values": ...} for DINOv2;  speech()  {"input_features": ...} for Whisper

Every name is mapped, and loading is strict: a parameter that is missing or left over is an error.
"""

from __future__ import annotations

import base64
import re
import wave
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tools import fetch_models

_DINOV2_NAMES = (
    (r"^(cls_token|mask_token|register_tokens)$", r"embeddings.\1"),
    (r"^pos_embed$", "embeddings.position_embeddings"),
    (r"^patch_embed\.proj\.", "embeddings.patch_embeddings.projection."),
    (r"^blocks\.(\d+)\.", r"encoder.layer.\1."),
    (r"\.attn\.([qkv])\.", r".attention.\1_proj."),
    (r"\.attn\.proj\.", ".attention.o_proj."),
    (r"\.ls([12])\.gamma$", r".layer_scale\1.lambda1"),
    (r"^norm\.", "layernorm."),
)

_WHISPER_NAMES = (
    (r"^", "model."),
    (r"\.blocks\.", ".layers."),
    (r"\.cross_attn_ln\.", ".encoder_attn_layer_norm."),
    (r"\.attn_ln\.", ".self_attn_layer_norm."),
    (r"\.mlp_ln\.", ".final_layer_norm."),
    (r"\.cross_attn\.", ".encoder_attn."),
    (r"\.attn\.", ".self_attn."),
    (r"\.(query|key|value)\.", lambda found: f".{found[1][0]}_proj."),
    (r"\.out\.", ".out_proj."),
    (r"\.mlp\.0\.", ".fc1."),
    (r"\.mlp\.2\.", ".fc2."),
    (r"\.(ln|ln_post)\.", ".layer_norm."),
    (r"\.token_embedding\.", ".embed_tokens."),
    (r"\.positional_embedding$", ".embed_positions.weight"),
)

START, NO_TIMESTAMPS = 50257, 50362  # in Whisper's English vocabulary


def dinov2() -> Any:
    from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel

    stored = torch.load(fetch_models.path("dinov2"), weights_only=True, map_location="cpu")
    split: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if ".attn.qkv." in name:  # one matrix in the original: queries, then keys, then values
            for letter, part in zip("qkv", tensor.chunk(3), strict=True):
                split[name.replace(".qkv.", f".{letter}.")] = part.clone()
        else:
            split[name] = tensor
    config = Dinov2WithRegistersConfig(
        hidden_size=384, num_hidden_layers=12, num_attention_heads=6, image_size=518, patch_size=14
    )
    model = Dinov2WithRegistersModel(config)
    model.load_state_dict(renamed(split, _DINOV2_NAMES), strict=True)
    return model.eval().requires_grad_(False)


def whisper() -> Any:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    stored = torch.load(fetch_models.path("whisper"), weights_only=True, map_location="cpu")
    dims = stored["dims"]
    config = WhisperConfig(
        vocab_size=dims["n_vocab"],
        num_mel_bins=dims["n_mels"],
        d_model=dims["n_audio_state"],
        max_source_positions=dims["n_audio_ctx"],
        max_target_positions=dims["n_text_ctx"],
        encoder_layers=dims["n_audio_layer"],
        encoder_attention_heads=dims["n_audio_head"],
        encoder_ffn_dim=4 * dims["n_audio_state"],
        decoder_layers=dims["n_text_layer"],
        decoder_attention_heads=dims["n_text_head"],
        decoder_ffn_dim=4 * dims["n_text_state"],
        decoder_start_token_id=START,
        bos_token_id=START - 1,
        eos_token_id=START - 1,
        pad_token_id=START - 1,
    )
    model = WhisperForConditionalGeneration(config)
    weights = renamed(stored["model_state_dict"], _WHISPER_NAMES)
    weights["proj_out.weight"] = weights["model.decoder.embed_tokens.weight"]  # tied
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()}, strict=True)
    model.generation_config.no_timestamps_token_id = NO_TIMESTAMPS
    return model.eval().requires_grad_(False)


def whisper_words() -> Any:
    """Return the tokenizer of Whisper's English models. Its vocabulary is a list of byte strings in merge order;
    merging the bytes of a token with the earlier pairs tells which two pieces it is made of."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    lines = fetch_models.path("whisper_words").read_bytes().splitlines()
    ranks = {base64.b64decode(word): int(rank) for word, rank in (line.split() for line in lines if line)}
    letters = _byte_letters()

    def spelt(piece: bytes) -> str:
        return "".join(letters[byte] for byte in piece)

    pairs = [_halves(word, ranks) for word in sorted(ranks, key=ranks.__getitem__) if len(word) > 1]
    vocabulary = {spelt(word): rank for word, rank in ranks.items()}
    made = Tokenizer(models.BPE(vocabulary, [(spelt(one), spelt(other)) for one, other in pairs]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    named = {START - 1: "<|endoftext|>", START: "<|startoftranscript|>", NO_TIMESTAMPS: "<|notimestamps|>"}
    special = [named.get(n, f"<|{n}|>") for n in range(len(vocabulary), NO_TIMESTAMPS + 1)]
    made.add_special_tokens([AddedToken(name, special=True) for name in special])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|endoftext|>")


def _halves(word: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    pieces, never = [bytes([byte]) for byte in word], len(ranks)
    while len(pieces) > 2:
        joined = [ranks.get(one + other, never) for one, other in pairwise(pieces)]
        at = joined.index(min(joined))
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return pieces[0], pieces[1]


def _byte_letters() -> dict[int, str]:
    """Return the printable letter that byte-level vocabularies use for every byte."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    return {**{byte: chr(byte) for byte in printed}, **{byte: chr(256 + n) for n, byte in enumerate(others)}}


def renamed(stored: dict[str, Tensor], names: tuple[tuple[str, Any], ...]) -> dict[str, Tensor]:
    renamed = {}
    for old, tensor in stored.items():
        new = old
        for pattern, replacement in names:
            new = re.sub(pattern, replacement, new)
        renamed[new] = tensor
    return renamed


def photographs(size: int = 224) -> dict[str, Tensor]:
    """Return two photographs, normalised as for the training of DINOv2."""
    from skimage import data, transform

    pictures = [
        transform.resize(picture(), (size, size), anti_aliasing=True)  # type: ignore[no-untyped-call]
        for picture in (data.astronaut, data.chelsea)
    ]
    pixels = torch.from_numpy(np.stack(pictures)).float().permute(0, 3, 1, 2)  # image channel row column
    mean, std = (torch.tensor(c).view(1, 3, 1, 1) for c in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return {"pixel_values": (pixels - mean) / std}


def speech() -> dict[str, Tensor]:
    """Return eleven seconds of English speech as Whisper's input (log-mel), and the tokens that open a text."""
    from transformers import WhisperFeatureExtractor

    with wave.open(str(fetch_models.path("speech"))) as sound:
        rate = sound.getframerate()
        samples = np.frombuffer(sound.readframes(sound.getnframes()), dtype=np.int16) / 32768
    features = WhisperFeatureExtractor()(samples, sampling_rate=rate, return_tensors="pt")
    return {
        "input_features": features["input_features"],
        "decoder_input_ids": torch.tensor([[START, NO_TIMESTAMPS]]),
    }
