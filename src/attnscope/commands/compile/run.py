"""`attnscope.compile`: the narrowest head found for a pattern, its certificate, and what is proved from below."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Any

from attnscope.commands.compile.fixed_keys import KeysServed, proof, served
from attnscope.commands.compile.record import Compiled
from attnscope.commands.compile.search import (
    RESTARTS,
    Binds,
    Ending,
    Found,
    SearchBudget,
    at_width,
    badness,
    building,
    narrowest_by,
    refuse_too_wide,
    widest,
)
from attnscope.core.construction import Construction
from attnscope.core.decoding import plain
from attnscope.core.errors import RefusalError, at_least, one_of
from attnscope.core.progress import Advance, silent
from attnscope.core.registry import ceilings, constructions, for_auto
from attnscope.core.stamp import refuse_unusable_seed
from attnscope.heads.accuracy import Accuracy, checked_accuracy
from attnscope.heads.bounds import lower_bounds
from attnscope.heads.pattern import Pattern
from attnscope.heads.read_pattern import read_pattern
from attnscope.heads.reduction import Reduction, reduced

AUTO = "auto"
CURVE_PAIRS = 2**22  # above it the logits on universal curves exceed every precision, except on circles
FORCED_RESTARTS = 4  # a requested width gets more draws than a width in a search
WIDER = 4  # universal keys that fail another pattern grow by 1/WIDER of their width
BUDGET = 300.0  # seconds after which a search that has found something ends


def compile(
    pattern: Any,
    *,
    ratio_error: float = 0.1,
    leak: float = 0.01,
    dtype: str = "float32",
    method: str = AUTO,
    width: int | None = None,
    universal: bool = False,
    causal: bool = False,
    normalise: bool = False,
    seed: int = 0,
    budget: float = BUDGET,
    progress: Advance = silent,
) -> Compiled:
    """Find the narrowest attention head that realises a pattern.

    Ctrl-C ends the search with the best head so far.

    Parameters
    ----------
    pattern : Pattern or anything that `read_pattern` takes
        What the head should attend to.
    ratio_error, leak : float
        The error of weights inside the pattern, and the weight outside it, that any row may have.
    dtype : str
        The precision in which the head has to hold.
    method : str
        The construction, or "auto".
    width : int, optional
        Return the best head of this width, whether or not it reaches the accuracy.
    universal : bool
        Ask for keys that serve every pattern of this size.
    causal, normalise : bool
        How to read what is not a Pattern yet, as for `read_pattern`.
    seed : int
        The seed of random starts.
    budget : float
        Seconds after which the search ends, once a head reaches the accuracy (with `width`: once there is a head).
    progress : callable
        Called as `progress(stage, done, total)`.

    Returns
    -------
    Compiled
        The head, its certificate, and the widths that are proved from below.

    Raises
    ------
    RefusalError
        If the pattern cannot be read, an option is unusable, or the construction does not fit the pattern.

    Examples
    --------
    >>> compiled = attnscope.compile(attnscope.generate("window", 16, 2))
    >>> compiled.certificate.reached, compiled.head.width
    (True, 2)
    """
    start = time.process_time()
    accuracy = checked_accuracy(ratio_error, leak, dtype)
    chosen = _chosen(method, universal)
    if width is not None:
        at_least(width, 1, "width")
    refuse_unusable_seed(seed, lowest=0)
    at_least(budget, 0, "budget")
    pattern = read_pattern(pattern, causal=causal, normalise=normalise)
    if width is not None:
        refuse_too_wide(width, pattern)
    bounds = lower_bounds(pattern, accuracy, universal)
    work = _Work(
        pattern,
        accuracy,
        bounds.best.width,
        seed,
        start + budget,
        progress,
        universal,
        method == AUTO and not universal,
    )
    others = KeysServed(None, None)
    if width is not None:
        found, why = work.forced(chosen, width, method)
    elif method == AUTO:
        found, why = work.narrowest(chosen, universal)
    else:
        found, why = work.search(chosen), f"{chosen.name} was asked for."
    proved = proof(found.head, pattern, accuracy) if universal and found.certificate.reached else None
    if universal and width is None and proved is None:
        found, why, others = work.serving(found, why, chosen)
        proved = proof(found.head, pattern, accuracy) if found.certificate.reached else None
    queries, keys = found.head.arrays()
    return Compiled(
        queries=queries,
        keys=keys,
        certificate=found.certificate,
        target=pattern.entries(),
        method=found.head.method,
        why=why,
        seed=found.seed,
        seconds=round(time.process_time() - start, 3),
        bounds=bounds,
        tried=found.tried,
        universal=universal,
        forced=width is not None,
        interrupted=found.interrupted,
        out_of_time=found.ending == "out of time",
        notes=plain(found.head.notes),
        served=others.realised,
        served_of=others.tried,
        universality=proved,
    )


def _chosen(method: str, universal: bool) -> Construction:
    known = constructions()
    if method == AUTO:
        taken = for_auto("any pattern" if universal else "one pattern")
        if taken is None:
            raise RefusalError(f"No construction offers itself to auto: name a `method=`, one of {', '.join(known)}.")
        return taken
    one_of(method, (AUTO, *known), "method")
    if universal and not known[method].universal:
        able = ", ".join(name for name, one in known.items() if one.universal)
        raise RefusalError(
            f"The keys of {method} depend on the pattern, so it cannot give universal ones: choose one of {able}."
        )
    return known[method]


class _Work:
    """One compilation. All its searches share pattern, accuracy, bounds, seed, time limit and progress."""

    def __init__(
        self,
        pattern: Pattern,
        accuracy: Accuracy,
        lowest: int,
        seed: int,
        deadline: float,
        progress: Advance,
        universal: bool,
        reducing: bool,
    ) -> None:
        self.pattern, self.accuracy, self.lowest, self.seed, self.progress = pattern, accuracy, lowest, seed, progress
        self.deadline = deadline
        self.reduction = (reduced if reducing else Reduction)(pattern, accuracy.leak)
        self.fixed = [
            one for one in ceilings() if (one.universal or not universal) and one.takes(self.reduction.pattern)
        ]

    def search(self, construction: Construction, below: int | None = None) -> Found:
        return narrowest_by(
            construction,
            self.pattern,
            self.accuracy,
            lowest=self.lowest,
            below=below,
            seed=self.seed,
            budget=self._budget("once reached"),
            advance=self._named(construction),
            reduction=self.reduction,
        )

    def _budget(self, binds: Binds, restarts: int = RESTARTS) -> SearchBudget:
        return SearchBudget(self.deadline - time.process_time(), binds, restarts)

    def forced(self, construction: Construction, width: int, method: str) -> tuple[Found, str]:
        """Return the best of several draws at the requested width. If all miss, `auto` also tries heads of
        known width.
        """
        found = self._at(construction, width, FORCED_RESTARTS)
        why = f"{construction.name}, at the width that was asked for."
        for one in self.fixed if method == AUTO else ():
            if found.certificate.reached or found.interrupted:
                break
            with contextlib.suppress(RefusalError):  # it is wider than that, or does not take this pattern
                other = self._at(one, width, 1)
                if badness(other.certificate) < badness(found.certificate):
                    found = _joined(other, found)
                    why = f"{one.name}, which is better there than {construction.name}."
                else:
                    found = _joined(found, other)
        return found, why

    def _at(self, construction: Construction, width: int, restarts: int) -> Found:
        build = building(construction, self.pattern, self.accuracy, self.reduction)
        return at_width(
            build,
            width,
            seed=self.seed,
            budget=self._budget("once built", restarts),
            advance=self._named(construction),
        )

    def narrowest(self, construction: Construction, universal: bool) -> tuple[Found, str]:
        """Choose the construction for `auto`, and say why.

        A construction of known width costs almost nothing to try. If its logits fit the precision, its width is a
        ceiling for the search. If that width equals the proved bound, no search is needed.
        """
        reason = (
            "keys that serve every pattern were asked for, and its queries keep the largest margin on them"
            if universal
            else "queries and keys may both be fitted to this one pattern"
        )
        fixed = self._ceiling()
        name = fixed.head.method if fixed else ""
        if fixed is None or not fixed.certificate.reached:
            try:
                only = self.search(construction)
            except KeyboardInterrupt:
                if fixed is None:
                    raise
                return _interrupted(fixed), f"{name}, the only head that was built before the interruption."
            return _joined(only, fixed), f"{construction.name}, because {reason}."
        width, dtype = fixed.certificate.d, self.accuracy.dtype
        holds = f"{name}, because it holds in {dtype} at width {width}"
        if width <= self.lowest and (universal or self.pattern.k > 1):
            no_less = "narrower keys serve not all patterns" if universal else "no narrower head has this pattern"
            return fixed, f"{holds}, and {no_less}."
        try:  # include that width: a searched head has far smaller logits
            found: Found | None = self.search(construction, below=width + 1)
        except KeyboardInterrupt:
            return _interrupted(fixed), f"{name}, the only head that was built before the interruption."
        except RefusalError:  # it has no head that narrow
            found = None
        if found and found.certificate.reached:
            return _joined(found, fixed), f"{construction.name}, because {reason}; {name} needs width {width}."
        return _joined(fixed, found), f"{holds}, where {construction.name} found nothing."

    def serving(self, found: Found, why: str, construction: Construction) -> tuple[Found, str, KeysServed]:
        """Try universal keys on other patterns, and search wider keys while some of these fail."""
        others, width = self._served(found), found.head.width
        while others.tried and others.realised != others.tried and time.process_time() < self.deadline:
            width += max(1, width // WIDER)
            if width > widest(construction, self.pattern):
                break
            wider = self._at(construction, width, RESTARTS)
            then = self._served(wider)
            if then.realised is not None and then.realised > (others.realised or 0):
                found, others = _joined(wider, found), then
                why = f"{construction.name}, because narrower keys failed other patterns that were tried."
        return found, why, others

    def _served(self, found: Found) -> KeysServed:
        if not found.certificate.reached or found.ending != "finished":
            return KeysServed(None, None)
        taken = constructions()[found.head.method]
        return served(taken, self.pattern, self.accuracy, found.head.width, found.seed, self._named(taken))

    def _ceiling(self) -> Found | None:
        """Return the narrowest head of known width, or the nearest miss.

        Return None if no such construction takes the pattern, or only ones that would take long to fail on it.
        """
        best: Found | None = None
        smaller = self.reduction.pattern
        for one in self.fixed:
            with contextlib.suppress(RefusalError):
                width = one.fixed_width(smaller) if one.fixed_width else 0
                if one.universal and smaller.n * smaller.n_keys > CURVE_PAIRS and width > 2:
                    continue
                found = self.search(one)
                better = best is None or badness(found.certificate) < badness(best.certificate)
                best = _joined(found, best) if better or best is None else _joined(best, found)
        return best

    def _named(self, construction: Construction) -> Advance:
        def advance(stage: str, done: int, total: int) -> None:
            self.progress(f"{construction.name}, {stage}", done, total)

        return advance


def _joined(kept: Found, other: Found | None) -> Found:
    """Return the head of `kept` with the tries of both."""
    if other is None:
        return kept
    ending: Ending = "interrupted" if kept.interrupted or other.interrupted else kept.ending
    return replace(kept, tried=other.tried + kept.tried, ending=ending)


def _interrupted(found: Found) -> Found:
    return replace(found, ending="interrupted")
