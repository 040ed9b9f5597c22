"""Run a model, reduce its output to one number, and keep the attention calls, embeddings and gradients.

    captured = capture(model, batch, found, entrances, number)
    captured.calls, captured.embedding, captured.embedding_gradient, captured.output

Fused attention stays on, and the output equals the output without capture bit for bit. For every attention call the
queries, keys, values and the gradient with respect to its output are kept, but not the pattern. Parameters do not
require gradients meanwhile: if a position bias did, torch would choose another kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.data.frame import AttentionFrame
from attnscope.hf.anatomy.anatomy import Anatomy
from attnscope.hf.anatomy.example import run
from attnscope.hf.intercepting.owners import first_output, repeated
from attnscope.hf.tapping.entrances import Entrance, entering, explaining
from attnscope.hf.tapping.tap import Frame, tap
from attnscope.matrix.relevance import AttentionCall

Vectors = dict[str, Float[Tensor, "token width"]]
Number = Callable[[Tensor], Float[Tensor, " batch"]]
"""The number to explain: a function from the model's first output to one number for each sequence."""


@dataclass(frozen=True)
class Captured:
    """The result of one run on one sequence. Vectors are keyed by stack."""

    value: float
    output: Tensor
    calls: tuple[AttentionCall, ...]
    embedding: Vectors
    embedding_gradient: Vectors


def capture(
    model: nn.Module, batch: Mapping[str, Any], found: Anatomy, entrances: tuple[Entrance, ...], number: Number
) -> Captured:
    """Run the model on a batch of one sequence, and take the gradient of `number`."""
    frames: list[AttentionFrame] = []
    leaves: dict[str, Tensor] = {}

    def receive(frame: Frame) -> None:
        if isinstance(frame, AttentionFrame) and (leaves or not entrances):  # ignore calls before the first entrance
            frames.append(frame)

    with explaining(model), tap(model, found, receive), entering(model, entrances, _leaf(leaves)):
        output = first_output(run(model, batch))
        leaves = {entrance.stack: leaves[entrance.stack] for entrance in entrances if entrance.stack in leaves}
        value = number(output).sum()
        _refuse_without_gradient(found, value)
        live = [_live(frame) for frame in frames]
        blind = _blind_to_the_last(frames, live)
        old = _of_old_states(frames, live, blind)
        wanted = [*leaves.values(), *(tensor for tensor in live if tensor.requires_grad)]
        gradients = iter(torch.autograd.grad(value, wanted, allow_unused=True))
    at_embedding = {stack: _or_zero(next(gradients), leaf)[0] for stack, leaf in leaves.items()}
    at_output = [_or_zero(next(gradients) if tensor.requires_grad else None, tensor) for tensor in live]
    calls = tuple(
        replace(_call(found, frame, gradient), sees_last=index not in blind, of_old_states=index in old)
        for index, (frame, gradient) in enumerate(zip(frames, at_output, strict=True))
    )
    _refuse_not_finite(found, calls, at_embedding)
    embedding = {stack: leaf.detach()[0] for stack, leaf in leaves.items()}
    return Captured(float(value.detach()), output.detach(), calls, embedding, at_embedding)


def gradient_under(
    model: nn.Module,
    batch: Mapping[str, Any],
    entrances: tuple[Entrance, ...],
    number: Number,
    context: AbstractContextManager[Any] | None = None,
) -> Vectors:
    """Run the model inside `context`, which may change the rules for gradients; return the gradient at the
    embeddings."""
    leaves: dict[str, Tensor] = {}
    with explaining(model), entering(model, entrances, _leaf(leaves)):
        with context or nullcontext():
            output = first_output(run(model, batch))
        gradients = torch.autograd.grad(number(output).sum(), list(leaves.values()), allow_unused=True)
    return {stack: _or_zero(own, leaf)[0] for (stack, leaf), own in zip(leaves.items(), gradients, strict=True)}


def output_with(
    model: nn.Module,
    batch: Mapping[str, Any],
    entrances: tuple[Entrance, ...],
    vectors: Mapping[str, Float[Tensor, "batch token width"]],
) -> Float[Tensor, " batch *shape"]:
    """Return the model's output for a batch of other embeddings of the same tokens; differentiable with respect to
    `vectors`."""
    wider = repeated(batch, len(next(iter(vectors.values()))))

    def give(stack: str, looked_up: Tensor) -> Tensor:
        return vectors[stack].to(looked_up.dtype).reshape(looked_up.shape).clone()

    grad = torch.is_grad_enabled()
    with explaining(model), torch.set_grad_enabled(grad), entering(model, entrances, give):
        return first_output(run(model, wider))


