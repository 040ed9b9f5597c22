"""The numbers of one attention logit: its table of sources by sources, the lead, and what removals leave of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.commands.logit_paths.record import Grid, Removed, SourceRow, Term
from attnscope.hf.intercepting.masks import dense_pattern
from attnscope.matrix.scores import Scores
from attnscope.pathways.logits import Entering, Sides

REMOVED = 24  # sources of each side that are removed: those that add or subtract most

Table = Float[Tensor, "query_source key_source"]


@dataclass(frozen=True)
class Pair:
    """The token that looks, the token that is looked at, and the keys that the first one sees."""

    query: int
    key: int
    seen: Bool[Tensor, " key"]


@torch.no_grad()
def decomposed(found: Entering, sides: Sides, scores: Scores, pair: Pair, head: int, top: int) -> dict[str, Any]:
    """Return the numbers of the record.

    s_ij = sum over a, b of scale q_i[a] . k_j[b]. The lead over the n other visible keys is bilinear as well:
    s_ij - mean_t s_it = sum over a, b of scale q_i[a] . (k_j[b] - mean_t k_t[b]).
    """
    others = pair.seen.clone()
    others[pair.key] = False
    count = int(others.sum())

    def leading(values: Float[Tensor, "*source token dim"]) -> Float[Tensor, "*source dim"]:
        own = values[..., pair.key, :]
        return own - values[..., others, :].mean(-2) if count else own

    of_query, scale = scores.scale * sides.query_parts[:, pair.query], scores.scale
    logits = of_query @ sides.key_parts[:, pair.key].mT
    leads = of_query @ leading(sides.key_parts).mT
    bias, bias_lead = _position_bias(scores, pair, others)
    logit = float(scale * sides.query[pair.query] @ sides.key[pair.key]) + bias
    lead = float(scale * sides.query[pair.query] @ leading(sides.key)) + bias_lead
    rows = tuple(
        SourceRow(source.kind, source.block, source.head, *map(float, numbers))
        for source, *numbers in zip(
            found.sources, logits.sum(1), logits.sum(0), leads.sum(1), leads.sum(0), strict=True
        )
    )
    return {
        "weights": tuple(dense_pattern(scores)[0, 0, pair.query].clamp(0, 1).tolist()),
        "logit": logit,
        "lead": lead,
        "others": count,
        "bias": bias,
        "bias_lead": bias_lead,
        "softcap": scores.softcap,
        "sources": rows,
        "terms": _terms(logits, leads, top),
        "grid": _grid(leads, top),
        "removed": _removed(found, scores, pair, head, leads),
        "difference": max(abs(float(logits.sum()) + bias - logit), abs(float(leads.sum()) + bias_lead - lead)),
    }


def _position_bias(scores: Scores, pair: Pair, others: Bool[Tensor, " key"]) -> tuple[float, float]:
    if scores.bias is None:
        return 0.0, 0.0
    tokens = len(others)
    row = scores.bias.double().expand(1, 1, tokens, tokens)[0, 0, pair.query]
    own = float(row[pair.key])
    return own, own - float(row[others].mean()) if bool(others.any()) else own


def _terms(logits: Table, leads: Table, top: int) -> tuple[Term, ...]:
    largest = leads.abs().flatten().topk(min(top, leads.numel())).indices.tolist()
    width = leads.shape[1]
    places = [divmod(index, width) for index in largest]
    return tuple(Term(a, b, float(logits[a, b]), float(leads[a, b])) for a, b in places)


def _grid(leads: Table, top: int) -> Grid:
    """Return the largest sources of both sides, with the sum of all others as the last row and column."""
    rows, columns = (_largest(leads.sum(axis), top) for axis in (1, 0))

    def merged(table: Float[Tensor, "own other"], kept: list[int]) -> Float[Tensor, "kept_and_rest other"]:
        return torch.cat([table[kept], (table.sum(0) - table[kept].sum(0))[None]])

    small = merged(merged(leads, rows).mT, columns).mT
    return Grid(tuple(rows), tuple(columns), tuple(map(tuple, small.tolist())))


def _largest(values: Float[Tensor, " source"], top: int) -> list[int]:
    found: list[int] = values.abs().topk(min(top, len(values))).indices.tolist()
    return found


def _removed(found: Entering, scores: Scores, pair: Pair, head: int, leads: Table) -> tuple[Removed, ...]:
    """Remove the largest sources, one at a time, from what the query or the key is computed from.

    Every other key, and every other reader of the stream, stays as it is.
    """
    removed = []
    for side, margin, token in (("query", leads.sum(1), pair.query), ("key", leads.sum(0), pair.key)):
        upstream = [source for source in _largest(margin, REMOVED + 1) if found.sources[source].kind != "biases"]
        for source in upstream[:REMOVED]:
            read = found.without(source, token, head)
            own = getattr(scores, side).clone()
            own[0, 0, token] = getattr(read, side)[token]
            weight = float(dense_pattern(replace(scores, **{side: own}))[0, 0, pair.query, pair.key])
            removed.append(Removed(side, source, min(max(weight, 0.0), 1.0)))  # type: ignore[arg-type]
    return tuple(removed)
