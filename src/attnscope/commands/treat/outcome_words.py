"""Words and a table for what a remedy did to findings."""

from __future__ import annotations

from collections.abc import Sequence

from attnscope.commands.compare.paired_findings import concerned
from attnscope.commands.treat.outcomes import Outcome
from attnscope.commands.treat.record import Treatment
from attnscope.core.finding import Finding
from attnscope.reports.document import Table

ARM_WORDS = {"before": "before", "control": "in the control", "treated": "treated"}


def counts_table(outcomes: Sequence[Outcome], record: Treatment) -> Table:
    counts = [
        (title_of(outcome), *(how_many(getattr(outcome, arm)) for arm in record.arms), outcome.judgement)
        for outcome in outcomes
    ]
    return Table(("", *record.arms, "verdict"), tuple(counts), align="lrrrl"[: len(record.arms) + 1] + "l", brief=8)


def how_many(finding: Finding | None) -> str:
    """Return the number of heads or places of a finding, "there" if it counts neither, or "none" without one."""
    return "none" if finding is None else str(concerned(finding) or "there")


KINDS = {
    "sees_the_future": "blocks that see later tokens",
    "worse_than_unigram": "a loss no better than token frequencies",
    "position_blind": "positions without effect",
    "dead_half": "blocks with a dead half",
    "misscaled_write": "parts that write too much or too little",
    "untrained_block": "blocks that look untrained",
    "lost_precision": "weights on a coarse grid",
    "copied_block": "blocks with copied weights",
    "outside_range": "places outside what real models show",
    "tokens_became_one": "places where tokens are equal",
    "dormant_heads": "heads with a small output",
    "drained_sinks": "sinks with a small value",
    "induction_heads": "induction heads",
    "initial_phase": "blocks whose random weights start badly",
    "large_logits": "heads with large logits",
    "media_ignored": "blocks that ignore pictures or sounds",
    "sink": "heads that sink",
    "sink_elsewhere": "heads that sink elsewhere",
    "uniform_heads": "heads that are almost uniform",
    "duplicate_heads": "heads with a twin",
    "entropy_collapse": "heads that are nearly one-hot",
    "massive_activation": "places with a massive activation",
    "past_float16": "places past float16",
    "collapse": "places where tokens become alike",
    "smoothing": "places where tokens point the same way",
    "identity_heads": "heads that look at their own token",
    "previous_token_heads": "heads that look at the token before",
    "missing_bos": "texts without BOS",
    "nonfinite": "places that are not numbers",
}


def title_of(outcome: Outcome) -> str:
    subject = subject_of(outcome)
    return subject[0].upper() + subject[1:]


def subject_of(outcome: Outcome) -> str:
    """Return what is counted, such as `heads that sink`; for an alarm, its measure."""
    if outcome.kind != "alarm":
        return KINDS.get(outcome.kind, outcome.kind.replace("_", " "))
    return f"alarm of {str(outcome.any.details.get('measure', 'a measure')).replace('_', ' ')}"


def amount_words(outcome: Outcome, record: Treatment) -> str:
    """Return `146 before, 144 in the control, 90 treated.`"""
    return f"{', '.join(f'{how_many(getattr(outcome, arm))} {ARM_WORDS[arm]}' for arm in record.arms)}."
