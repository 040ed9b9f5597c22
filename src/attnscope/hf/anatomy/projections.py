"""Which parameters project queries, keys, values and outputs, found by comparing numbers, not names.

At the first token rotary embeddings are the identity, so a head's query there is, up to a scale, a run
of consecutive outputs of some linear map: separate projections, fused ones and interleaved ones all look
alike that way. Where queries and keys are normed per head, the norm's input is what is matched and its
gain is kept. The output projection is the linear map that takes the mixed heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.data.frame import WeightsFrame
from attnscope.hf.anatomy.recording import BlockRecording, Change, LinearMap, Matrix
from attnscope.hf.intercepting.observed_call import ObservedCall
from attnscope.hf.intercepting.wrappers import in_reach


@dataclass(frozen=True)
class Columns:
    """One run of columns of a matrix per head; `norm` is the module that norms them afterwards, if any."""

    matrix: Matrix
    starts: tuple[int, ...]
    dim: int
    norm: str | None = None


@dataclass(frozen=True)
class Projections:
    """Where the projections of one attention call are; None where they were not recognised."""

    scale: float
    query: Columns | None = None
    key: Columns | None = None
    value: Columns | None = None
    output: Matrix | None = None

    def __str__(self) -> str:
        named = {"q": self.query, "k": self.key, "v": self.value, "o": self.output}
        return "".join(letter for letter, found in named.items() if found is not None) or "not found"


def find_projections(observed: ObservedCall, tape: BlockRecording, eps: float) -> Projections:
    """Match one attention call against the linear maps of its block."""
    scores = observed.scores
    tolerance = _tolerance(eps)
    tape = replace(tape, maps=[linear for linear in tape.maps if _whole(linear)])
    return Projections(
        scale=_logit_scale(observed),
        query=_columns(scores.query[:, :, 0], tape, tolerance),
        key=_columns(scores.key[:, :, 0], tape, tolerance),
        value=_columns(observed.value[:, :, 0], tape, tolerance),
        output=_taker(observed.mixed[:, 0].flatten(1), tape.maps, tolerance),
    )


def tolerance_of(model: nn.Module) -> float:
    """How far from parallel two vectors may be that are the same but for rounding, as 1 - cosine."""
    weight = next((p for p in model.parameters() if p.is_floating_point()), None)
    return _tolerance(torch.finfo(torch.float32 if weight is None else weight.dtype).eps)


def _tolerance(eps: float) -> float:
    return max(1e-5, 32 * eps * eps)


def _whole(linear: LinearMap) -> bool:
    """Whether the parameter takes a token as it is: one that every head is multiplied with alone is smaller."""
    return linear.matrix.rows == (linear.given if linear.matrix.out_in else linear.taken).shape[1]


def reading(
    found: Projections, parameters: Mapping[str, Tensor], width: int | None, key_width: int | None
) -> Projections:
    """Only projections that read the stream itself, by its width; where no stream is known, the widest that is read.

    Latent attention projects twice: the matrix that gives a head its values then reads a small latent, is no map from
    the stream to the head, and must not be taken for one.
    """

    read = [c.matrix.of(parameters).shape[0] for c in (found.query, found.key, found.value) if c is not None]
    widest = max(read, default=None)

    def kept(columns: Columns | None, stream: int | None) -> Columns | None:
        fits = columns is None or columns.matrix.of(parameters).shape[0] == (widest if stream is None else stream)
        return columns if fits else None

    return replace(
        found,
        query=kept(found.query, width),
        key=kept(found.key, key_width),
        value=kept(found.value, key_width),
    )


def _columns(heads: Float[Tensor, "batch head dim"], tape: BlockRecording, tolerance: float) -> Columns | None:
    dim = heads.shape[-1]
    if dim == 0:
        return None
    for linear in tape.maps:
        starts = _runs(heads, linear.given, tolerance)
        if starts is not None:
            return Columns(linear.matrix, starts, dim)
    for linear in tape.maps:  # a constant added to every query (relative positions) drops out of a difference
        starts = _runs(heads.diff(dim=0), linear.given.diff(dim=0), tolerance) if heads.shape[0] > 1 else None
        if starts is not None:
            return Columns(linear.matrix, starts, dim)
    for change in tape.changes:
        starts = _runs(heads, change.given, tolerance)
        source = None if starts is None else _giver(change, tape.maps, tolerance)
        if starts is not None and source is not None:
            return Columns(source.matrix, starts, dim, change.path)
    return None


def _runs(
    heads: Float[Tensor, "batch head dim"], given: Float[Tensor, "rows outer"], tolerance: float
) -> tuple[int, ...] | None:
    """For every head the start of the run of outputs that points the same way in every sequence."""
    dim = heads.shape[-1]
    if given.shape[1] < dim or given.shape[0] != heads.shape[0]:
        return None
    runs = given.double().unfold(1, dim, 1)  # [batch, start, dim]
    unit = torch.nn.functional.normalize(heads.double(), dim=-1)
    cosine = torch.einsum("bhd,bsd->bhs", unit, torch.nn.functional.normalize(runs, dim=-1)).amin(0)
    best = cosine.max(dim=1)
    return tuple(best.indices.tolist()) if bool((best.values >= 1 - tolerance).all()) else None


def _giver(change: Change, maps: list[LinearMap], tolerance: float) -> LinearMap | None:
    return next((m for m in maps if _parallel_vectors(m.given, change.taken, tolerance)), None)


def _taker(mixed: Float[Tensor, "batch inner"], maps: list[LinearMap], tolerance: float) -> Matrix | None:
    return next((m.matrix for m in maps if _parallel_vectors(m.taken, mixed, tolerance)), None)


def _parallel_vectors(left: Tensor, right: Tensor, tolerance: float) -> bool:
    if left.shape != right.shape:
        return False
    cosine = torch.nn.functional.cosine_similarity(left.double(), right.double(), dim=-1)
    return bool((cosine >= 1 - tolerance).all())


def _logit_scale(observed: ObservedCall) -> float:
    """The factor before q . k. Where the model made its own map it is read off the map's logarithm."""
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


