"""How much of a finding is chance: what other text of the same kind might have made of it.

A finding counts heads (or places) whose mean m over sequences is beyond a bar b. A mean over g texts has the standard
error s = sd / sqrt(g): as if every text had given one sequence, since sequences of one text are alike. So a head is
beyond the bar on other text with probability p = Phi(|m - b| / s) if it is now, and the number of heads beyond it has
the standard deviation sqrt(sum_h p_h (1 - p_h)). Heads far from the bar add nothing to it, one on the bar adds 1/4.

Both models read the same text, which moves their numbers together: the difference of two counts varies less than the
root of both variances, which is taken here. What another seed of the same training would have made is not in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from attnscope.core.finding import Finding
from attnscope.records.paired_findings import concerned
from attnscope.records.survey.survey import Survey

SURE = 2.0  # standard deviations: chance goes beyond them in 1 of 20


@dataclass(frozen=True)
class Reading:
    """A survey and how many independent texts are behind it; without a survey nothing is left to chance."""

    survey: Survey | None = None
    texts: int = 0

    def variance_of_count(self, finding: Finding) -> float:
        """Of the number of heads or places beyond the bar of `finding`, which may be of another arm."""
        means, errors = self._numbers(finding, finding.details.get("site"))
        bar = finding.threshold * float(finding.details.get("largest_entropy", 1.0))
        if not len(means) or not math.isfinite(bar):
            return 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            beyond = ndtr(np.where(errors > 0, (means - bar) / errors, np.where(means > bar, np.inf, -np.inf)))
        return float((beyond * (1 - beyond)).sum())

    def explains(self, finding: Finding) -> bool:
        """Whether the heads or places of a finding are those beyond its bar and no others; some rules ask for more."""
        means, _ = self._numbers(finding, finding.details.get("site"))
        bar = finding.threshold * float(finding.details.get("largest_entropy", 1.0))
        above = finding.value >= finding.threshold
        return int((means > bar).sum() if above else (means < bar).sum()) == concerned(finding)

    def error_of_value(self, finding: Finding) -> float:
        """The standard error of a finding's number: of the mean that it is, or a share of it where it is a ratio."""
        means, errors = self._numbers(finding, None)
        if not len(means):
            return 0.0
        scale = float(finding.details.get("largest_entropy", 1.0))
        value = finding.value * scale
        place = int(np.abs(means - value).argmin())
        if math.isclose(float(means[place]), value, rel_tol=1e-6):
            return float(errors[place]) / scale
        shares = errors[means != 0] / np.abs(means[means != 0])
        return abs(finding.value) * float(shares.max(initial=0.0))

    def _numbers(self, finding: Finding, site: object) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Means of the finding's measure and their standard errors, over heads and places."""
        measure = finding.details.get("measure")
        if self.survey is None or self.texts < 1 or measure is None:
            return np.empty(0), np.empty(0)
        cells = [
            cell.moments
            for key, cell in self.survey.cells.items()
            if key[:3] == (measure, "value", finding.stack) and site in (None, key.site)
        ]
        if not cells:
            return np.empty(0), np.empty(0)
        means = np.concatenate([np.ravel(one.mean) for one in cells])
        spread = np.concatenate([np.ravel(one.std) for one in cells])
        known = np.isfinite(means) & np.isfinite(spread)
        return means[known], spread[known] / math.sqrt(self.texts)
