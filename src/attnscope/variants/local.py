"""A token sees only tokens at most `window` positions away; the cost is n times the window.

Queries are processed in groups, each with the keys that any of them can see; all groups form one batch of the fused
kernel.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.core.variant import variant
from attnscope.matrix.plain_attention import plain_attention, softmax_pattern
from attnscope.matrix.visibility import AttentionInputs, Band, Mixed, Weights

SMALLEST_BLOCK = 16


def pattern(inputs: AttentionInputs, *, window: int = 64) -> Weights:
    return softmax_pattern(_windowed(inputs, window))


@variant(
    kind="pattern",
    title="Local window",
    summary="Softmax attention over the tokens at most a window away, in blocks.",
    citation="arXiv:2004.05150",
    formula="A_ij = e^s_ij / sum over |i - j'| <= window of e^s_ij',  0 farther away",
    cost="n w",
    cross=False,
    settings={"window": "how many positions away a token sees"},
    pattern=pattern,
    changes="tokens farther away are lost at once; a window as long as the sequence changes nothing",
)
def local(inputs: AttentionInputs, *, window: int = 64) -> Mixed:
    _, heads, tokens, dim = inputs.query.shape
    if window < 0:
        raise RefusalError(f"A window cannot be {window}: give 0 (only the token itself) or more.")
    if inputs.key.shape[-2] != tokens:
        raise RefusalError("A local window is relative to the token itself: it needs keys of the same sequence.")
    plain = inputs.real_keys()
    if plain is None:  # a mask that differs by query: combine it with the window, at full cost
        return plain_attention(_windowed(inputs, window))
    whole = inputs.unshared
    size = max(window, SMALLEST_BLOCK)
    blocks = -(-tokens // size)
    fill, ahead = blocks * size - tokens, 0 if plain.causal else window
    query = F.pad(whole.query, (0, 0, 0, fill)).reshape(-1, blocks, size, dim)
    key, value = (
        F.pad(side, (0, 0, window, ahead + fill)).unfold(-2, size + window + ahead, size).mT.flatten(0, 1)
        for side in (whole.key, whole.value)
    )
    seen = _seen(plain.real, (tokens, size, window, ahead, fill), query.device)
    seen = seen.expand(len(query) // heads, heads, *seen.shape[2:]).flatten(0, 1) if plain.real is not None else seen[0]
    mixed = plain_attention(AttentionInputs(query, key, value, seen, scale=inputs.scale))
    return mixed.reshape(-1, heads, blocks * size, mixed.shape[-1])[..., :tokens, :]


def _windowed(inputs: AttentionInputs, window: int) -> AttentionInputs:
    """Return the inputs with keys outside the window hidden."""
    queries, keys = (torch.arange(side.shape[-2], device=side.device) for side in (inputs.query, inputs.key))
    near = Band(window, window).permits(queries[:, None], keys)[None, None]
    return replace(inputs, visible=near if inputs.visible is None else near & inputs.visible)


def _seen(
    real: Bool[Tensor, "#batch #head key"] | None, shape: tuple[int, int, int, int, int], device: torch.device
) -> Bool[Tensor, "batch head blocks size near"]:
    """Return which keys of its group each query sees."""
    tokens, size, window, ahead, fill = shape
    exists = torch.ones(1, 1, tokens, dtype=torch.bool, device=device) if real is None else real
    exists = F.pad(exists, (window, ahead + fill)).unfold(-1, size + window + ahead, size)
    row, column = torch.arange(size, device=device), torch.arange(size + window + ahead, device=device)
    return Band(window, ahead).permits(row[:, None], column - window) & exists[..., None, :]
