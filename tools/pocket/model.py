"""The model before training: random weights, and one head that starts as a previous-token head.

An induction head needs an earlier head that looks one token back. Training rarely finds both at once: none of 14 runs
of up to 1,250 steps without a planted previous-token head learned an induction head (`tried.json`). So the
previous-token head is planted, and the induction head is learned.
"""

from __future__ import annotations

import math

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tools.pocket.params import Params


def build(params: Params) -> LlamaForCausalLM:
    torch.manual_seed(params.seed)
    size = {"hidden_size": params.width, "intermediate_size": params.hidden, "vocab_size": params.vocab}
    depth = {"num_hidden_layers": params.layers, "num_attention_heads": params.heads}
    words = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": None, "tie_word_embeddings": True}
    start = {"initializer_range": params.matrix_size, "dtype": "float32"}
    model = LlamaForCausalLM(LlamaConfig(**size, **depth, **words, **start, max_position_embeddings=params.context))
    model.model.embed_tokens.weight.data *= params.embedding_size / params.matrix_size
    for name, weight in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.data *= (2 * params.layers) ** -0.5  # so that the sum of all writes starts as large as one write
    plant_previous_token_head(model, params)
    return model


def plant_previous_token_head(model: LlamaForCausalLM, params: Params) -> None:
    """Make head 0 of block 0 look one token back, whatever the tokens are.

    Heads have no biases, so channel 0 is made the same in every embedding (the logits of tied embeddings all move by as
    much, so no prediction changes), and queries and keys read it alone. Rotary position i turns the pair of coordinates
    f by i theta_f. With queries at angle 0 and keys at theta_f, q_i . k_j = s sum_f cos((i - j - 1) theta_f), which is
    largest at j = i - 1; the fastest rotations make it sharp.
    """
    model.model.embed_tokens.weight.data[:, 0] = params.constant * params.embedding_size
    seen = params.constant / math.sqrt(1 + (params.constant**2 - 1) / params.width)  # channel 0 behind RMSNorm
    width = params.width // params.heads
    pairs, count = width // 2, min(params.frequencies, width // 2)
    turned = model.config.rope_parameters["rope_theta"] ** (-torch.arange(count) / pairs)
    length = math.sqrt(params.sharpness * math.sqrt(width)) / seen
    attention = model.model.layers[0].self_attn
    for projection, angle in ((attention.q_proj, torch.zeros(count)), (attention.k_proj, turned)):
        weight = projection.weight.data[:width]
        weight.zero_()
        weight[:count, 0] = length * torch.cos(angle)
        weight[pairs : pairs + count, 0] = length * torch.sin(angle)
