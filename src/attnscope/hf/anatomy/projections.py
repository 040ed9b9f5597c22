"""Find the parameters that project queries, keys, values and outputs, by comparing numbers instead of names.

At the first token rotary embeddings are the identity. So the query of a head is, up to a scale, a run of consecutive
outputs of some linear map, whether projections are separate, fused or interleaved. If queries and keys are normed per
head, the input of the norm is matched and its gain is kept. The output projection is the linear map that reads the
mixed heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize

from attnscope.hf.anatomy.recording import BlockRecording, LinearMap, Matrix
from attnscope.hf.intercepting.observed_call import ObservedCall

NAMES = ("query", "key", "value", "output")


@dataclass(frozen=True)
class Columns:
    """Consecutive columns of a matrix for each head; `norm` is the module that norms them afterwards, if any."""

    matrix: Matrix
    starts: tuple[int, ...]
    dim: int
    norm: str | None = None

    @property
    def numbers(self) -> list[int]:
        """The numbers of all columns, head by head."""
        return [column for start in self.starts for column in range(start, start + self.dim)]


@dataclass(frozen=True)
class Projections:
    """The projections of one attention call. Those that were not recognised are None."""

    scale: float
    query: Columns | None = None
    key: Columns | None = None
    value: Columns | None = None
    output: Matrix | None = None

    @property
    def matrices(self) -> dict[str, Matrix]:
        """The recognised matrices, by name."""
        named = {name: getattr(self, name) for name in NAMES}
        return {name: p.matrix if isinstance(p, Columns) else p for name, p in named.items() if p is not None}

    @property
    def complete(self) -> bool:
        return len(self.matrices) == len(NAMES)

    def __str__(self) -> str:
        return "".join(name[0] for name in self.matrices) or "not found"


def find_projections(observed: ObservedCall, recording: BlockRecording, eps: float) -> Projections:
    """Match one attention call against the linear maps of its block."""
    scores, tolerance = observed.scores, _tolerance(eps)
    recording = replace(recording, maps=[linear for linear in recording.maps if _whole(linear)])
    mixed = observed.mixed[:, 0].flatten(1)
    return Projections(
        scale=_logit_scale(observed),
        query=_columns(scores.query[:, :, 0], recording, tolerance),
        key=_columns(scores.key[:, :, 0], recording, tolerance),
        value=_columns(observed.value[:, :, 0], recording, tolerance),
        output=next((m.matrix for m in recording.maps if _parallel_vectors(m.taken, mixed, tolerance)), None),
    )


def tolerance_of(model: nn.Module) -> float:
    """Return the largest 1 - cosine between two vectors that are parallel up to rounding."""
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    return _tolerance(torch.finfo(torch.float32 if weight is None else weight.dtype).eps)


def _tolerance(eps: float) -> float:
    return max(1e-5, 32 * eps * eps)


def _whole(linear: LinearMap) -> bool:
    """Return whether the parameter multiplies whole tokens, not every head separately."""
    return linear.matrix.rows == (linear.given if linear.matrix.out_in else linear.taken).shape[1]


def reading(
    found: Projections, parameters: Mapping[str, Tensor], width: int | None, key_width: int | None
) -> Projections:
    """Drop projections whose input does not have the width of the stream; without a stream, keep the widest.

    Latent attention projects twice, and its second matrix reads a narrow latent vector instead of the stream.
    """
    read = {name: matrix.of(parameters).shape[0] for name, matrix in found.matrices.items() if name != "output"}
    widest = max(read.values(), default=None)
    widths = {"query": width, "key": key_width, "value": key_width}
    others = [name for name, rows in read.items() if rows != (widest if widths[name] is None else widths[name])]
    nothing: dict[str, Any] = dict.fromkeys(others)
    return replace(found, **nothing)


def _columns(heads: Float[Tensor, "batch head dim"], recording: BlockRecording, tolerance: float) -> Columns | None:
    dim = heads.shape[-1]
    if dim == 0:
        return None
    for linear in recording.maps:
        starts = _runs(heads, linear.given, tolerance)
        if starts is not None:
            return Columns(linear.matrix, starts, dim)
    for linear in recording.maps:  # a difference removes a constant that is added to every query (relative positions)
        starts = _runs(heads.diff(dim=0), linear.given.diff(dim=0), tolerance) if heads.shape[0] > 1 else None
        if starts is not None:
            return Columns(linear.matrix, starts, dim)
    for change in recording.changes:
        starts = _runs(heads, change.given, tolerance)
        if starts is not None:
            for linear in recording.maps:
                if _parallel_vectors(linear.given, change.taken, tolerance):
                    return Columns(linear.matrix, starts, dim, change.path)
    return None


def _runs(
    heads: Float[Tensor, "batch head dim"], given: Float[Tensor, "rows outer"], tolerance: float
) -> tuple[int, ...] | None:
    """Return the first channel, for every head, of the run of outputs that is parallel to it in every sequence."""
    dim = heads.shape[-1]
    if given.shape[1] < dim or given.shape[0] != heads.shape[0]:
        return None
    runs = given.double().unfold(1, dim, 1)  # [batch, start, dim]
    cosine = torch.einsum("bhd,bsd->bhs", normalize(heads.double(), dim=-1), normalize(runs, dim=-1)).amin(0)
    best = cosine.max(dim=1)
    return tuple(best.indices.tolist()) if bool((best.values >= 1 - tolerance).all()) else None


def _parallel_vectors(left: Tensor, right: Tensor, tolerance: float) -> bool:
    if left.shape != right.shape:
        return False
    return bool((cosine_similarity(left.double(), right.double(), dim=-1) >= 1 - tolerance).all())


def _logit_scale(observed: ObservedCall) -> float:
    """Return the factor of query . key in the logits. If the model made its own pattern, fit it to the log of that."""
    scores = observed.scores
    if observed.route != "softmax" or scores.pattern is None or scores.query.shape[-1] == 0:
        return scores.scale
    key = scores.key.double().repeat_interleave(scores.query.shape[1] // scores.key.shape[1], dim=1)
    product = scores.query.double() @ key.transpose(-1, -2)
    seen = scores.pattern > 1e-12
    count = seen.sum(-1, keepdim=True).clamp_min(1)
    logits = torch.where(seen, scores.pattern.double().clamp_min(1e-30).log(), 0.0)
    centred = [torch.where(seen, t - (t * seen).sum(-1, keepdim=True) / count, 0.0) for t in (logits, product)]
    slope = float((centred[0] * centred[1]).sum() / centred[1].square().sum().clamp_min(1e-300))
    left_over = float((centred[0] - slope * centred[1]).abs().max())
    return slope if left_over <= 1e-2 * float(centred[0].abs().max()) and slope > 0 else scores.scale
