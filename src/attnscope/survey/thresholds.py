"""Every number that turns a measurement into a finding, in one place, with where it comes from. All can be changed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from attnscope.core.errors import RefusalError, nearest


@dataclass(frozen=True)
class Thresholds:
    """The defaults are judgements: papers' values where papers give one, round numbers otherwise."""

    collapse_residual: float = 0.1  # relative residual of a collapsing layer (trained BERT ends at 0.31)
    collapse_complete: float = 0.01  # below this the tokens are one token for all that follows: critical
    collapse_fall: float = 10.0  # or: how many times smaller than its largest value before (arXiv:2103.03404)
    token_cosine: float = 0.95  # mean cosine between tokens (arXiv:2202.08625)
    sink_mass: float = 0.3  # mean attention on the first token (arXiv:2410.10781)
    spike_size: float = 100.0  # a massive activation is at least this large (arXiv:2402.17762)
    spike_share: float = 0.1  # and at least this share of the largest in the stack: no lesser bump
    spike_step: float = 5.0  # and appears or goes by at least this factor within a few half-blocks
    uniform_entropy: float = 0.95  # entropy as a share of the largest possible one
    identity_mass: float = 0.5  # mean attention of a token to itself
    previous_mass: float = 0.5  # mean attention to the token before
    entropy_floor: float = 0.3  # nats; below, a row is nearly one-hot (arXiv:2303.06296)
    duplicate_overlap: float = 0.95  # cosine between the patterns of two heads
    most_heads: float = 0.5  # the share of heads or layers that counts as most of them

    @classmethod
    def parse(cls, settings: Iterable[str]) -> Thresholds:
        """`["sink_mass=0.4", "spike_size=50"]`, as the command line gives them."""
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
            if not equals or not math.isfinite(chosen[name]):
                raise RefusalError(f"The threshold '{setting}' needs a number, such as {name}={getattr(cls, name)}.")
        return replace(cls(), **chosen)
