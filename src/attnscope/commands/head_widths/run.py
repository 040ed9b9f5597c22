"""head_widths: the width that the attention patterns of each head need, and the width that the head has.

    found = attnscope.head_widths("pocket", k=4)
    found.table(), found.idle, found.cramped

Every text gives every head a pattern: the k strongest keys of each query, with weights that sum to 1. Each pattern is
compiled by `compile`, so every width belongs to a certified head and has a proved lower bound. The record also has the
share of attention that these keys get: if it is small, the pattern says little about the head.

Queries and keys are fitted to each text on its own. A trained head serves all texts with one pair of projections and
may need more. So a width here says how little one text requires, not how much narrower the head could be.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from attnscope.commands.compile.run import compile
from attnscope.commands.head_widths.record import HeadWidth, HeadWidths
from attnscope.core.errors import RefusalError, at_least
from attnscope.core.progress import Advance, silent
from attnscope.data.frame import AttentionFrame
from attnscope.heads.accuracy import checked_accuracy
from attnscope.heads.pattern import Pattern
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.intercepting.masks import dense_pattern, one_sequence
from attnscope.hf.intercepting.restoring import evaluating, without_gradients
from attnscope.hf.loading.in_memory import refuse_broken_weights
from attnscope.hf.loading.load import (
    Given,
    batches_for,
    forward_options,
    load,
    precision_and_place,
    refusing_what_does_not_run,
)
from attnscope.hf.loading.options import Sampling
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.tapping.tap import Frame, tap

TEXTS, TOKENS, K, BUDGET = 2, 48, 4, 300.0
ONE_HEAD = 5.0  # processor seconds for one pattern, once a head is found for it

Place = tuple[str, int, int]


class _Seen(NamedTuple):
    pattern: Pattern
    held: float
    head_dim: int


def head_widths(
    model: Given,
    corpus: Any = None,
    *,
    k: int = K,
    texts: int = TEXTS,
    max_tokens: int = TOKENS,
    dtype: str = "float32",
    ratio_error: float = 0.1,
    leak: float = 0.01,
    seed: int = 0,
    budget: float = BUDGET,
    progress: Advance = silent,
) -> HeadWidths:
    """Return the width that the attention patterns of each head need, and the width that it has.

    Parameters
    ----------
    model : str, Path, torch.nn.Module, Loaded or callable
        The model.
    corpus : str, Path or iterable of texts, optional
        The texts. Default: the embedded corpus.
    k : int
        The strongest keys of each query that make the pattern.
    texts, max_tokens : int
        How many texts are read, and their length.
    dtype : str
        The precision of compiled heads.
    ratio_error, leak : float
        Limits for every row: the relative error of weights inside the pattern, and the weight outside it.
    seed : int
        The seed of random starts and of the choice of texts.
    budget : float
        Seconds for all heads together. All heads of the first text come first.
    progress : callable
        Called as `progress(stage, done, total)`.

    Returns
    -------
    HeadWidths
        Widths and bounds for each head. A width is None if none was found in time.

    Raises
    ------
    RefusalError
        If the model cannot be loaded, or an option is unusable.

    Examples
    --------
    >>> found = attnscope.head_widths("pocket", texts=1, max_tokens=16, budget=5)
    """
    start = time.process_time()
    checked_accuracy(ratio_error, leak, dtype)
    at_least(k, 1, "k")
    at_least(budget, 0, "budget")
    progress("reading the texts", 0, 0)
    sampling = Sampling(texts, max_tokens, batch_size=1, seed=seed)
    name, tokens, seen = _patterns(model, corpus, k, sampling)
    widths: dict[Place, list[int | None]] = {place: [] for place in seen[0]}
    bounds: dict[Place, list[int]] = {place: [] for place in seen[0]}
    interrupted, done, total = False, 0, sum(map(len, seen))
    try:
        for heads in seen:
            for place, one in heads.items():
                left = start + budget - time.process_time()
                if left <= 0:
                    widths[place].append(None)
                    continue
                progress(f"block {place[1]}, head {place[2]}", done, total)
                made = compile(
                    one.pattern, ratio_error=ratio_error, leak=leak, dtype=dtype, seed=seed, budget=min(left, ONE_HEAD)
                )
                widths[place].append(made.certificate.d if made.reached else None)
                bounds[place].append(made.bounds.best.width)
                done += 1
                if made.interrupted:
                    raise KeyboardInterrupt
    except KeyboardInterrupt:
        interrupted = True
    found = [
        HeadWidth(
            *place,
            head_dim=seen[0][place].head_dim,
            widths=tuple(widths[place] + [None] * (len(seen) - len(widths[place]))),
            bounds=tuple(bounds[place]),
            held=float(np.mean([heads[place].held for heads in seen])),
        )
        for place in seen[0]
    ]
    seconds = round(time.process_time() - start, 3)
    return HeadWidths(name, k, len(seen), tokens, dtype, ratio_error, leak, tuple(found), seconds, interrupted)


def _patterns(
    model: Given, corpus: Any, k: int, sampling: Sampling
) -> tuple[str, tuple[int, ...], list[dict[Place, _Seen]]]:
    """Return the pattern of every self-attention head, text by text."""
    loaded = load(model)
    refuse_broken_weights(loaded)
    prepared = batches_for(loaded, corpus, sampling)
    place = precision_and_place(loaded.model)[1]
    with refusing_what_does_not_run(loaded), without_gradients(), quiet():
        found = anatomy(loaded.model, prepared.batches[0].to(place).inputs)
    everything: list[dict[Place, _Seen]] = []
    here: dict[Place, _Seen] = {}
    lengths: list[int] = []

    def receive(frame: Frame) -> None:
        if not isinstance(frame, AttentionFrame) or frame.site != "self":
            return
        real = frame.query_mask[0]
        attention = dense_pattern(one_sequence(frame.scores, 0))[0][:, real][..., real]
        for head, one in enumerate(attention):
            pattern, held = strongest(one, k, frame.scores.causal or not bool(one.triu(1).any()))
            here[frame.stack, frame.layer, head] = _Seen(pattern, held, frame.scores.query.shape[-1])
        lengths.append(len(attention[0]))

    for batch in prepared:
        with without_gradients(), quiet(), evaluating(loaded.model), tap(loaded.model, found, receive):
            loaded.model(**batch.to(place).inputs, **forward_options(loaded))
        everything.append(dict(sorted(here.items())))
        here.clear()
    if not everything or not everything[0]:
        raise RefusalError(f"{loaded.name} has no attention that can be observed: choose another model.")
    return loaded.name, tuple(lengths[:: len(lengths) // len(everything)]), everything


def strongest(attention: Tensor, k: int, causal: bool) -> tuple[Pattern, float]:
    """Return the k strongest keys of every query as a pattern, and their share of the attention."""
    shares, keys = attention.double().topk(min(k, attention.shape[-1]), dim=-1)
    rows = np.repeat(np.arange(len(attention)), shares.shape[1])
    weights, columns = shares.flatten().cpu().numpy(), keys.flatten().cpu().numpy()
    kept = weights > 0  # early queries of a causal head see fewer than k keys
    pattern = Pattern.of(
        rows[kept], columns[kept], weights[kept], n=len(attention), causal=causal, normalise=True, name=f"top {k}"
    )
    return pattern, float(shares.sum(-1).mean())
