"""compile: which construction is chosen and why, the sentences about the head, and the record."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from attnscope.commands.compile.export import load_head
from attnscope.commands.compile.record import Compiled
from attnscope.commands.compile.run import compile as run
from attnscope.commands.compile.words import certificate_lines, row_words, title_words
from attnscope.core.construction import Construction
from attnscope.core.errors import RefusalError
from attnscope.core.registry import constructions
from attnscope.heads.accuracy import Accuracy
from attnscope.heads.certificate import certify
from attnscope.heads.generate import block, permutation, union_of_permutations, window
from attnscope.heads.pattern import Pattern
from attnscope.reports.theme import specification
from tests.commands.compile.stand_in import exact_construction, registered

KEYS = {"method", "n", "k", "d", "dtype", "ratio_error", "leak", "max_logit", "lower_bound", "proved_minimal",
        "seconds", "seed"}  # fmt: skip


@pytest.fixture
def small() -> Pattern:
    return permutation(12, 0)


def test_json_has_the_flat_keys(small: Pattern) -> None:
    data = run(small).to_json()
    assert set(data) >= KEYS | {"reached", "why", "bounds", "failing_rows", "asked_leak", "tried"}
    again = json.loads(json.dumps(data, allow_nan=False))
    assert (again["n"], again["k"], again["d"], again["dtype"], again["seed"]) == (12, 1, 2, "float32", 0)
    assert again["lower_bound"] == 2
    assert again["ratio_error"] <= 0.1
    assert again["leak"] <= 0.01


def test_proved_minimal_only_where_a_bound_is_met(small: Pattern) -> None:
    """Three rows with different keys cannot be cut out of a line, so width 2 is proved; width 3 is not minimal."""
    assert run(small).proved_minimal
    assert run(small).verdict == "proved minimal"
    wide = run(small, method="joint", width=3)
    assert wide.reached
    assert (wide.proved_minimal, wide.verdict) == (False, "width as asked")


def test_smallest_found_where_no_bound_is_met(small: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    with registered(monkeypatch, exact_construction(needs=5)):
        compiled = run(small)
    assert (compiled.certificate.d, compiled.proved_minimal, compiled.verdict) == (5, False, "smallest found")


def test_a_real_pattern_is_compiled_by_the_real_constructions() -> None:
    pattern = union_of_permutations(24, 2, 0)
    compiled = run(pattern)
    assert compiled.reached
    assert compiled.certificate.d <= 4  # the moment curve is never wider
    assert compiled.method in constructions()
    assert certify(compiled.head, pattern, Accuracy()) == compiled.certificate


def test_auto_takes_joint_for_one_pattern_and_says_why(small: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    with registered(monkeypatch, exact_construction("joint", needs=3)):
        compiled = run(small)
    assert compiled.method == "joint"
    assert compiled.why.startswith("joint, because")
    assert compiled.why.endswith(".")


def test_auto_takes_margin_for_universal_keys(small: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    with registered(monkeypatch, exact_construction("joint"), exact_construction("margin", needs=4, universal=True)):
        compiled = run(small, universal=True)
    assert (compiled.method, compiled.certificate.d) == ("margin", 4)
    assert "every pattern" in compiled.why


def test_auto_prefers_the_curve_where_it_is_narrower(small: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    curve = exact_construction("moment_curve", needs=2, universal=True, fixed=True)
    with registered(monkeypatch, exact_construction("joint", needs=4), curve):
        compiled = run(small)
    assert (compiled.method, compiled.certificate.d) == ("moment_curve", 2)
    assert {one.method for one in compiled.tried} == {"joint", "moment_curve"}
    assert max(one.width for one in compiled.tried) == 2  # nothing above the ceiling was tried


def test_auto_prefers_joint_where_it_is_as_narrow(small: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    curve = exact_construction("moment_curve", universal=True, fixed=True)
    with registered(monkeypatch, exact_construction("joint", needs=2), curve):
        assert run(small).method == "joint"


def test_universal_keys_stop_at_the_curve_where_it_meets_the_bound(
    small: Pattern, monkeypatch: pytest.MonkeyPatch
) -> None:
    curve = exact_construction("moment_curve", universal=True, fixed=True)
    with registered(monkeypatch, exact_construction("margin", universal=True), curve):
        compiled = run(small, universal=True)
    assert (compiled.method, compiled.certificate.d, len(compiled.tried)) == (
        "moment_curve",
        compiled.bounds.best.width,
        1,
    )
    assert compiled.proved_minimal  # the keys are those of the curve, and proved to serve all
    assert compiled.served_of is None


def test_universal_keys_that_fail_others_are_made_wider() -> None:
    """At n = 256 the curve of width 4 realises a window of two in float32, but none of eight random patterns."""
    pattern = window(256, 2)
    compiled = run(pattern, universal=True)
    assert compiled.certificate.d > 4
    assert compiled.served == compiled.served_of == 8
    assert "served 8 of 8 other patterns" in " ".join(compiled.sentences())
    assert compiled.verdict == "smallest found"


def test_keys_on_the_curve_are_called_universal_where_that_is_proved(tmp_path: Path) -> None:
    pattern = window(24, 2)
    compiled = run(pattern, universal=True)
    assert (compiled.method, compiled.certificate.d, compiled.verdict) == ("moment_curve", 4, "proved minimal")
    assert compiled.proved_universal
    assert compiled.served_of is None  # what is proved is not tried
    assert compiled.universality is not None
    assert (compiled.universality.n, compiled.universality.k, compiled.universality.spread) == (24, 2, 1000.0)
    first, second = compiled.sentences()[:2]
    assert "no narrower keys serve all patterns: keys that serve every support of up to 2 of 24 keys" in first
    assert "universal, which is proved: every row of up to 2 of 24 keys with weights within a factor 1,000" in second
    lines = {label: (value, note) for label, value, note in certificate_lines(compiled)}
    assert lines["universal"][0] == "proved"
    again = Compiled.load(compiled.save(tmp_path / "head.safetensors"))
    assert again.universality == compiled.universality
    assert again.verdict == "proved minimal"


def test_keys_that_are_not_proved_are_not_called_universal() -> None:
    compiled = run(window(48, 2), universal=True)  # seven keys more than the proof bears in float32
    assert compiled.reached
    assert not compiled.proved_universal
    assert compiled.universality is None
    assert not compiled.proved_minimal
    lines = {label: (value, note) for label, value, note in certificate_lines(compiled)}
    assert lines["universal"][0] == f"{compiled.served} of {compiled.served_of} tried"
    assert "not proved" in lines["universal"][1]
    assert "universal keys" not in title_words(compiled)
    forced = run(window(12, 2), universal=True, width=9, method="margin")
    assert {label: value for label, value, _ in certificate_lines(forced)}["universal"] == "not tried"


def test_a_proof_that_does_not_belong_to_its_keys_is_refused(tmp_path: Path) -> None:
    compiled = run(window(12, 2), universal=True)
    assert compiled.universality is not None
    for wrong in (
        replace(compiled.universality, n=13),
        replace(compiled.universality, k=1),
        replace(compiled.universality, dtype="float64"),
        replace(compiled.universality, fits=False),
        replace(compiled.universality, sizes=()),
        replace(compiled.universality, asked_leak=0.5),
    ):
        path = replace(compiled, universality=wrong).save(tmp_path / "head.safetensors")
        with pytest.raises(RefusalError, match="is damaged"):
            Compiled.load(path)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("make", "width"), [(window, 2), (block, 2), (union_of_permutations, 3)])
def test_answers_do_not_depend_on_how_keys_are_numbered(make: Any, width: int, seed: int) -> None:
    pattern, rng = make(64, 2), np.random.default_rng(seed)
    rows, keys = rng.permutation(64), rng.permutation(64)
    other = Pattern.of(rows[pattern.rows], keys[pattern.columns], pattern.weights, n=64, normalise=True)
    for one in (pattern, other):
        compiled = run(one)
        assert (compiled.certificate.d, compiled.verdict) == (width, "proved minimal")


def test_a_sink_beside_a_permutation_costs_one_coordinate() -> None:
    """The key that is in every row is removed by the reduction, and the rest fits a circle."""
    rng = np.random.default_rng(0)
    n, shares = 48, rng.uniform(0.2, 0.8, 48)
    others = np.concatenate([[5], 1 + rng.permutation(n - 1)])
    pattern = Pattern.of(
        np.repeat(np.arange(n), 2),
        np.stack([np.zeros(n, dtype=np.int64), others], axis=1).ravel(),
        np.stack([shares, 1 - shares], axis=1).ravel(),
        n=n,
    )
    compiled = run(pattern)
    assert (compiled.reached, compiled.certificate.d) == (True, 3)
    assert compiled.notes["reduced"][0] == "key 0 stands in every row"


def test_universal_keys_of_a_window_are_as_wide_as_all_patterns_need() -> None:
    """A window of two neighbours alone fits a circle; keys for every pair of keys need width 4."""
    pattern = window(12, 2)
    assert run(pattern, dtype="float64").certificate.d <= 2
    universal = run(pattern, dtype="float64", universal=True)
    assert universal.certificate.d == universal.bounds.best.width == 4


def test_a_forced_width_that_is_too_small_gives_the_best_effort() -> None:
    compiled = run(union_of_permutations(16, 3, 0), width=1, method="random_projection_rows")
    assert not compiled.reached
    assert compiled.certificate.d == 1
    assert compiled.verdict == "accuracy not reached"
    assert compiled.certificate.failing_rows
    lines = {label: note for label, _, note in certificate_lines(compiled)}
    assert str(compiled.certificate.failing_rows[0]) in lines["failing rows"]
    assert "TOO LARGE" in lines["leak"]


def test_a_forced_width_tries_the_curve_where_joint_misses(small: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    curve = exact_construction("moment_curve", universal=True, fixed=True)
    with registered(monkeypatch, exact_construction("joint", needs=9), curve):
        assert run(small, width=3).method == "moment_curve"
        assert run(small, width=3, method="joint").reached is False


def test_the_same_width_and_seed_make_the_same_head() -> None:
    pattern = union_of_permutations(16, 2, 1)
    first = run(pattern, method="frame")
    again = run(pattern, method="frame", width=first.certificate.d, seed=first.seed)
    assert again.certificate == first.certificate


def interrupted_at(width: int, name: str = "joint") -> Construction:
    whole = exact_construction(name, needs=3, first=8)

    def build(pattern: Pattern, asked: int, *rest: Any) -> Any:
        if asked <= width:
            raise KeyboardInterrupt
        return whole(pattern, asked, *rest)

    return Construction(
        name, name, "", "arXiv:2106.03764", False, build, first_width=lambda pattern: 8, auto="one pattern"
    )


def test_interruption_keeps_the_best_head(small: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    with registered(monkeypatch, interrupted_at(3)):
        compiled = run(small)
    assert compiled.interrupted
    assert compiled.reached
    assert compiled.certificate.d == 4
    assert compiled.verdict == "smallest found before the interruption"


def test_interruption_of_the_first_joint_head_leaves_the_curve(small: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    with registered(monkeypatch, interrupted_at(99), exact_construction("moment_curve", universal=True, fixed=True)):
        compiled = run(small)
    assert (compiled.method, compiled.interrupted, compiled.reached) == ("moment_curve", True, True)


def test_time_that_is_up_keeps_the_best_head_and_says_so(small: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any time, the first accurate width is returned, and a forced width is drawn once."""
    with registered(monkeypatch, exact_construction(needs=3, first=8)):
        compiled = run(small, budget=0.0)
        forced = run(small, width=2, budget=0.0)
    assert (compiled.certificate.d, compiled.out_of_time, compiled.interrupted) == (8, True, False)
    assert compiled.verdict == "smallest found in the time given"
    assert compiled.to_json()["out_of_time"] is True
    assert (forced.reached, len(forced.tried)) == (False, 1)


