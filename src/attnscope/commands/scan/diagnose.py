"""`attnscope.diagnose`: turn a survey into findings, most severe first.

    for finding in diagnose(survey, Thresholds(sink_mass=0.4)):
        print(finding.severity, finding.sentence)

Each kind of finding is one file in findings/. Findings of one severity are sorted by the `order` of their kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from pathlib import Path
from typing import Any

from attnscope.commands.records import opened
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core import limits
from attnscope.core.card import Card
from attnscope.core.errors import RefusalError, nearest
from attnscope.core.finding import SEVERITIES, Finding
from attnscope.core.registry import findings


def _share(default: float) -> Any:
    return field(default=default, metadata={"range": (0.0, 1.0)})


def _factor(default: float) -> Any:
    return field(default=default, metadata={"range": (1.0, math.inf)})


def _size(default: float) -> Any:
    return field(default=default, metadata={"range": (0.0, math.inf)})


OF_MEASURES = {
    "relative_residual": "collapse_residual",
    "token_cosine": "token_cosine",
    "sink_mass": "sink_mass",
    "most_received": "sink_mass",
    "spike": "spike_size",
    "entropy": "entropy_floor",
    "self_attention": "identity_mass",
    "head_overlap": "duplicate_overlap",
    "max_logit": "max_logit",
    "norm_growth": "norm_growth",
    "head_contribution": "head_contribution",
    "effective_rank": "effective_rank",
    "stable_rank": "stable_rank",
    "contraction": "contraction",
}
"""The threshold that decides about a measure, by the name of the measure."""


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of all findings. Each can be changed.

    Defaults are published values where a paper gives one, else round numbers. Those in `OF_MEASURES` are also the
    limits on cards of measures, with the same defaults.
    """

    collapse_residual: float = _share(limits.COLLAPSE_RESIDUAL)  # relative residual of a collapsing block
    collapse_complete: float = _share(0.01)  # below this all tokens are practically equal
    collapse_fall: float = _factor(10.0)  # or: factor by which it is below its largest value (arXiv:2103.03404)
    token_cosine: float = _share(limits.TOKEN_COSINE)  # mean cosine between tokens (arXiv:2202.08625)
    sink_mass: float = _share(limits.SINK_MASS)  # mean attention on the first token (arXiv:2410.10781)
    spike_size: float = _size(limits.MASSIVE_SIZE)  # a massive activation is at least this large (arXiv:2402.17762)
    spike_times: float = _factor(limits.MASSIVE_TIMES)  # and so many times the median of its stream (arXiv:2402.17762)
    spike_share: float = _share(0.1)  # and at least this share of the largest in the stack
    spike_step: float = _factor(5.0)  # and grows or shrinks by at least this factor within a few half-blocks
    uniform_entropy: float = _share(0.95)  # entropy as a share of the largest possible one
    identity_mass: float = _share(limits.IDENTITY_MASS)  # mean attention of a token to itself
    previous_mass: float = _share(0.5)  # mean attention to the token before
    entropy_floor: float = _size(limits.ENTROPY_FLOOR)  # nats; below this a row is nearly one-hot (arXiv:2303.06296)
    duplicate_overlap: float = _share(limits.DUPLICATE_OVERLAP)  # cosine between the patterns of two heads
    most_heads: float = _share(0.5)  # share of heads or blocks that counts as "most"
    bos_loss: float = _size(0.5)  # nats by which BOS lowers the next-token loss: 2.4 for Gemma 3, 0.05 for others
    frozen_logits: float = _factor(1.0)  # spread of logits relative to the spread that freezes a row (arXiv:2505.24333)
    induction: float = _share(0.3)  # mean attention on the token after the last occurrence (arXiv:2209.11895)
    max_logit: float = _size(limits.MAX_LOGIT)  # largest logit, above which QK-Clip scales weights (arXiv:2507.20534)
    value_drain: float = _share(0.3)  # norm of the sink's value relative to the head's mean (arXiv:2410.13835)
    inactive_heads: float = _share(0.25)  # a head's output relative to the mean of its block (arXiv:2504.03889)
    media_share: float = _share(0.25)  # attention to media, relative to uniform attention (arXiv:2403.06764)
    dead_write: float = _share(0.002)  # a half block that writes less than this share of the stream is dead
    rescaling_gain: float = _size(0.03)  # nats by which a factor on one part lowers the loss: below 0.02 if healthy
    write_slope: float = _size(0.12)  # derivative of the loss in a factor on one part; a healthy model can have more
    random_edge: float = _factor(1.1)  # largest singular value of a matrix relative to that of random numbers
    range_margin: float = _size(0.5)  # how far outside the range of real models, as a share of that range
    norm_growth: float = _size(limits.NORM_GROWTH)  # factor by which one block grows the norm of a typical token
    head_contribution: float = _share(limits.HEAD_CONTRIBUTION)  # below this a head writes almost nothing
    effective_rank: float = _size(limits.EFFECTIVE_RANK)  # directions; below this fewer than two carry the stream
    stable_rank: float = _size(limits.STABLE_RANK)  # directions; below this one carries the stream
    contraction: float = _size(limits.CONTRACTION)  # share of the differences between tokens that a head keeps

    def __post_init__(self) -> None:
        for threshold in fields(self):
            low, high = threshold.metadata["range"]
            value = getattr(self, threshold.name)
            if not isinstance(value, Real) or not math.isfinite(value) or not low <= value <= high:
                span = f"of {low:g} or more" if math.isinf(high) else f"from {low:g} to {high:g}"
                raise RefusalError(
                    f"The threshold {threshold.name} cannot be {value}: give a number {span}, such as "
                    f"{threshold.default:g}."
                )

    def card(self, card: Card) -> Card:
        """Return a card whose alarm has the limit in force, which may differ from the one in an older survey."""
        name = OF_MEASURES.get(card.name)
        if card.alarm is None or name is None:
            return card
        return replace(card, alarm=replace(card.alarm, threshold=float(getattr(self, name))))

    @classmethod
    def parse(cls, settings: Iterable[str]) -> Thresholds:
        """Read `["sink_mass=0.4", "spike_size=50"]`, as given on the command line."""
        chosen: dict[str, float] = {}
        names = [f.name for f in fields(cls)]
        for setting in settings:
            name, equals, text = (word.strip() for word in setting.partition("="))
            if name not in names:
                raise RefusalError(f"There is no threshold called '{name}'.{nearest(name, names)}")
            try:
                chosen[name] = float(text)
            except ValueError:
                chosen[name] = math.nan
            if not equals or math.isnan(chosen[name]):
                raise RefusalError(f"The threshold '{setting}' needs a number, such as {name}={getattr(cls, name)}.")
        return replace(cls(), **chosen)


def diagnose(survey: Survey | str | Path, thresholds: Thresholds | None = None) -> tuple[Finding, ...]:
    """Return what a survey says about a model, as findings.

    Parameters
    ----------
    survey : Survey, str or Path
        A survey, or the path of one.
    thresholds : Thresholds, optional
        Changed thresholds.

    Returns
    -------
    tuple of Finding
        The most severe first.

    Raises
    ------
    RefusalError
        If `survey` is neither a survey nor the path of one.

    Examples
    --------
    >>> findings = attnscope.diagnose(attnscope.scan("pocket", samples=4), attnscope.Thresholds(sink_mass=0.4))
    >>> sentences = [finding.sentence for finding in findings]
    """
    read = opened(survey, Survey)
    chosen = thresholds or Thresholds()
    all_findings = [finding for kind in findings().values() for finding in kind(read, chosen)]
    return tuple(sorted(all_findings, key=lambda f: -SEVERITIES.index(f.severity)))
