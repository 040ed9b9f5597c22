"""Requirements on every registered construction. A new file in `constructions` is tested here without changes."""

from __future__ import annotations

import json
from typing import get_args

import numpy as np
import pytest

from attnscope.core.construction import Auto, Construction
from attnscope.core.errors import RefusalError
from attnscope.core.registry import ceilings, constructions, for_auto
from attnscope.heads.accuracy import Accuracy, Factors
from attnscope.heads.bounds import lower_bounds
from attnscope.heads.certificate import certify
from attnscope.heads.generate import union_of_permutations, window
from attnscope.heads.pattern import Pattern
from attnscope.heads.rounding import rounded

N, K = 16, 2
every_construction = pytest.mark.parametrize("build", constructions().values(), ids=constructions())
universal = pytest.mark.parametrize(
    "build",
    [c for c in constructions().values() if c.universal],
    ids=[n for n, c in constructions().items() if c.universal],
)


def rectangular(n: int = 9, n_keys: int = 14) -> Pattern:
    columns = np.array([[i, (5 * i + 3) % n_keys] for i in range(n)])
    rows = np.repeat(np.arange(n), 2)
    return Pattern.of(rows, columns.ravel(), np.tile([0.3, 0.7], n), n=n, n_keys=n_keys, name="rectangular")


def uneven() -> Pattern:
    """Rows of one and of three entries."""
    rows, columns = np.array([0, 0, 0, 1, 2, 3, 4, 4, 4]), np.array([0, 2, 4, 1, 3, 0, 1, 3, 4])
    return Pattern.of(rows, columns, np.array([1, 2, 3, 1, 1, 1, 2, 1, 1.0]), n=5, normalise=True, name="uneven")


PATTERNS = [union_of_permutations(N, K, 0), window(N, K, causal=True), rectangular(), uneven()]


def widths(build: Construction, pattern: Pattern) -> list[int]:
    if build.fixed_width:
        return [build.fixed_width(pattern)]
    first = build.first_width(pattern)
    return [first + extra for extra in (0, 2, 4, 8, 16, 32)]


def run(build: Construction, pattern: Pattern, width: int, seed: int = 0) -> Factors:
    factors = build(pattern, width, Accuracy(), np.random.default_rng(seed))
    assert isinstance(factors, Factors)
    return factors


@every_construction
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.name + ("-causal" if p.causal else ""))
def test_a_small_pattern_is_certified_from_its_first_width_upwards(build: Construction, pattern: Pattern) -> None:
    if not build.takes(pattern):
        with pytest.raises(RefusalError, match=r"^[A-Z].*: .*\.$"):
            run(build, pattern, widths(build, pattern)[0])
        return
    for width in widths(build, pattern):
        factors = run(build, pattern, width)
        assert factors.queries.shape == (pattern.n, width)
        assert factors.keys.shape == (pattern.n_keys, width)
        assert factors.queries.dtype == factors.keys.dtype == np.float64
        head = rounded(factors, pattern, "float32", build.name)
        if certify(head, pattern, Accuracy()).reached:
            assert width >= lower_bounds(pattern, Accuracy()).best.width
            return
    pytest.fail(f"{build.name} certified nothing up to width {width}")


@every_construction
def test_a_seed_decides_everything(build: Construction) -> None:
    pattern = PATTERNS[0]
    width = widths(build, pattern)[0]
    one, same = run(build, pattern, width), run(build, pattern, width)
    assert np.array_equal(one.queries, same.queries)
    assert np.array_equal(one.keys, same.keys)
    assert json.dumps(dict(one.notes)) == json.dumps(dict(same.notes))


@every_construction
def test_the_pattern_is_not_changed(build: Construction) -> None:
    pattern = union_of_permutations(N, K, 3)
    before = [array.copy() for array in (pattern.starts, pattern.columns, pattern.weights)]
    run(build, pattern, widths(build, pattern)[0])
    after = (pattern.starts, pattern.columns, pattern.weights)
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


@universal
def test_universal_keys_do_not_depend_on_the_pattern(build: Construction) -> None:
    one, other = union_of_permutations(N, K, 0), union_of_permutations(N, K, 1)
    width = max(widths(build, one)[0], widths(build, other)[0])
    assert np.array_equal(run(build, one, width).keys, run(build, other, width).keys)


@every_construction
def test_the_card_is_complete(build: Construction) -> None:
    assert build.title
    assert build.summary.endswith(".")
    assert "arXiv:" in build.citation or "19" in build.citation or "20" in build.citation
    assert build.first_width(PATTERNS[0]) >= 1


@every_construction
def test_progress_is_reported_within_its_total(build: Construction) -> None:
    told: list[tuple[str, int, int]] = []
    build(
        PATTERNS[0],
        widths(build, PATTERNS[0])[0],
        Accuracy(),
        np.random.default_rng(0),
        lambda stage, done, total: told.append((stage, done, total)),
    )
    assert told
    assert all(stage and 0 <= done <= total for stage, done, total in told)


@every_construction
def test_no_width_is_refused_in_a_sentence_that_says_what_to_do(build: Construction) -> None:
    with pytest.raises(RefusalError, match=r"^[A-Z].*: .*\.$"):
        run(build, PATTERNS[0], 0)


def test_auto_finds_a_construction_for_each_purpose() -> None:
    offered = [one.auto for one in constructions().values() if one.auto not in (None, "ceiling")]
    assert sorted([*offered, "ceiling"]) == sorted(get_args(Auto))
    assert all(one.auto == "ceiling" and one.fixed_width for one in ceilings())
    for purpose in get_args(Auto):
        taken = for_auto(purpose)
        assert taken is not None
        assert taken.auto == purpose
        assert taken.universal or purpose == "one pattern"
        assert (taken.fixed_width is not None) == (purpose == "ceiling")
