"""The model before its first step: random weights, one previous-token head, and heads that lean towards BOS.

An induction head needs a head before it that looks one token back. Both at once are slow to be found: in 14 runs of up
to 1,250 steps without the first, none had the second (`tried.json`). The first is planted, and its partner is learned.
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
            weight.data *= (2 * params.layers) ** -0.5  # so that all writes together start as large as one
    plant(model, params)
    return model


def plant(model: LlamaForCausalLM, params: Params) -> None:
    """Head 0 of block 0 looks one token back, whatever the tokens are; heads behind block 0 lean towards BOS.

    Heads have no biases, so channel 0 is made the same in every embedding (the logits of tied embeddings all move by as
    much, so no prediction changes), and channel 1 marks BOS. Rotary position i turns the pair of coordinates f by
    i theta_f. With queries at angle 0 that read channel 0 alone and keys at angle phi_f,

        q_i . k_j = sum_f s_f cos((i - j) theta_f - phi_f).

    With phi_f = theta_f this is largest at j = i - 1: the fastest rotations make it sharp. With phi_f = 0 and the four
    slowest rotations it is nearly s for all i - j; keys that read channel 1 have it at BOS and nowhere else.
    """
    embeddings = model.model.embed_tokens.weight.data
    embeddings[:, 0] = params.constant * params.embedding_size
    embeddings[:, 1] = 0
    embeddings[0, 1] = params.mark * params.embedding_size
    width = params.width // params.heads
    pairs = width // 2
    turned = model.config.rope_parameters["rope_theta"] ** (-torch.arange(pairs) / pairs)
    fast, slow = slice(0, min(params.frequencies, pairs)), slice(pairs - min(4, pairs), pairs)
    usual, marked = _normed(params.constant, 0.0, params), _normed(params.constant, params.mark, params)
    first = model.model.layers[0].self_attn
    length = math.sqrt(params.sharpness * math.sqrt(width)) / usual
    for projection, angle in ((first.q_proj, torch.zeros(pairs)), (first.k_proj, turned)):
        weight = projection.weight.data[:width]
        weight.zero_()
        weight[:pairs][fast, 0] = length * torch.cos(angle[fast])
        weight[pairs:][fast, 0] = length * torch.sin(angle[fast])
    # rest = 4 rotations x query x key / sqrt(width), with channel 1 of BOS behind RMSNorm in the key
    seen = params.mark / params.constant * marked
    length = math.sqrt(params.rest * math.sqrt(width) / (slow.stop - slow.start) / (usual * seen))
    for layer in model.model.layers[1:]:
        for head in range(params.heads):
            rows = slice(head * width, head * width + pairs)
            layer.self_attn.q_proj.weight.data[rows][slow, 0] += length
            layer.self_attn.k_proj.weight.data[rows][slow, 1] += length


def _normed(constant: float, mark: float, params: Params) -> float:
    """Channel 0 behind RMSNorm, in a token with these entries in channels 0 and 1 and others of variance 1."""
    return constant / math.sqrt((params.width - 2 + constant**2 + mark**2) / params.width)
