"""`attnscope.logit_paths`: why one head looks from one token to another.

    report = attnscope.logit_paths("pocket", "The dog chased its own tail", head="1.3", query=5, key=2)

The stream that the head reads is a sum over sources, so its logit is a table of sources by sources (`pathways.logits`
has the derivation). Softmax ignores what is added to all logits of a row, so the table is also given for the *lead*:
the logit minus the mean logit of the other visible keys. The largest sources are then removed one at a time from what
the query or the key reads, and the attention row is computed anew, norms included.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from attnscope.commands.logit_paths.decomposing import Pair, decomposed
from attnscope.commands.logit_paths.record import LogitReport
from attnscope.commands.paths.reading import fitting, refusing_what_is_not_followed
from attnscope.core.errors import RefusalError, at_least, one_of
from attnscope.core.progress import Advance, silent
from attnscope.core.words import ranges
from attnscope.data.windows import Tokenizer
from attnscope.hf.anatomy.anatomy import Anatomy, Site, anatomy
from attnscope.hf.editing.freeze import freeze
from attnscope.hf.intercepting.masks import dense_pattern, visible
from attnscope.hf.intercepting.restoring import evaluating, looking_at, with_gradients, without_cache
from attnscope.hf.loading.in_memory import refuse_broken_weights
from attnscope.hf.loading.load import Loaded, load, refusing_what_does_not_run, why_it_does_not_run
from attnscope.hf.loading.memory import memory_left
from attnscope.hf.loading.one_text import Reading, place_of, reading, whole_position
from attnscope.hf.loading.options import Loading, Sampling, TextOptions, with_options
from attnscope.hf.loading.outputs import entries
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.tapping.observed import observed_frame, one_head
from attnscope.matrix.scores import Scores
from attnscope.pathways.logits import Entering, Sides, entering
from attnscope.pathways.network import Network, relative_difference
from attnscope.pathways.written_logits import written_out_rule

PRECISIONS = ("float64", "float32")
COPIES = 3  # of all sources of a stream that are in memory together
SAME_AS_OBSERVED = 1e-3  # models cast norms to float32 or lower; the decomposition does not


@with_options(TextOptions)
@with_gradients()
def logit_paths(
    model: str | Path | nn.Module | Loaded,
    text: str | tuple[str, str] | Mapping[str, Any],
    *,
    head: str,
    query: int | None = None,
    key: int | None = None,
    top: int = 10,
    stack: str | None = None,
    loading: Loading = Loading(dtype="float64"),
    sampling: Sampling = Sampling(),
    tokenizer: Tokenizer | None = None,
    progress: Advance = silent,
    **kwargs: Unpack[TextOptions],
) -> LogitReport:
    """Decompose one attention logit over everything that its query and its key read.

    Parameters
    ----------
    model : str, Path, torch.nn.Module or Loaded
        The model. A model in memory is copied into `dtype`.
    text : str, tuple of two str, or mapping
        A text, a pair of source and target (encoder-decoders), or a ready batch of one sequence.
    head : str
        The block and the head, such as "1.3" for head 3 of block 1. Both count from 0.
    query : int, optional
        The token that looks. Default: the last one, or the first mask.
    key : int, optional
        The token that is looked at. Default: the one with the largest weight, unless that is the first token; then the
        largest of the others.
    top : int
        How many sources of each side, and how many single terms, to list.
    stack : str, optional
        The stack of the head. Default: the last.
    loading, sampling : Loading, Sampling
        How the model is loaded and how the text begins.
    dtype, device, random_init, seed, allow_pickle, trust_remote_code, bos : see `Loading` and `Sampling`
        Fields of both as keywords. `dtype` is "float64" or "float32".
    tokenizer : Tokenizer, optional
        The tokenizer of a model in memory.
    progress : callable
        Called as `progress(stage, done, total)`.

    Returns
    -------
    LogitReport
        The logit and its lead over other keys by source, and the weight after each large source is removed.

    Raises
    ------
    RefusalError
        If there is no such head or token, if the query cannot see the key, or if the logits of this model are not one
        product of queries and keys plus constants.

    Examples
    --------
    >>> report = attnscope.logit_paths("pocket", "The dog chased its own tail", head="1.3")
    """
    at_least(top, 1, "top")
    one_of(loading.dtype, PRECISIONS, "dtype")
    block, number = _block_and_head(head)
    progress("loading", 0, 0)
    loaded = load(model, loading=loading, tokenizer=tokenizer)
    refuse_broken_weights(loaded)
    read = reading(loaded, text, sampling.bos)
    notes = list(read.notes)
    if loading.dtype == "float64" and (why := why_it_does_not_run(loaded, read.batch)) is not None:
        loaded = load(model, loading=replace(loading, dtype="float32"), tokenizer=tokenizer)
        read = reading(loaded, text, sampling.bos)
        notes.append(f"This model's own code does not run in float64 ({why}): numbers are float32.")
    with looking_at(loaded.model), quiet(), fitting(len(read.words)):
        with refusing_what_does_not_run(loaded), torch.no_grad():
            structure = anatomy(loaded.model, read.batch)
        site = structure.self_attention_at(block, number, stack or _last_stack(structure))
        progress("freezing", 0, 0)
        with refusing_what_is_not_followed(loaded):
            network = freeze(loaded.model, read.batch, structure, site.stack)
            _refuse_too_large(network, structure, site)
            found = entering(network, block, progress)
            sides = found.sides(number)
        scores = _scores(loaded, read, structure, site, found, sides, number)
        words = read.words if len(read.words) == len(sides.query) else tuple(map(str, range(len(sides.query))))
        pair = _pair(scores, query, key, words, _answering(loaded, network, read), notes)
        progress("removing sources", 0, 0)
        return LogitReport(
            model=loaded.name,
            class_name=loaded.class_name,
            stack=site.stack,
            text=text if isinstance(text, str) else text[0] if isinstance(text, tuple) else "",
            tokens=words,
            block=block,
            head=number,
            query=pair.query,
            key=pair.key,
            dtype=str(sides.query.dtype).removeprefix("torch."),
            **decomposed(found, sides, scores, pair, number, top),
            notes=tuple(notes),
            provenance=loaded.stamped(
                tokens=len(words), **read.bos_note(), **({"seed": loading.seed} if loading.random_init else {})
            ),
        )


def _block_and_head(head: Any) -> tuple[int, int]:
    parts = re.fullmatch(r"(\d{1,6})\.(\d{1,6})", head.strip()) if isinstance(head, str) else None
    if parts is None:
        raise RefusalError(f"`head=` is a block and a head, such as '1.3', not {head!r}.", "head")
    return int(parts[1]), int(parts[2])


def _last_stack(structure: Anatomy) -> str | None:
    return structure.stacks[-1].name if structure.stacks else None


def _refuse_too_large(network: Network, structure: Anatomy, site: Site) -> None:
    heads = sum(other.heads + 1 for other in structure.self_attention(site.stack) if other.layer < site.layer)
    stream = network.streams[0]
    needed, free = COPIES * (heads + 2) * stream.numel() * stream.itemsize, memory_left()
    if stream.device.type == "cpu" and needed > free:
        raise RefusalError(
            f"The sources of {stream.shape[1]:,} tokens before block {site.layer} take about {needed / 1e9:,.1f} GB, "
            f"and {free / 1e9:,.1f} GB of memory are free: give a shorter text, or an earlier block."
        )


@torch.no_grad()
def _scores(
    loaded: Loaded, read: Reading, structure: Anatomy, site: Site, found: Entering, sides: Sides, head: int
) -> Scores:
    """Return the rule of the head's logits; refuse if it does not give the pattern that the model computed."""
    with evaluating(loaded.model), without_cache(loaded.model):
        observed = one_head(observed_frame(loaded.model, structure, site, read.batch).scores, head)
    query, key = sides.query[None, None], sides.key[None, None]
    if site.rebuilt:
        scores, same = replace(observed, query=query, key=key, lse=None), observed.query.shape == query.shape
        same = same and relative_difference(observed.query, query) <= SAME_AS_OBSERVED
    else:
        rule = written_out_rule(found, sides, head)
        scores, same = Scores(query, key, rule.scale, bias=rule.bias[None, None], softcap=rule.softcap), True
    if not same or not float((dense_pattern(scores) - dense_pattern(observed)).abs().max()) <= SAME_AS_OBSERVED:
        raise RefusalError(
            f"The attention of block {site.layer} of {structure.model_class} is not softmax of the logits that were "
            "decomposed: choose another model or block."
        )
    return scores


