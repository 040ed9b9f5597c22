"""`attnscope.compile`: find the narrowest head for a pattern, certify it, and bound the width from below."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import Any, Unpack

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
from attnscope.commands.compile.settings import AUTO, CompileOptions, CompileSettings
from attnscope.core.construction import Construction
from attnscope.core.decoding import plain
from attnscope.core.errors import RefusalError, one_of
from attnscope.core.progress import Advance, silent
from attnscope.core.registry import ceilings, constructions, for_auto
from attnscope.heads.accuracy import Accuracy
from attnscope.heads.bounds import lower_bounds
from attnscope.heads.pattern import Pattern
from attnscope.heads.read_pattern import read_pattern
from attnscope.heads.reduction import Reduction, reduced
from attnscope.hf.loading.options import with_options

CURVE_PAIRS = 2**22  # queries times keys above which logits on universal curves overflow, except on circles
FORCED_RESTARTS = 4  # a requested width gets more draws than a width in a search
WIDER = 4  # universal keys that fail another pattern grow by 1/WIDER of their width


@with_options(CompileOptions)
def compile(
    pattern: Any,
    *,
    settings: CompileSettings = CompileSettings(),
    causal: bool = False,
    normalise: bool = False,
    progress: Advance = silent,
    **kwargs: Unpack[CompileOptions],
) -> Compiled:
    """Find the narrowest attention head that realises a pattern.

    Ctrl-C ends the search with the best head so far.

    Parameters
    ----------
    pattern : Pattern or anything that `read_pattern` takes
        The keys that each query should attend to, with their weights.
    ratio_error, leak : float
        Limits for every row: the relative error of weights inside the pattern, and the weight outside it.
    dtype : str
        The precision of the head.
    method : str
        The construction, or "auto".
    width : int, optional
        Return the best head of this width, whether or not it reaches the accuracy.
    universal : bool
        Ask for keys that serve every pattern of this size.
    causal, normalise : bool
        Options of `read_pattern`, for input that is not a Pattern yet.
    seed : int
        The seed of random starts.
    budget : float
        Seconds after which the search ends, once a head reaches the accuracy (with `width`: once there is a head).
    settings : CompileSettings
        All of these keywords but `causal` and `normalise` as one object.
    progress : callable
        Called as `progress(stage, done, total)`.

    Returns
    -------
    Compiled
        The head, its certificate, and proved lower bounds of the width.

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
    accuracy, method, width, universal = settings.checked(), settings.method, settings.width, settings.universal
    chosen = _chosen(method, universal)
    pattern = read_pattern(pattern, causal=causal, normalise=normalise)
    if width is not None:
        refuse_too_wide(width, pattern)
    bounds = lower_bounds(pattern, accuracy, universal)
    reduction = (reduced if method == AUTO and not universal else Reduction)(pattern, accuracy.leak)
    deadline = start + settings.budget
    work = _Work(pattern, accuracy, reduction, bounds.best.width, settings.seed, deadline, progress, universal)
    others = KeysServed(None, None)
    if width is not None:
        best, why = work.forced(chosen, width, method)
    elif method == AUTO:
        best, why = work.narrowest(chosen)
    else:
        best, why = work.search(chosen), f"{chosen.name} was asked for."
    proved = proof(best.head, pattern, accuracy) if universal and best.certificate.reached else None
    if universal and width is None and proved is None:
        best, why, others = work.serving(best, why, chosen)
        proved = proof(best.head, pattern, accuracy) if best.certificate.reached else None
    queries, keys = best.head.arrays()
    return Compiled(
        queries=queries,
        keys=keys,
        certificate=best.certificate,
        target=pattern.entries(),
        method=best.head.method,
        why=why,
        seed=best.seed,
        seconds=round(time.process_time() - start, 3),
        bounds=bounds,
        tried=best.tried,
        universal=universal,
        forced=width is not None,
        interrupted=best.interrupted,
        out_of_time=best.ending == "out of time",
        notes=plain(best.head.notes),
        served=others.realised,
        served_of=others.tried,
        universality=proved,
    )


def _chosen(method: str, universal: bool) -> Construction:
    known = constructions()
    if method == AUTO:
        construction = for_auto("any pattern" if universal else "one pattern")
        if construction is None:
            raise RefusalError(f"There is no construction for auto: name a `method=`, one of {', '.join(known)}.")
        return construction
    one_of(method, (AUTO, *known), "method")
    if universal and not known[method].universal:
        able = ", ".join(name for name, construction in known.items() if construction.universal)
        raise RefusalError(f"The keys of {method} depend on the pattern: for universal keys choose one of {able}.")
    return known[method]


