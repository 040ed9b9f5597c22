"""What every way of treating is given, and what it gives back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.treat.arms import Looked
from attnscope.commands.treat.halves import Halves, Losing
from attnscope.commands.treat.record import Chosen, Pruning, Training
from attnscope.core.progress import Advance
from attnscope.hf.loading.options import Sampling


@dataclass(frozen=True)
class Trial:
    """A model that was looked at, the text for it, and the remedy to try."""

    losing: Losing
    text: Halves
    sampling: Sampling
    chosen: Chosen
    before: Looked
    thresholds: Thresholds
    progress: Advance
    save: Path | None = None  # where the treated model goes


@dataclass(frozen=True)
class Result:
    chosen: Chosen
    treated: Looked
    control: Looked | None = None
    training: Training | None = None
    start: float = math.nan
    pruning: Pruning | None = None
    notes: tuple[str, ...] = ()
    before: Looked | None = None  # where what was before had to be measured again, on other sequences
