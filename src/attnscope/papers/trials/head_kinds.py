"""Heads of different kinds in one block (Multiformer, arXiv:2205.07100): what they are, and which ones do the work.

The task resembles speech: few symbols, each held for several noisy frames, so that neighbours repeat each other. Every
frame must say how many segments of its sequence carry its symbol (one, two, or more): telling the symbol takes near
frames, counting takes far ones.

Head contribution, section 5 of the paper: c_h(t) = ||z_h(t) W_O^h||_1 over its sum over heads, the median over tokens,
then over sequences. Evenness is the entropy of the contributions (normalised to sum to one) over ln of the number of
heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.matrix.plain_attention import softmax_pattern
from attnscope.matrix.visibility import mix
from attnscope.measures.head_contribution import head_contribution
from attnscope.papers.models.nano import Block, Nano
from attnscope.papers.models.tasks import Task
from attnscope.variants.compressed import compressed
from attnscope.variants.compressed import pattern as compressed_pattern
from attnscope.variants.local import local
from attnscope.variants.local import pattern as local_pattern
from attnscope.variants.mixed_heads import MULTIFORMER, mixed_heads

ARCHITECTURES: Mapping[str, tuple[str, ...]] = {
    "full": ("full",),
    "local": ("local",),
    "performer": ("performer",),
    "compressed": ("compressed",),
    "mixed": MULTIFORMER,
}
CLASSES = 3


def frames_task(train: int, test: int, seed: int, *, segments: int, held: int, noise: float) -> Task:
    """Draw `segments` of six symbols, each for `held` frames: its own direction in 8 dimensions, plus noise."""
    rng = torch.Generator().manual_seed(seed)
    symbols = torch.randint(0, 6, (train + test, segments), generator=rng)
    looks = torch.linalg.qr(torch.randn(8, 8, generator=rng)).Q[:6] * math.sqrt(8)
    frames = symbols.repeat_interleave(held, dim=1)
    vectors = looks[frames] + noise * torch.randn(*frames.shape, 8, generator=rng)
    alike = (symbols[:, :, None] == symbols[:, None]).sum(-1).clamp_max(CLASSES) - 1
    return Task("frames", {"vectors": vectors}, alike.repeat_interleave(held, dim=1), train, CLASSES)


def algebra(tokens: int, heads: int, dim: int, seed: int) -> dict[str, float]:
    """Return the largest differences from what must hold for any weights."""
    rng = torch.Generator().manual_seed(seed)
    query, key, value = torch.randn(3, 2, heads, tokens, dim, generator=rng, dtype=torch.float64)
    call: dict[str, Any] = {"visible": None, "causal": False, "scale": dim**-0.5}
    full = mix(softmax_pattern(query, key, **call), value)  # the slow form, which no head runs
    window, stride = max(1, tokens // 8), 4
    rows = local_pattern(query, key, **call, window=window)
    place = torch.arange(tokens)
    outside = (place[:, None] - place).abs() > window
    kernels = torch.randn(2, heads, dim, dim, 4, generator=rng, dtype=torch.float64)
    anchors = compressed_pattern(query, key, **call, key_kernel=kernels[0], value_kernel=kernels[1], stride=stride)
    seen = local(query, key, torch.eye(tokens, dtype=torch.float64).expand(2, heads, -1, -1), **call, window=window)
    compressed(query, key, value, **call, key_kernel=kernels[0], value_kernel=kernels[1], stride=stride)
    return {
        "all_full_from_plain": float((mixed_heads(query, key, value, **call, kinds=("full",)) - full).abs().max()),
        "wide_local_from_full": float((local(query, key, value, **call, window=tokens) - full).abs().max()),
        "local_mass_outside": max(float(rows[..., outside].abs().max()), float(seen[..., outside].abs().max())),
        "anchors_missing": float(abs(anchors.shape[-1] - math.ceil(tokens / stride))),
        "anchor_rows_from_one": float((anchors.sum(-1) - 1).abs().max()),
    }


@torch.no_grad()
def contributions(model: Nano, task: Task) -> dict[str, Any]:
    """Return the contribution of every head, and how far writes and bias are from the output of attention."""
    taken: list[tuple[Tensor, Tensor]] = []
    hooks = []
    for block in model.blocks:
        assert isinstance(block, Block)
        hooks.append(
            block.attention.output.register_forward_hook(lambda _module, inputs, out: taken.append((inputs[0], out)))
        )
    try:
        model(**task.batch(task.test))
    finally:
        for hook in hooks:
            hook.remove()
    shares, apart = [], 0.0
    heads, dim = model.config.heads, model.config.dim
    for block, (inputs, out) in zip(model.blocks, taken, strict=True):
        assert isinstance(block, Block)
        mixed = inputs.reshape(*inputs.shape[:2], heads, dim)
        weight = block.attention.output.weight.T.reshape(heads, dim, -1)
        writes = torch.einsum("bthd,hdw->bhtw", mixed, weight)
        bias = block.attention.output.bias
        apart = max(apart, float((writes.sum(1) + bias - out).abs().max() / out.abs().max()))
        everyone = torch.ones(inputs.shape[:2], dtype=torch.bool)
        shares.append(head_contribution.function(mixed, weight, everyone).median(0).values)
    each = torch.stack(shares)
    return {
        "contributions": each.tolist(),
        "evenness": sum(evenness(layer) for layer in each) / len(each),
        "writes_from_module": apart,
    }


def evenness(shares: Float[Tensor, " head"]) -> float:
    """Return 1 if all heads write equally much, 0 if one head writes everything."""
    share = shares.double() / shares.double().sum()
    return float(torch.special.entr(share).sum() / math.log(len(share))) if len(share) > 1 else 1.0
