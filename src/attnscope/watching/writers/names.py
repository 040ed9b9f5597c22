"""What a look is called in a logger. These names are stable: dashboards are built on them.

    attnscope/MEASURE/STACK/SITE/layer_L       the number of layer L; of measures of heads, their mean
    attnscope/MEASURE/STACK/SITE/smallest      over all layers and heads; of the stream, over its places
    attnscope/MEASURE/STACK/SITE/largest
    attnscope/MEASURE/STACK/SITE/heads         an image, layers downwards and heads to the right (of heads only)
    attnscope/alarms                           how many alarms hold, and where a logger has texts, their sentences
    attnscope/loss, attnscope/tokens, attnscope/tokens_a_second, attnscope/cost

A part that is not called `value` is named behind its measure: `attnscope/spike.second/model/stream/layer_3`. Numbers
that are not finite are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from attnscope.charts.palette import sequential
from attnscope.core.card import Card
from attnscope.records.timeline.look import Look, Values

ROOT = "attnscope"
SQUARE = 12  # pixels of a head
_MISSING = (200, 200, 200)


def name_of(values: Values) -> str:
    measure = values.measure if values.part == "value" else f"{values.measure}.{values.part}"
    return f"{ROOT}/{measure}/{values.stack}/{values.site}"


def scalars(look: Look, before: Look | None = None) -> dict[str, float]:
    """All numbers of a look by name; `before` is the look that speed counts from."""
    said = {f"{ROOT}/cost": look.cost, f"{ROOT}/tokens": float(look.tokens)}
    if look.loss is not None and np.isfinite(look.loss):
        said[f"{ROOT}/loss"] = look.loss
    passed = look.seconds - (before.seconds if before else 0.0)
    if passed > 0:
        said[f"{ROOT}/tokens_a_second"] = (look.tokens - (before.tokens if before else 0)) / passed
    for values in look.values:
        name, numbers = name_of(values), values.numbers
        known = np.isfinite(numbers)
        if not known.any():
            continue
        said[f"{name}/smallest"] = float(numbers[known].min())
        said[f"{name}/largest"] = float(numbers[known].max())
        for layer, (row, there) in enumerate(zip(numbers, known, strict=True)):
            if there.any():
                said[f"{name}/layer_{layer}"] = float(np.mean(row[there]))
    return said


def images(look: Look, cards: Mapping[str, Card]) -> dict[str, NDArray[np.uint8]]:
    """A picture [height, width, 3] of every measure of heads, in the colours of the pages.

    Colours run over what a measure can be where its card bounds that, else over what this look has.
    """
    return {
        f"{name_of(values)}/heads": _picture(values.numbers, cards.get(values.measure))
        for values in look.values
        if values.numbers.ndim == 2 and np.isfinite(values.numbers).any()
    }


def _picture(numbers: NDArray[np.float64], card: Card | None) -> NDArray[np.uint8]:
    ramp = np.array([[int(colour[n : n + 2], 16) for n in (1, 3, 5)] for colour in sequential("light")], np.uint8)
    known = np.isfinite(numbers)
    bounded = card is not None and card.bound is None and np.isfinite([card.low, card.high]).all()
    low, high = (card.low, card.high) if card is not None and bounded else (numbers[known].min(), numbers[known].max())
    share = (np.where(known, numbers, low) - low) / (high - low if high > low else 1.0)
    pixels = ramp[np.rint(np.clip(share, 0, 1) * (len(ramp) - 1)).astype(int)]
    pixels[~known] = _MISSING
    return np.ascontiguousarray(pixels.repeat(SQUARE, axis=0).repeat(SQUARE, axis=1))
