"""The beginning of a watch: an eye for the first batch, and the header of the record."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from torch import nn

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.core.measure import Measure
from attnscope.records.timeline.header import RunHeader, fingerprint
from attnscope.watching.catching import Inputs
from attnscope.watching.eye import Eye
from attnscope.watching.settings import Settings

# What a forward raises where a batch does not fit.
_UNFIT = (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


def eye_for(
    model: nn.Module, measures: tuple[Measure, ...], inputs: Inputs, labels: Inputs, *, rows: int | None, probed: bool
) -> tuple[Eye, bool]:
    """Labels are left out of a look, which asks for no loss; a model that does not run without them has them, and
    whether it does comes with the eye. What does not run either way is refused for its first reason."""
    try:
        return Eye(model, measures, inputs, rows, probed=probed), False
    except (*_UNFIT, RefusalError) as error:
        reason = error
    if labels:
        try:
            return Eye(model, measures, {**inputs, **labels}, rows, probed=probed), True
        except (*_UNFIT, RefusalError):
            pass
    if isinstance(reason, RefusalError):
        raise reason
    words = (str(reason).strip().splitlines() or ["no reason given"])[0][:200]
    raise RefusalError(
        f"{type(model).__name__} does not run on {looked_at(probed)} ({type(reason).__name__}: {words}): give probe=, "
        "a batch that holds what its forward takes, within its vocabulary and its positions."
    ) from reason


def looked_at(probed: bool) -> str:
    return "a probe batch" if probed else "the batch that was trained on"


def header_of(
    model: nn.Module,
    eye: Eye,
    measures: tuple[Measure, ...],
    settings: Settings,
    limits: Mapping[str, Mapping[str, float]],
    *,
    probed: bool,
) -> RunHeader:
    config = getattr(model, "config", None)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    return RunHeader(
        attnscope=attnscope.__version__,
        model=settings.name or getattr(config, "_name_or_path", "") or type(model).__name__,
        fingerprint=fingerprint(type(model).__name__, shapes),
        stacks=eye.stacks,
        measures={measure.card.name: measure.card for measure in measures},
        settings=settings.to_json(limits, looked_at(probed)),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