def test_interruption_before_anything_is_passed_on(small: Pattern, monkeypatch: pytest.MonkeyPatch) -> None:
    with registered(monkeypatch, interrupted_at(99)), pytest.raises(KeyboardInterrupt):
        run(small)


def test_refusals(small: Pattern) -> None:
    with pytest.raises(RefusalError, match="Did you mean 'joint'"):
        run(small, method="jiont")
    with pytest.raises(RefusalError, match="Did you mean 'float32'"):
        run(small, dtype="float31")
    with pytest.raises(RefusalError, match="depend on the pattern"):
        run(small, method="joint", universal=True)
    with pytest.raises(RefusalError, match="`width=` cannot be 0"):
        run(small, width=0)
    with pytest.raises(RefusalError, match="A seed of -1"):
        run(small, seed=-1)
    with pytest.raises(RefusalError, match="`budget=` cannot be -1"):
        run(small, budget=-1.0)
    with pytest.raises(RefusalError, match="leak"):
        run(small, leak=0.0)
    with pytest.raises(RefusalError, match="ratio error"):
        run(small, ratio_error=-1.0)


def test_whatever_holds_a_pattern_is_read(tmp_path: Path) -> None:
    assert run(np.eye(4)[[1, 2, 3, 0]]).reached
    np.save(tmp_path / "p.npy", np.eye(4)[[1, 2, 3, 0]] * 3)
    assert run(tmp_path / "p.npy", normalise=True).pattern.name == "p"


