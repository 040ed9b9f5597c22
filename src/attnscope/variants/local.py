"""A token sees only tokens at most `window` places away; cost grows with n times the window.

Queries are taken in blocks, each with the keys that any of them can see; the blocks are a batch of the fused kernel.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.core.variant import variant
from attnscope.matrix.plain_attention import plain_attention, softmax_pattern
from attnscope.matrix.visibility import Band, Key, Mixed, Query, Value, Visible, Weights, for_every_head, real_keys

SMALLEST_BLOCK = 16


def pattern(query: Query, key: Key, *, visible: Visible, causal: bool, scale: float, window: int = 64) -> Weights:
    near = _near(query.shape[-2], key.shape[-2], window, query.device)
    seen = near if visible is None else near & visible
    return softmax_pattern(query, key, visible=seen, causal=causal, scale=scale)


@variant(
    kind="pattern",
    title="Local window",
    summary="Softmax attention over the tokens at most a window away, in blocks.",
    citation="arXiv:2004.05150",
    formula="A_ij = e^s_ij / sum over |i - j'| <= window of e^s_ij',  0 farther away",
    cost="n w",
    cross=False,
    settings={"window": "how many places away a token sees"},
    pattern=pattern,
    changes="what lies farther away is lost at once; a window as long as the sequence changes nothing",
)
def local(
    query: Query, key: Key, value: Value, *, visible: Visible, causal: bool, scale: float, window: int = 64
) -> Mixed:
    tokens, heads = query.shape[-2], query.shape[1]
    if window < 0:
        raise RefusalError(f"A window of {window} places sees nothing: give 0 (the token itself) or more.")
    if key.shape[-2] != tokens:
        raise RefusalError("A local window counts places from the token itself: it needs keys of the same sequence.")
    plain = real_keys(visible, causal, tokens)
    if plain is None:  # a mask that differs by query: combine it with the window, at full cost
        near = _near(tokens, tokens, window, query.device)
        assert visible is not None
        return plain_attention(query, key, value, visible=near & visible, causal=causal, scale=scale)
    key, value = for_every_head(key, heads), for_every_head(value, heads)
    size = max(window, SMALLEST_BLOCK)
    blocks = -(-tokens // size)
    fill, ahead = blocks * size - tokens, 0 if plain.causal else window
    query = F.pad(query, (0, 0, 0, fill)).reshape(-1, blocks, size, query.shape[-1])
    key, value = (
        F.pad(side, (0, 0, window, ahead + fill)).unfold(-2, size + window + ahead, size).mT.flatten(0, 1)
        for side in (key, value)
    )
    seen = _seen(plain.real, (tokens, size, window, ahead, fill), query.device)
    seen = seen.expand(len(query) // heads, heads, *seen.shape[2:]).flatten(0, 1) if plain.real is not None else seen[0]
    mixed = plain_attention(query, key, value, visible=seen, causal=False, scale=scale)
    return mixed.reshape(-1, heads, blocks * size, mixed.shape[-1])[..., :tokens, :]


def _near(queries: int, keys: int, window: int, device: torch.device) -> Bool[Tensor, "1 1 {queries} {keys}"]:
    rows, columns = torch.arange(queries, device=device), torch.arange(keys, device=device)
    return Band(window, window).permits(rows[:, None], columns)[None, None]


def _seen(
    real: Bool[Tensor, "#batch #head key"] | None, shape: tuple[int, int, int, int, int], device: torch.device
) -> Bool[Tensor, "batch head blocks size near"]:
    """Return which keys of its block a query sees."""
    tokens, size, window, ahead, fill = shape
    exists = torch.ones(1, 1, tokens, dtype=torch.bool, device=device) if real is None else real
    exists = F.pad(exists, (window, ahead + fill)).unfold(-1, size + window + ahead, size)
    row, column = torch.arange(size, device=device), torch.arange(size + window + ahead, device=device)
    return Band(window, ahead).permits(row[:, None], column - window) & exists[..., None, :]
