"""Run a causal language model on texts that begin alike, and compute the common beginning only once.

    with explaining(model):
        prefix = shared_prefix(model, batch, entrances, captured)   # None if the model does not allow it
        prefix.output_with(begin, vectors)                          # for other vectors of tokens begin .. n - 1

In a causal model no token depends on later ones. So after a change at token `begin`, the keys and values of all tokens
before it are those of the unchanged text. They are taken from the run that was captured, or, if that fails, from the
model's own cache, and cut at `begin`.

Nothing of this is assumed. The last tokens are read once more with the keys and values of those before them. If the
output differs from the one without a cache by more than rounding, if an error is raised, or if the cache is not a plain
list of keys and values (a sliding window drops tokens, a recurrent state cannot be cut), there is no shared prefix, and
the caller runs whole texts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.hf.intercepting.owners import first_output, repeated
from attnscope.hf.intercepting.restoring import without_gradients
from attnscope.hf.tapping.capture import Captured
from attnscope.hf.tapping.entrances import ENCODED, Entrance, entering

MASK = "attention_mask"
ROUNDINGS = 1e3  # outputs that differ by at most this many roundings of the largest are the same
LARGEST = 0.03  # but in half precision by at most this share of the largest
CALL = 16  # tokens that take about as long as the fixed cost of one more call of the model
FEWEST = 4  # tokens of a text that is worth cutting
CHECKED = 8  # tokens that are read with keys and values of a captured run, to check these


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
    model: nn.Module, batch: Mapping[str, Any], entrances: tuple[Entrance, ...], captured: Captured
) -> Prefix | None:
    """Return the cache of the captured text if the model's output with it equals that without a cache; else None."""
    ids, output = batch.get(ENCODED), captured.output
    plain = set(batch) <= {ENCODED, MASK} and len(entrances) == 1 and entrances[0].argument == ENCODED
    if not plain or not isinstance(ids, Tensor) or ids.shape[1] < FEWEST:
        return None
    if output.ndim != 3 or output.shape[:2] != ids.shape:
        return None
    tokens = ids.shape[1]
    half, few = tokens // 2, min(CHECKED, tokens // 2)
    caches: list[tuple[int, Callable[[], Any]]] = [
        (tokens - few, lambda: _captured_cache(model, captured, tokens - few)),
        (half, lambda: _continued(model, batch, 0, half, None)[1]),
    ]
    for begin, cache_of in caches:
        try:
            with without_gradients():
                last, cache = _continued(model, batch, begin, tokens, cache_of())
        except Exception:  # a model may refuse a cache in any way
            continue
        if _plain_cache(cache, tokens) and _equal(last, output[:, begin:]):
            return Prefix(model, batch, entrances, cache)
    return None


def _captured_cache(model: nn.Module, captured: Captured, begin: int) -> Any:
    """Return a cache of the keys and values that attention got in the captured run, for tokens before `begin`."""
    from transformers.cache_utils import DynamicCache

    cache = DynamicCache(config=cast(Any, model.config))
    for number, call in enumerate(captured.calls):
        cache.update(call.scores.key[:, :, :begin].detach(), call.value[:, :, :begin].detach(), number)
    return cache


def _equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two outputs differ by rounding only."""
    if one.shape != other.shape:
        return False
    allowed = min(ROUNDINGS * torch.finfo(other.dtype).eps, LARGEST) * float(other.abs().max())
    return float((one - other).abs().max()) <= allowed


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
