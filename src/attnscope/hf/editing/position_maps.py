"""Measure the linear map that a model applies to projected queries and keys at each position, before their products.

At position p a projected vector u becomes T_p u: by rotary embeddings, by early scaling, or unchanged. To measure T_p,
outputs of the projections are replaced by basis vectors, and the arguments of the attention call are read.

One vector for each of the d columns of T_p would need d runs over the whole length. Two steps need far fewer (as in the
estimation of sparse Jacobians by Curtis, Powell and Reid, 1974). First, a run over a few tokens with one sequence for
each basis vector shows which entries of T_p can be nonzero. Then columns that share no row are measured with one
vector, because their rows separate the entries. A rotation in planes needs two such vectors, whatever the head
dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.data.frame import AttentionFrame
from attnscope.hf.anatomy.anatomy import Anatomy, Site
from attnscope.hf.anatomy.example import Batch, example_batch, run
from attnscope.hf.intercepting.restoring import Restoring
from attnscope.hf.loading.loaded import positions_of
from attnscope.hf.tapping.tap import Frame, tap
from attnscope.matrix.scores import Scores

_FEW = 7  # tokens of the run that shows where T_p is nonzero
_POSITIONS = 256  # positions whose maps are inverted at once


@dataclass(frozen=True)
class Output:
    """The consecutive outputs of a linear module that hold the query or the key of one head."""

    module: str
    start: int
    dim: int
    outputs: int


class _EnoughError(Exception):
    """Raised to end a run once the awaited attention call has been seen."""


@dataclass(frozen=True, eq=False)
class Probe:
    """Run the model on batches of equal sequences, up to one attention call."""

    model: nn.Module
    found: Anatomy
    site: Site
    batch: Mapping[str, Any]
    longest: int  # most tokens: the rows of the head, or the model's limit if that is less

    def scores(self, sequences: int, tokens: int) -> Scores:
        """Return the arguments of the attention call in a run on `sequences` copies of the batch's first sequence."""
        caught: list[Scores] = []

        def receive(frame: Frame) -> None:
            if isinstance(frame, AttentionFrame) and (frame.stack, frame.layer, frame.site) == (
                self.site.stack,
                self.site.layer,
                "self",
            ):
                caught.append(frame.scores)
                raise _EnoughError

        try:
            with torch.no_grad(), tap(self.model, self.found, receive):
                run(self.model, _sized(self.batch, sequences, tokens))
        except _EnoughError:
            pass
        return caught[0]


def probe_of(model: nn.Module, found: Anatomy, site: Site, tokens: int, example_inputs: Batch | None) -> Probe:
    batch = example_batch(model) if example_inputs is None else example_inputs
    if not isinstance(batch, Mapping):
        raise RefusalError("example_inputs is not a mapping: give a mapping from the arguments of forward to tensors.")
    config = getattr(model, "config", None)
    named = callable(getattr(config, "get_text_config", None))
    positions = positions_of(model) if named else getattr(config, "max_position_embeddings", None)
    return Probe(model, found, site, batch, tokens if positions is None else min(tokens, positions))


@dataclass(frozen=True, eq=False)
class PositionMaps:
    """The nonzero entries of the maps T_p of queries and keys, and the attention call that they were measured at."""

    scores: Scores
    tokens: int
    rows: tuple[Int[Tensor, " entry"], Int[Tensor, " entry2"]]
    columns: tuple[Int[Tensor, " entry"], Int[Tensor, " entry2"]]
    entries: tuple[Float[Tensor, "token entry"], Float[Tensor, "token entry2"]]

    def undone(self, which: int, vectors: Float[Tensor, "token width"]) -> Float[Tensor, "token dim"]:
        """Return T_p^-1 v for each position: the projection outputs that the model maps to `v`, padded with zeros."""
        dim = self.scores.query.shape[-1]
        wanted = torch.nn.functional.pad(vectors.double().cpu(), (0, dim - vectors.shape[1]))
        answer = torch.empty_like(wanted)
        for first in range(0, len(wanted), _POSITIONS):
            some = slice(first, first + _POSITIONS)
            entries = self.entries[which][: len(wanted)][some]
            maps = torch.zeros(len(entries), dim, dim, dtype=torch.float64)
            maps[:, self.rows[which], self.columns[which]] = entries
            solved, info = torch.linalg.solve_ex(maps, wanted[some, :, None])
            if bool(info.any()) or not bool(solved.isfinite().all()):
                raise RefusalError(
                    "The map that the model applies to queries or keys is not invertible, so no head can be planted: "
                    "choose another model or block."
                )
            answer[some] = solved[..., 0]
        return answer


