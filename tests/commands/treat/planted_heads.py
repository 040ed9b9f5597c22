"""A GPT-2 whose heads are known: it counts tokens 0, 1, ... 7, 0, ..., and chosen heads know chosen tokens."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import transformers as hf

from attnscope.hf.loading.in_memory import in_memory
from attnscope.hf.loading.load import Loaded

TOKENS, HEADS, WIDTH = 8, 4, 32
Place = tuple[int, int]


@torch.no_grad()
def counting(blocks: int, knows: Mapping[Place, tuple[int, ...]]) -> Loaded:
    """Return a model in which head (block, head) writes the token after x, for the tokens x that it knows.

    Every other head has an output projection of zero. Heads read the token in dimensions 0 to 7 of the stream and write
    in dimensions 8 to 15. Two heads that know the same token write the same vector. The final norm makes one of them
    almost as good as both, so either can go, but not both.
    """
    sizes = {"vocab_size": TOKENS, "n_layer": blocks, "n_head": HEADS, "n_embd": WIDTH, "n_positions": 32}
    config = hf.GPT2Config(**sizes, tie_word_embeddings=False)
    model = hf.GPT2LMHeadModel(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "ln" not in name:
            parameter.zero_()
    model.transformer.wte.weight[:, :TOKENS] = torch.eye(TOKENS)
    model.lm_head.weight[:, TOKENS : 2 * TOKENS] = torch.eye(TOKENS)
    model.transformer.ln_f.weight.fill_(1.5)
    one_hot = torch.eye(TOKENS)
    for block in model.transformer.h:
        for head in range(HEADS):
            mine = slice(head * TOKENS, (head + 1) * TOKENS)
            for part, scale in enumerate((2.0, 2.0, 1.0)):  # queries, keys, values
                columns = slice(part * WIDTH + mine.start, part * WIDTH + mine.stop)
                block.attn.c_attn.weight[:TOKENS, columns] = scale * one_hot
    for (block, head), tokens in knows.items():
        for token in tokens:
            written = TOKENS + (token + 1) % TOKENS
            model.transformer.h[block].attn.c_proj.weight[head * TOKENS + token, written] = 2.0
    return in_memory(model)


def counted(sequences: int = 160, tokens: int = 12) -> list[dict[str, torch.Tensor]]:
    """Return batches of four sequences that count from random tokens."""
    first = torch.randint(0, TOKENS, (sequences, 1), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": ids} for ids in ((first + torch.arange(tokens)) % TOKENS).split(4)]