def _answering(loaded: Loaded, network: Network, read: Reading) -> int:
    """Return the token at which the model answers: the first mask, or the last token."""
    last = network.streams[0].shape[1] - 1
    place = place_of(network.output, read, entries(loaded, network.output), None)
    return last if place is None or place > last else place


def _pair(
    scores: Scores, query: int | None, key: int | None, words: tuple[str, ...], answering: int, notes: list[str]
) -> Pair:
    """Return the tokens that were asked for, or choose them and note the choice."""
    looks = answering if query is None else _token(query, words, "query")
    seen = visible(scores).expand(1, 1, len(words), len(words))[0, 0, looks]
    if key is not None:
        seen_at = _token(key, words, "key")
        if not bool(seen[seen_at]):
            there = ranges(seen.nonzero().flatten().tolist())
            raise RefusalError(
                f"Token {looks} cannot see token {seen_at} in this head: choose `key=` among {there}.", "key"
            )
    else:
        row = dense_pattern(scores)[0, 0, looks].masked_fill(~seen, -1.0)
        seen_at = int(row.argmax())
        if seen_at == 0 and int(seen.sum()) > 1:
            row[0] = -1.0
            seen_at = int(row.argmax())
            notes.append("The first token has the largest weight (a sink); the key is the largest of the others.")
    if query is None or key is None:
        chosen = [f"token {looks} as the query"] * (query is None) + [f"token {seen_at} as the key"] * (key is None)
        notes.append(f"Chosen: {' and '.join(chosen)}.")
    return Pair(looks, seen_at, seen)


def _token(asked: Any, words: tuple[str, ...], name: str) -> int:
    place = whole_position(asked)
    assert place is not None
    if not -len(words) <= place < len(words):
        raise RefusalError(
            f"The text has {len(words)} tokens and no token {place}: choose `{name}=` from 0 ({words[0]!r}) to "
            f"{len(words) - 1} ({words[-1]!r}).",
            name,
        )
    return place % len(words)
