"""What changed between two surveys, in words."""

from __future__ import annotations

from typing import Any

from attnscope.core.words import count
from attnscope.records.comparison import Change, Comparison

SMALLEST_EFFECT = 0.05  # less is +0.0 where one decimal is shown, and says nothing


def sentences(comparison: Comparison) -> tuple[str, ...]:
    """Whether anything changed, and what was found in one survey only."""
    built = build_words(comparison.before, comparison.after)
    said = [built] if built else []
    said += [f"New: {finding.sentence}" for finding in comparison.appeared]
    said += [f"Gone: {finding.sentence}" for finding in comparison.disappeared]
    worth = changes_worth_listing(comparison, 1)
    if not worth:
        return (*said, f"{change_words(comparison)}.")
    top = worth[0]
    head = "" if top.head is None else f" head {top.head}"
    return (
        *said,
        f"The largest change is that of {top.measure.replace('_', ' ')} at {top.stack} {top.site} layer {top.layer}"
        f"{head}: {top.before:.4g} to {top.after:.4g}, {abs(top.effect):.1f} times the usual spread between places.",
    )


def changes_worth_listing(comparison: Comparison, most: int) -> tuple[Change, ...]:
    return tuple(change for change in comparison.changes if abs(change.effect) >= SMALLEST_EFFECT)[:most]


def change_words(comparison: Comparison) -> str:
    """What the list of changes is of, or why there is none."""
    changed = len(comparison.changes)
    numbers = count(changed + comparison.unchanged, "number")
    if not changed:
        return f"Nothing changed: {numbers} compared, no difference"
    if not changes_worth_listing(comparison, 1):
        small = f"by less than {SMALLEST_EFFECT} of the usual spread"
        return f"Nothing changed noticeably: {changed:,} of {numbers} differ, {small}"
    return "Largest changes, in units of the usual spread between places"


def build_words(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """A sentence where the models of two provenances differ in class or size; None where they do not."""
    first, second = _build(before), _build(after)
    if not first or not second or first == second:
        return None
    return (
        f"The models are built differently ({first}; {second}), so layers and heads are matched by number alone and"
        " what only one model has is left out."
    )


def _build(provenance: dict[str, Any]) -> str:
    """`LlamaForCausalLM, decoder of 30 layers × 9 heads`."""
    model = provenance.get("model")
    model = model if isinstance(model, dict) else {}
    stacks = [s for s in model.get("stacks") or [] if isinstance(s, dict) and s.get("layers")]
    sizes = [f"{s.get('name')} of {s.get('layers')} layers × {s.get('heads')} heads" for s in stacks]
    return ", ".join(words for words in (str(model.get("class") or ""), *sizes) if words)
