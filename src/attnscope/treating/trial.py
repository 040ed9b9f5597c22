"""What every way of treating is given, and what it gives back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from attnscope.core.progress import Advance
from attnscope.hf.loading.options import Sampling
from attnscope.records.survey.thresholds import Thresholds
from attnscope.records.treatment import Chosen, Pruning, Training
from attnscope.treating.arms import Looked
from attnscope.treating.halves import Halves
from attnscope.treating.losing import Losing


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