def test_a_rectangular_causal_and_low_precision_head(tmp_path: Path) -> None:
    rectangular = Pattern.of(np.arange(6), np.array([0, 3, 5, 7, 8, 2]), np.ones(6), n=6, n_keys=9)
    compiled = run(rectangular)
    assert compiled.reached
    head, data = load_head(compiled.save(tmp_path / "r.safetensors"))
    assert (head.queries.shape[0], head.keys.shape[0]) == (6, 9)
    assert data["n_keys"] == 9
    causal = run(window(16, 2, causal=True), dtype="bfloat16", method="frame")
    assert causal.reached
    assert causal.certificate.causal
    assert causal.certificate.dtype == "bfloat16"


def test_saved_with_certificate_and_mark(tmp_path: Path) -> None:
    pattern = union_of_permutations(16, 3, 0)
    path = run(pattern, width=1, method="random_projection_rows").save(tmp_path / "h.safetensors")
    with safe_open(path, "np") as stored:
        metadata = stored.metadata()
        assert metadata["reached"] == "false"
        assert json.loads(metadata["certificate"])["failing_rows"]
        assert np.array_equal(stored.get_tensor("pattern_columns"), pattern.columns)


def test_the_chart_and_the_notebook_say_the_same(small: Pattern) -> None:
    compiled = run(small)
    document = specification(compiled.chart())
    assert [panel["title"]["text"] for panel in document["hconcat"]] == ["Target", "Realised", "Error"]
    assert "width 2" in document["title"]["text"]
    html = compiled._repr_html_()
    assert "proved minimal" in html
    assert "<td>2</td>" in html
    assert "proved minimal" in repr(compiled)
    assert len(repr(compiled)) < 300


def test_rows_in_words() -> None:
    assert row_words((1, 3), 2) == "1, 3"
    assert row_words(tuple(range(20)), 1000) == "0, 1, 2, 3, 4, 5, 6, 7 and 992 more"
