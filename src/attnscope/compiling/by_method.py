"""One construction on one pattern: built, rounded, certified, and searched for its smallest width."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attnscope.compiling.search import UNLIMITED, Build, Found, SearchBudget, at_width, smallest
from attnscope.core.construction import Construction
from attnscope.core.errors import RefusalError
from attnscope.core.progress import Advance, silent
from attnscope.heads.accuracy import Accuracy
from attnscope.heads.certified import Certified, certified
from attnscope.heads.factors import Factors
from attnscope.patterns.pattern import Pattern
from attnscope.patterns.reduction import Reduction, unreduced

LARGEST_FACTORS = 2**26  # numbers in queries and keys together: half a gigabyte


def narrowest_by(
    construction: Construction,
    pattern: Pattern,
    accuracy: Accuracy,
    *,
    lowest: int = 1,
    below: int | None = None,
    seed: int = 0,
    budget: SearchBudget = UNLIMITED,
    advance: Advance = silent,
    reduction: Reduction | None = None,
) -> Found:
    """The smallest width of a construction; with `below`, only widths under that one are of interest. With a
    `reduction` of the pattern the construction is given the smaller one, and its answer is lifted and certified."""
    build = building(construction, pattern, accuracy, reduction)
    asked = reduction or unreduced(pattern, accuracy.leak)
    if construction.fixed_width:
        # Where keys for all patterns are asked for, the bound may lie above what this one pattern needs.
        width = max(construction.fixed_width(asked.pattern) + asked.extra, lowest)
        return at_width(build, width, seed=seed, budget=replace(budget, restarts=1), advance=advance)
    return smallest(
        build,
        first=construction.first_width(asked.pattern) + asked.extra,
        lowest=max(lowest, 1 + asked.extra),
        highest=widest(construction, asked.pattern) + asked.extra if below is None else below - 1,
        seed=seed,
        budget=budget,
        advance=advance,
    )


def building(
    construction: Construction, pattern: Pattern, accuracy: Accuracy, reduction: Reduction | None = None
) -> Build:
    """A construction as the search wants it: what it is asked for is the width of the whole head."""
    asked = reduction or unreduced(pattern, accuracy.leak)
    stricter = replace(accuracy, leak=asked.leak)

    def build(width: int, seed: int, advance: Advance) -> Certified:
        if width <= asked.extra:
            raise RefusalError(f"A head of width {width} has no room for this pattern: ask for {asked.extra + 1}.")
        found = construction(asked.pattern, width - asked.extra, stricter, np.random.default_rng(seed), advance)
        notes = {**found.notes, **({"reduced": list(asked.words)} if asked.steps else {})}
        factors = Factors(*asked.lifted(found.queries, found.keys), notes, found.as_found)
        return certified(factors, pattern, accuracy, construction.name)

    return build


def refuse_too_wide(width: int, pattern: Pattern) -> None:
    """A width that was asked for: queries and keys of it must fit into memory several times over."""
    largest = max(1, LARGEST_FACTORS // (pattern.n + pattern.n_keys))
    if width > largest:
        size = 8 * width * (pattern.n + pattern.n_keys) / 1e9
        raise RefusalError(
            f"Queries and keys of width {width:,} for {pattern.n:,} rows would take {size:,.1f} GB: give a --width of "
            f"{largest:,} or less."
        )


def widest(construction: Construction, pattern: Pattern) -> int:
    """Where a search upwards ends. One key per dimension can do anything, so only random keys, which on small patterns
    need more than that, are worth a look beyond."""
    most = max(pattern.n_keys, 8 * construction.first_width(pattern))
    return max(1, min(most, LARGEST_FACTORS // (pattern.n + pattern.n_keys)))
