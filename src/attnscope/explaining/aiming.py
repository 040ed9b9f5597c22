"""The number that is explained: a logit, a difference of two, the size of an embedding, or how alike two texts are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.example import run
from attnscope.hf.loading.asking import asked, place_of, spaced, unmasked, where_said, whole_position
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.one_text import Reading, reading
from attnscope.hf.loading.outputs import entries
from attnscope.hf.seeing.gradients import without_gradients
from attnscope.hf.seeing.intact import evaluating, without_cache
from attnscope.hf.tapping.capture import Number, first_output
from attnscope.records.explanation import Asked

NORM = "norm"


@dataclass(frozen=True)
class Aim:
    """`number` takes the model's output to one number for each sequence. `direction` reads the same number from this
    output as a linear functional, for what is exact only there."""

    number: Number
    direction: Float[Tensor, " batch *shape"]
    goal: Asked
    position: int | None
    chance: Number  # the same answer as a number that is 0 or more: a probability, where there is one
    notes: tuple[str, ...] = ()


def aim(
    loaded: Loaded,
    read: Reading,
    output: Float[Tensor, " batch *shape"],
    *,
    target: str | int | None,
    against: str | int | None,
    position: int | None,
    bos: str,
) -> Aim:
    """Without `target`, what the model itself says is most likely; of states, the norm of their mean."""
    target, against = (asked(name, given) for name, given in (("target", target), ("against", against)))
    position = whole_position(position)
    found = entries(loaded, output)
    if found.output == "states":
        if position is not None:
            raise RefusalError(f"{loaded.class_name} gives states, of which the mean is taken: leave --position out.")
        return _of_states(loaded, output, target, against, bos)
    place = place_of(output, read, found, position)
    row = output[0] if place is None else output[0, place]
    entry = int(row.argmax()) if target is None else found.number(target)
    weights = {entry: 1.0}
    goal = Asked("logit", found.word(entry), where=where_said(loaded, read, place))
    if against is not None:
        other = found.number(against)
        if other == entry:
            raise RefusalError(f"The target and --against are both '{found.word(entry)}': choose two that differ.")
        weights[other] = -1.0
        goal = replace(goal, kind="difference", other=found.word(other))
    direction = torch.zeros_like(output)
    for one, weight in weights.items():
        direction[(0, one) if place is None else (0, place, one)] = weight

    def number(given: Tensor) -> Tensor:
        rows = given if place is None else given[:, place]
        return torch.stack([weight * rows[:, one] for one, weight in weights.items()]).sum(0)

    def chance(given: Tensor) -> Tensor:
        return (given if place is None else given[:, place]).softmax(-1)[:, entry]

    notes = (*spaced(found, target, row), *unmasked(loaded, found, read, position))
    return Aim(number, direction, goal, place, chance, notes)


def _of_states(loaded: Loaded, output: Tensor, target: str | int | None, against: str | int | None, bos: str) -> Aim:
    """States and no logits: sentence encoders, as a rule, whose embedding is the mean over tokens."""
    if target not in (None, NORM):
        raise RefusalError(
            f"{loaded.class_name} gives states and no logits: leave --target out (the norm of the mean state is "
            "explained), or give --against another text to explain how alike they are."
        )
    if output.ndim not in (2, 3):
        raise RefusalError(
            f"{loaded.class_name} gives a tensor of {output.ndim} axes and no logits, of which no single number is the "
            "answer: choose a model with a head."
        )
    mean = _mean(output)[0]
    if against is None:
        said = f"{loaded.class_name} gives states and no logits: explained is the norm of their mean over tokens."
        if output.ndim == 2:
            said = f"{loaded.class_name} gives one state for the whole input, and no logits: explained is its norm."
        unit = mean / mean.norm().clamp_min(torch.finfo(mean.dtype).tiny)
        return Aim(_norm, _spread(output, unit), Asked("norm"), None, _norm, (said,))
    if not isinstance(against, str):
        raise RefusalError(f"{loaded.class_name} gives states and no logits: --against is another text, not a number.")
    other = _embedding(loaded, against, bos)
    said = (
        f"{loaded.class_name} gives states and no logits: explained is how alike the two texts are, the cosine of "
        "their mean states."
    )
    unit = other / (other.norm() * mean.norm()).clamp_min(torch.finfo(mean.dtype).tiny)
    number = _likeness(other)
    asked_for = Asked("similarity", other=against)
    return Aim(number, _spread(output, unit), asked_for, None, lambda given: number(given).clamp_min(0), (said,))


def _mean(given: Float[Tensor, "batch *token width"]) -> Float[Tensor, "batch width"]:
    """Over tokens; one state for the whole input is its own mean."""
    return given.mean(1) if given.ndim == 3 else given


def _norm(given: Float[Tensor, "batch *token width"]) -> Float[Tensor, " batch"]:
    size: Tensor = torch.linalg.vector_norm(_mean(given), dim=-1)
    return size


def _likeness(other: Float[Tensor, " width"]) -> Callable[[Tensor], Tensor]:
    def number(given: Float[Tensor, "batch *token width"]) -> Float[Tensor, " batch"]:
        return F.cosine_similarity(_mean(given), other[None], dim=-1)

    return number


def _spread(output: Float[Tensor, "batch *token width"], unit: Float[Tensor, " width"]) -> Tensor:
    """A functional of the mean state as one of all states."""
    return (unit / (output.shape[1] if output.ndim == 3 else 1)).expand(output.shape).clone()


def _embedding(loaded: Loaded, text: str, bos: str) -> Float[Tensor, " width"]:
    batch = reading(loaded, text, bos, what="Explanations").batch
    with evaluating(loaded.model), without_cache(loaded.model), without_gradients():
        return _mean(first_output(run(loaded.model, batch)))[0]