@dataclass(frozen=True)
class _Work:
    """The searches of one compilation, and the values that they share."""

    pattern: Pattern
    accuracy: Accuracy
    reduction: Reduction
    lowest: int  # a proved bound
    seed: int
    deadline: float
    progress: Advance
    universal: bool

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

    def _of_known_width(self) -> list[Construction]:
        """Return the constructions that accept this pattern and whose width follows from it."""
        return [c for c in ceilings() if (c.universal or not self.universal) and c.takes(self.reduction.pattern)]

    def forced(self, construction: Construction, width: int, method: str) -> tuple[Found, str]:
        """Return the best of several draws at the requested width, and the reason for its construction.

        If all draws miss the accuracy, `auto` also tries the constructions of known width.
        """
        best = self._at(construction, width, FORCED_RESTARTS)
        why = f"{construction.name}, at the width that was asked for."
        for alternative in self._of_known_width() if method == AUTO else ():
            if best.certificate.reached or best.interrupted:
                break
            with contextlib.suppress(RefusalError):  # it needs more width, or does not accept this pattern
                other = self._at(alternative, width, 1)
                if badness(other.certificate) < badness(best.certificate):
                    best = _joined(other, best)
                    why = f"{alternative.name}, which is better at this width than {construction.name}."
                else:
                    best = _joined(best, other)
        return best, why

    def _at(self, construction: Construction, width: int, restarts: int) -> Found:
        build = building(construction, self.pattern, self.accuracy, self.reduction)
        budget, advance = self._budget("once built", restarts), self._named(construction)
        return at_width(build, width, seed=self.seed, budget=budget, advance=advance)

    def narrowest(self, construction: Construction) -> tuple[Found, str]:
        """Choose the construction for `auto`, and say why.

        A construction of known width costs almost nothing to try. If its logits fit the precision, its width is a
        ceiling for the search. If that width equals the proved bound, no search is needed.
        """
        reason = "queries and keys may both be fitted to this one pattern"
        if self.universal:
            reason = (
                "you asked for keys that work for every pattern, and this construction's queries have the largest "
                "margin on them"
            )
        ceiling = self._ceiling()
        name = ceiling.head.method if ceiling else ""
        width = ceiling.certificate.d if ceiling and ceiling.certificate.reached else None
        holds = f"{name}, because it holds in {self.accuracy.dtype} at width {width}"
        if ceiling and width and width <= self.lowest and (self.universal or self.pattern.k > 1):
            no_less = "no narrower keys serve all patterns" if self.universal else "no narrower head has this pattern"
            return ceiling, f"{holds}, and {no_less}."
        searched: Found | None = None
        try:  # include the width of the ceiling: a searched head has far smaller logits
            searched = self.search(construction, below=None if width is None else width + 1)
        except KeyboardInterrupt:
            if ceiling is None:
                raise
            return replace(ceiling, ending="interrupted"), f"{name}, the only head built before the interruption."
        except RefusalError:
            if width is None:
                raise
        if ceiling is None or width is None:
            assert searched is not None
            return _joined(searched, ceiling), f"{construction.name}, because {reason}."
        if searched and searched.certificate.reached:
            return _joined(searched, ceiling), f"{construction.name}, because {reason}; {name} needs width {width}."
        return _joined(ceiling, searched), f"{holds}, where {construction.name} found nothing."

    def serving(self, found: Found, why: str, construction: Construction) -> tuple[Found, str, KeysServed]:
        """Try universal keys on other patterns, and try wider keys while some of these patterns fail."""
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
        construction, width = constructions()[found.head.method], found.head.width
        return served(construction, self.pattern, self.accuracy, width, found.seed, self._named(construction))

    def _ceiling(self) -> Found | None:
        """Return the narrowest accurate head of the constructions of known width, or else the most accurate head.

        Return None if no such construction accepts the pattern. Skip constructions that would take long to fail on it.
        """
        best: Found | None = None
        smaller = self.reduction.pattern
        for construction in self._of_known_width():
            with contextlib.suppress(RefusalError):
                width = construction.fixed_width(smaller) if construction.fixed_width else 0
                if construction.universal and smaller.n * smaller.n_keys > CURVE_PAIRS and width > 2:
                    continue
                candidate = self.search(construction)
                better = best is None or badness(candidate.certificate) < badness(best.certificate)
                best = _joined(candidate, best) if better or best is None else _joined(best, candidate)
        return best

    def _named(self, construction: Construction) -> Advance:
        return lambda stage, done, total: self.progress(f"{construction.name}, {stage}", done, total)


def _joined(kept: Found, other: Found | None) -> Found:
    """Return `kept` with the tries of both searches."""
    if other is None:
        return kept
    ending: Ending = "interrupted" if kept.interrupted or other.interrupted else kept.ending
    return replace(kept, tried=other.tried + kept.tried, ending=ending)
