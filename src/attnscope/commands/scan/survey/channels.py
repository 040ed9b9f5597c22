"""Read from a survey which channels of the stream are outliers, in which blocks and on which token.

An outlier channel has an entry above 100. It is massive if that entry is also 1,000 times the median magnitude of its
stream (Sun et al. 2024, arXiv:2402.17762).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.words import blocks

_USUAL = 0.5  # share of sequences in which a channel must be there to be listed for a block


@dataclass(frozen=True)
class OutlierChannel:
    """A channel, the blocks whose stream holds it (entering or inside), its usual token, and its largest mean size.

    `massive` is True if it is massive in some block; `blocks` are then those blocks only. `times_median` is the largest
    ratio of its size to the median magnitude.
    """

    channel: int
    massive: bool
    blocks: tuple[int, ...]
    token: int
    size: float
    times_median: float

    def words(self, token: int | None) -> str:
        """Return `507 (blocks 12-28)`, with its token if that is not `token`."""
        other = "" if self.token == token else f", token {self.token}"
        return f"{self.channel} ({blocks(self.blocks)}{other})"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "blocks": list(self.blocks)}


@dataclass(frozen=True)
class _Seen:
    layer: int
    channel: int
    token: int
    size: float
    median: float

    @property
    def times_median(self) -> float:
        return self.size / self.median if self.median else math.inf


def outlier_channels(survey: Survey, stack: str, *, size: float, times: float) -> list[OutlierChannel]:
    """Return the channels above `size` in some block, massive ones first (above `times` the median).

    Within both groups, the channel that is the most times the median comes first.

    Empty if `outlier_channels` was not measured. A channel belongs to a block if it is there in at least half of the
    sequences.
    """
    found: dict[int, list[_Seen]] = {}
    for seen in _ranks(survey, stack):
        if seen.size > size:
            found.setdefault(seen.channel, []).append(seen)
    channels = []
    for channel, places in found.items():
        massive = [seen for seen in places if seen.times_median > times]
        largest = max(places, key=lambda seen: seen.size)
        where = tuple(sorted({seen.layer for seen in massive or places}))
        steepest = max(seen.times_median for seen in places)
        channels.append(OutlierChannel(channel, bool(massive), where, largest.token, largest.size, steepest))
    return sorted(channels, key=lambda channel: (not channel.massive, -channel.times_median, channel.channel))


def _ranks(survey: Survey, stack: str) -> Iterator[_Seen]:
    """Yield what each rank of `outlier_channels` says about each block, without the stream after the last block."""
    last = max((key.layer for key in survey.cells if key.stack == stack and key.site == "stream"), default=0)
    sequences = {
        (key.site, key.layer): int(cell.moments.count)
        for key, cell in survey.cells.items()
        if key[:3] == ("outlier_channels", "value", stack)
    }
    medians = {
        (key.site, key.layer): float(cell.moments.mean)
        for key, cell in survey.cells.items()
        if key[:3] == ("outlier_channels", "median", stack)
    }
    for key, cell in survey.cells.items():
        if key.measure != "outlier_channels" or key.stack != stack or key.part in ("value", "median"):
            continue
        place = (key.site, key.layer)
        if key.layer == last or place not in medians or not cell.moments.count.any():
            continue
        token = cell.tallies["token"].most_common()[0]
        labels, counts = cell.tallies["channel"].cells()[0]
        for channel, count in zip(labels.tolist(), counts.tolist(), strict=True):
            if token is not None and count >= _USUAL * sequences.get(place, 0):
                yield _Seen(key.layer, channel, token[0], float(cell.moments.mean), medians[place])
