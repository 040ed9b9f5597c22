"""Run a causal language model on texts that begin alike, and compute the common beginning only once.

    with explaining(model):
        prefix = shared_prefix(model, batch, entrances, output)     # None if the model does not allow it
        prefix.output_with(begin, vectors)                          # for other vectors of tokens begin .. n - 1

In a causal model no token depends on later ones. So after a change at token `begin`, the keys and values of all tokens
before it are those of the unchanged text. They are taken from the model's own cache, which is cut at `begin`.

Nothing of this is assumed. The text is read in two parts, the second with the cache of the first. If the output differs
from the `output` without a cache by more than rounding, if an error is raised, or if the cache is not a plain list of
keys and values (a sliding window drops tokens, a recurrent state cannot be cut), there is no shared prefix, and the
caller runs whole texts.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.hf.intercepting.owners import first_output, repeated
from attnscope.hf.intercepting.restoring import without_gradients
from attnscope.hf.tapping.entrances import ENCODED, Entrance, entering

MASK = "attention_mask"
ROUNDINGS = 1e3  # outputs that differ by at most this many roundings of the largest are the same
LARGEST = 0.03  # but in half precision by at most this share of the largest
CALL = 16  # tokens that take about as long as the fixed cost of one more call of the model
FEWEST = 4  # tokens of a text that is worth cutting


@dataclass(frozen=True)
class Prefix:
    """The cache of one text. Any number of its last tokens can be run again."""

    model: nn.Module
    batch: Mapping[str, Tensor]
    entrances: tuple[Entrance, ...]
    cache: Any

    @property
    def numbers(self) -> int:
        """How many numbers the cache has for one text."""
        return sum(layer.keys.numel() + layer.values.numel() for layer in self.cache.layers if layer.is_initialized)

    def output_with(self, begin: int, vectors: Float[Tensor, "row suffix width"]) -> Float[Tensor, "row suffix entry"]:
        """Return the output at tokens begin .. n - 1 for rows with other vectors there, and the same tokens before."""
        tokens = self.batch[ENCODED].shape[1]
        cache = copy.deepcopy(self.cache)
        cache.crop(begin - tokens)
        cache.batch_repeat_interleave(len(vectors))

        def give(_: str, looked_up: Tensor) -> Tensor:
            return vectors.to(looked_up).reshape(looked_up.shape).clone()

        with without_gradients(), entering(self.model, self.entrances, give):
            return _continued(self.model, repeated(self.batch, len(vectors)), begin, tokens, cache)[0]


def shared_prefix(
    model: nn.Module,
    batch: Mapping[str, Any],
    entrances: tuple[Entrance, ...],
    output: Float[Tensor, " batch *shape"],
) -> Prefix | None:
    """Return the cache of the text in `batch` if it reproduces `output`, the output without a cache; else None."""
    ids = batch.get(ENCODED)
    plain = set(batch) <= {ENCODED, MASK} and len(entrances) == 1 and entrances[0].argument == ENCODED
    if not plain or not isinstance(ids, Tensor) or ids.shape[1] < FEWEST:
        return None
    if output.ndim != 3 or output.shape[:2] != ids.shape:
        return None
    half, tokens = ids.shape[1] // 2, ids.shape[1]
    try:
        with without_gradients():
            first, cache = _continued(model, batch, 0, half, None)
            second, cache = _continued(model, batch, half, tokens, cache)
    except Exception:  # a model may refuse a cache in any way
        return None
    again = torch.cat([first, second], 1)
    if not _plain_cache(cache, tokens) or again.shape != output.shape:
        return None
    allowed = min(ROUNDINGS * torch.finfo(output.dtype).eps, LARGEST) * float(output.abs().max())
    equal = float((again - output).abs().max()) <= allowed
    return Prefix(model, batch, entrances, cache) if equal else None


def in_calls(begins: Sequence[int], tokens: int, most: int) -> list[list[int]]:
    """Divide rows among calls of the model, so that few tokens are computed in few calls. Return numbers of rows.

    `begins` are the first changed tokens. All rows of a call begin where its first row does, and a call costs as much
    as CALL tokens. With rows sorted by their beginning, the least cost of the first j rows is

        cost(j) = min over i < j, j - i <= most, of  cost(i) + CALL + (j - i) (tokens - begin_i)
    """
    order = sorted(range(len(begins)), key=lambda row: begins[row])
    costs, cuts = [0], [0]
    for end in range(1, len(order) + 1):
        options = [
            (costs[i] + CALL + (end - i) * (tokens - begins[order[i]]), i) for i in range(max(0, end - most), end)
        ]
        cost, cut = min(options)
        costs.append(cost)
        cuts.append(cut)
    calls: list[list[int]] = []
    end = len(order)
    while end:
        calls.insert(0, order[cuts[end] : end])
        end = cuts[end]
    return calls


def _continued(
    model: nn.Module, batch: Mapping[str, Tensor], begin: int, end: int, cache: Any
) -> tuple[Float[Tensor, "row part entry"], Any]:
    """Run tokens begin .. end - 1 after those in the cache. Return the output there, and the cache with all of them."""
    given: dict[str, Any] = {ENCODED: batch[ENCODED][:, begin:end]}
    if MASK in batch:
        given[MASK] = batch[MASK][:, :end]
    found = model(**given, past_key_values=cache, use_cache=True)
    return first_output(found), found.past_key_values


def _plain_cache(cache: Any, tokens: int) -> bool:
    """Return whether a cache holds the keys and values of all tokens in every block, and nothing else."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    if type(cache) is not DynamicCache:
        return False
    filled = [layer for layer in cache.layers if type(layer) is DynamicLayer and layer.is_initialized]
    return len(filled) == len(cache.layers) and all(layer.get_seq_length() == tokens for layer in filled)