def asked_with(
    model: nn.Module,
    batch: Mapping[str, Any],
    entrances: tuple[Entrance, ...],
    number: Number,
    vectors: Mapping[str, Float[Tensor, "batch token width"]],
) -> Float[Tensor, " batch"]:
    """Return the number for a batch of other embeddings, as `output_with` does."""
    return number(output_with(model, batch, entrances, vectors))


def _leaf(leaves: dict[str, Tensor]) -> Callable[[str, Tensor], Tensor]:
    def give(stack: str, looked_up: Tensor) -> Tensor:
        leaves[stack] = looked_up.detach().clone().requires_grad_()
        return leaves[stack].clone()  # a leaf cannot be changed in place, as some models do

    return give


def _live(frame: AttentionFrame) -> Tensor:
    if frame.passed_on is None:
        raise RefusalError("An installed variant does not report its output: explain the model without it.")
    return frame.passed_on.tensor


def _depends(later: Tensor, earlier: Tensor) -> bool:
    (gradient,) = torch.autograd.grad(later.sum(), [earlier], allow_unused=True, retain_graph=True)
    return gradient is not None


def _blind_to_the_last(frames: list[AttentionFrame], live: list[Tensor]) -> frozenset[int]:
    """Return cross-attention calls that do not depend on the call just before them in the opposite direction."""

    def opposite(before: AttentionFrame, after: AttentionFrame) -> bool:
        return before.site == after.site == "cross" and before.stack != after.stack

    return frozenset(
        index
        for index in range(1, len(frames))
        if opposite(frames[index - 1], frames[index])
        and live[index].requires_grad
        and live[index - 1].requires_grad
        and not _depends(live[index], live[index - 1])
    )


def _of_old_states(frames: list[AttentionFrame], live: list[Tensor], blind: frozenset[int]) -> frozenset[int]:
    """Return cross-attention calls that read the other stream as it was before its last change.

    Calls in `blind` are left out. Streams are distinguished by their numbers of tokens.
    """
    sizes = [(frame.scores.query.shape[2], frame.scores.key.shape[2]) for frame in frames]
    crossing = {size for frame, size in zip(frames, sizes, strict=True) if frame.site == "cross"}
    old: list[int] = []
    for index, (frame, (queries, keys)) in enumerate(zip(frames, sizes, strict=True)):
        if frame.site != "cross" or (keys, queries) not in crossing or index in blind or not live[index].requires_grad:
            continue
        changed = [n for n in range(index) if sizes[n][0] == keys and live[n].requires_grad]
        if changed and not _depends(live[index], live[changed[-1]]):
            old.append(index)
    return frozenset(old)


def _or_zero(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient.detach()


def _call(found: Anatomy, frame: AttentionFrame, gradient: Tensor) -> AttentionCall:
    site = next(s for s in found.sites if s.key == (frame.stack, frame.site, frame.layer))
    if frame.site == "uneven":
        raise RefusalError(
            f"Block {frame.layer} of {found.model_class} attends from {frame.scores.query.shape[2]} tokens to "
            f"{frame.scores.key.shape[2]} of the same stack (pooling, global tokens, or several streams of one text), "
            "and relevance needs a square pattern: choose another model."
        )
    assert frame.passed_on is not None
    lse = None if frame.scores.lse is None else frame.scores.lse.detach()
    return AttentionCall(
        stack=frame.stack,
        keys_from=site.keys_from if frame.site == "cross" else frame.stack,
        layer=frame.layer,
        scores=replace(frame.scores, lse=lse),
        value=frame.value.detach(),
        gradient=frame.passed_on.laid_out(gradient),
    )


def _refuse_without_gradient(found: Anatomy, value: Tensor) -> None:
    if not bool(value.isfinite()):
        raise RefusalError(f"The output of {found.model_class} is NaN or infinite on this input: check its weights.")
    if not value.requires_grad:
        raise RefusalError(
            f"The output of {found.model_class} has no gradient with respect to this input, because it does not depend "
            "on it, or because quantised weights or the model's code block gradients: load it in float32, or choose "
            "another model."
        )


def _refuse_not_finite(found: Anatomy, calls: tuple[AttentionCall, ...], at_embedding: Vectors) -> None:
    """Refuse a gradient that is NaN or infinite, and name the first call of the backward pass where it is."""
    for call in reversed(calls):
        if not bool(call.gradient.isfinite().all()):
            raise RefusalError(
                f"The gradient is NaN or infinite at the attention of block {call.layer} ({call.stack}) of "
                f"{found.model_class}: try `dtype='float64'`, or check the weights after it."
            )
    if not all(bool(gradient.isfinite().all()) for gradient in at_embedding.values()):
        raise RefusalError(
            f"The gradient at the embedding of {found.model_class} is NaN or infinite: try `dtype='float64'`."
        )