def head_weights(
    columns: Columns | None, heads: int, model: nn.Module, parameters: Mapping[str, Tensor]
) -> Float[Tensor, "heads inner dim"] | None:
    """The matrix of every query head; grouped keys and values are repeated for the heads that share them."""
    if columns is None:
        return None
    matrix = columns.matrix.of(parameters)
    parts = torch.stack([matrix[:, start : start + columns.dim] for start in columns.starts])
    if columns.norm is not None:
        try:
            gain = _gain(model.get_submodule(columns.norm), columns, parts)
        except (IndexError, RuntimeError, TypeError, ValueError):
            return None  # no norm of one token's channels (a convolution over tokens): no matrix does what it does
        parts = parts * gain[:, None, :]
    return parts.repeat_interleave(heads // parts.shape[0], dim=0)


def _gain(norm: nn.Module, columns: Columns, like: Tensor) -> Float[Tensor, "head dim"]:
    """The per-channel gain of a norm: of +1, -1, +1, ... every norm gives gain times that, plus its bias."""
    whole = norm.get_parameter("weight").numel() if "weight" in dict(norm.named_parameters()) else columns.dim
    sign = torch.ones(whole, dtype=like.dtype, device=like.device)
    sign[1::2] = -1
    with torch.no_grad():
        gain: Tensor = (norm.forward(sign[None]) - norm.forward(-sign[None]))[0] / 2 * sign
    if whole == columns.dim:
        return gain.expand(len(columns.starts), -1)
    return torch.stack([gain[start : start + columns.dim] for start in columns.starts])


def output_weight(
    matrix: Matrix | None, heads: int, parameters: Mapping[str, Tensor]
) -> Float[Tensor, "heads value_dim width"] | None:
    """The output projection as one matrix per head: a view, no copy."""
    if matrix is None:
        return None
    whole = matrix.of(parameters)
    return whole.view(heads, whole.shape[0] // heads, whole.shape[1])


class ParametersInEffect(Mapping[str, Tensor]):
    """Every parameter by name, looked up when it is asked for: where something below its module changes a weight at
    every forward, as changed; where it is out of memory, read from where it lies."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._reach: Mapping[str, Tensor] | None = None

    def __getitem__(self, name: str) -> Tensor:
        path, _, last = name.rpartition(".")
        owner = self._model.get_submodule(path)
        for child in owner.children() if last == "weight" else ():
            changed = getattr(child, "weight_in_effect", None)
            if changed is not None:
                found: Tensor = changed(owner)
                return found
        parameter = self._model.get_parameter(name)
        if not parameter.is_meta:
            return parameter
        self._reach = in_reach(self._model) if self._reach is None else self._reach
        return self._reach[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._model.named_parameters())

    def __len__(self) -> int:
        return sum(1 for _ in self)


def weights_frame(
    model: nn.Module, found: Projections, heads: int, *, stack: str, site: str, layer: int
) -> WeightsFrame:
    """The projections of one attention call, read from the model now."""
    parameters = ParametersInEffect(model)
    return WeightsFrame(
        stack=stack,
        site=site,
        layer=layer,
        scale=found.scale,
        query_weight=head_weights(found.query, heads, model, parameters),
        key_weight=head_weights(found.key, heads, model, parameters),
        value_weight=head_weights(found.value, heads, model, parameters),
        output_weight=output_weight(found.output, heads, parameters),
    )