@torch.no_grad()
def measured_position_maps(probe: Probe, outputs: tuple[Output, Output], heads: tuple[int, int]) -> PositionMaps:
    """Return T_p for every position that both the head and the model have."""
    dim = outputs[0].dim
    basis = torch.eye(dim, dtype=torch.float64)
    seen = _arrived(probe, outputs, heads, (basis, basis), min(_FEW, probe.longest))[1]
    supports = tuple(_support(each) for each in seen)
    groups = tuple(_groups(each) for each in supports)
    count = max(len(each) for each in groups)
    packed = tuple(_packed(each, count, dim) for each in groups)
    scores, arrived = _arrived(probe, outputs, heads, (packed[0], packed[1]), probe.longest)
    tokens = scores.query.shape[2]  # may be less than asked for: a vision model always reads the same number
    at = [support.nonzero(as_tuple=True) for support in supports]
    entries = []
    for which in (0, 1):
        group_of = torch.empty(dim, dtype=torch.long)
        for number, columns in enumerate(groups[which]):
            group_of[columns] = number
        row, column = at[which]
        entries.append(arrived[which][group_of[column], :, row].T)  # [token, entry]
    return PositionMaps(scores, tokens, (at[0][0], at[1][0]), (at[0][1], at[1][1]), (entries[0], entries[1]))


def _arrived(
    probe: Probe,
    outputs: tuple[Output, Output],
    heads: tuple[int, int],
    vectors: tuple[Float[Tensor, "sequence dim"], Float[Tensor, "sequence dim"]],
    tokens: int,
) -> tuple[Scores, tuple[Float[Tensor, "sequence token dim"], Float[Tensor, "sequence token dim"]]]:
    """Return the queries and keys that reach the attention call if every token of sequence b projects to
    `vectors[b]`."""
    with Restoring() as changes:
        for output, planted in zip(outputs, vectors, strict=True):
            changes.after(probe.model.get_submodule(output.module), _projecting(probe.model, output, planted))
        scores = probe.scores(len(vectors[0]), tokens)
    return scores, (scores.query[:, heads[0]].double().cpu(), scores.key[:, heads[1]].double().cpu())


def _projecting(
    model: nn.Module, output: Output, vectors: Float[Tensor, "sequence dim"]
) -> Callable[[nn.Module, tuple[Any, ...], Any], Tensor]:
    """Return a hook that replaces the projection of every token of sequence b with `vectors[b]`."""

    def hook(module: nn.Module, args: tuple[Any, ...], projected: Any) -> Tensor:
        if (
            not isinstance(projected, Tensor)
            or projected.ndim != 3
            or projected.shape[::2] != (len(vectors), output.outputs)
        ):
            raise RefusalError(
                f"The output of {output.module} of {type(model).__name__} is not one vector for each token, so no head "
                "can be planted: choose a model with plain linear projections."
            )
        changed = projected.clone()
        changed[..., output.start : output.start + output.dim] = vectors[:, None].to(projected)
        return changed

    return hook


def _support(arrived: Float[Tensor, "column token row"]) -> Bool[Tensor, "row column"]:
    """Return which entries of T_p are nonzero at any of the measured positions."""
    return (arrived != 0).any(dim=1).T


def _groups(support: Bool[Tensor, "row column"]) -> list[list[int]]:
    """Return groups of columns of which no two share a row. Each column joins the first group that fits."""
    groups: list[tuple[Tensor, list[int]]] = []
    for column in range(support.shape[1]):
        rows = support[:, column]
        for taken, columns in groups:
            if not bool((taken & rows).any()):
                taken.logical_or_(rows)
                columns.append(column)
                break
        else:
            groups.append((rows.clone(), [column]))
    return [columns for _, columns in groups]


def _packed(groups: Sequence[Sequence[int]], count: int, dim: int) -> Float[Tensor, "count dim"]:
    vectors = torch.zeros(count, dim, dtype=torch.float64)
    for number, columns in enumerate(groups):
        vectors[number, list(columns)] = 1
    return vectors


def _sized(batch: Mapping[str, Any], sequences: int, tokens: int) -> dict[str, Any]:
    """Return copies of the batch's first sequence. Token ids are repeated or cut to the length."""

    def sized(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.ndim:
            return value
        first = value[:1]
        if first.ndim == 2 and not first.is_floating_point():
            first = first.repeat(1, -(-tokens // first.shape[1]))[:, :tokens]
        return first.expand(sequences, *first.shape[1:]).contiguous()

    return {name: sized(value) for name, value in batch.items()}
