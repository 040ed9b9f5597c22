"""What `paths` asks for: the target in the output of a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from attnscope.core.errors import RefusalError
from attnscope.hf.loading.asking import asked, place_of, spaced, unmasked, where_said, whole_position
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.one_text import Reading
from attnscope.hf.loading.outputs import Entries, entries
from attnscope.pathways.network import Network
from attnscope.pathways.targets import Target, residual_norm, stream_norm
from attnscope.records.paths import Goal

NORMS: dict[str, tuple[Goal, Callable[[Network], Target]]] = {
    "residual_norm": (Goal("residual_norm"), residual_norm),
    "stream_norm": (Goal("stream_norm"), stream_norm),
}


@dataclass(frozen=True)
class Aim:
    """The target, what it asks of the output, and what should be said about the choice."""

    target: Target
    goal: Goal  # the target by its parts
    entries: Entries
    entry: int | None  # whose probability is followed; None for norms
    position: int | None  # from 0; None where the output has no axis of tokens
    notes: tuple[str, ...] = ()


def aim(
    loaded: Loaded,
    network: Network,
    read: Reading,
    target: str | int | None,
    against: str | int | None,
    position: int | None,
) -> Aim:
    """The number to decompose. Without `target` what the model itself says is most likely; for models that give states
    and no logits, what tells tokens apart."""
    target, against = (asked(name, given) for name, given in (("target", target), ("against", against)))
    position = whole_position(position)
    output = network.output
    found = entries(loaded, output)
    place = place_of(output, read, found, position)
    if target in NORMS or (target is None and found.output == "states"):
        if against is not None:
            raise RefusalError("--against is a second token or class: it has no meaning beside a norm.")
        goal, norm = NORMS[str(target or "residual_norm")]
        made = norm(network)
        said = "" if target else f"{loaded.class_name} gives states and no logits, so the target is {made.name}."
        return Aim(made, goal, found, None, place, (said,) if said else ())
    if found.output == "states":
        raise RefusalError(
            f"{loaded.class_name} gives states and no logits: choose the target {' or '.join(NORMS)}, or a model with "
            "a head."
        )
    row = output[0] if place is None else output[0, place]
    entry = int(row.argmax()) if target is None else found.number(target)
    weights: tuple[tuple[int, float], ...] = ((entry, 1.0),)
    goal = Goal("logit", found.word(entry), where=where_said(loaded, read, place))
    if against is not None:
        other = found.number(against)
        if other == entry:
            raise RefusalError(f"The target and --against are both '{found.word(entry)}': choose two that differ.")
        weights, goal = (*weights, (other, -1.0)), replace(goal, kind="difference", other=found.word(other))
    notes = (*spaced(found, target, row), *unmasked(loaded, found, read, position))
    return Aim(Target(_sentence(goal), weights, place), goal, found, entry, place, notes)


def _sentence(goal: Goal) -> str:
    """A logit, or a difference of two, in words."""
    taken = "" if goal.other is None else f" minus that of '{goal.other}'"
    return f"logit of '{goal.word}'{taken}{goal.where and ' '}{goal.where}"
