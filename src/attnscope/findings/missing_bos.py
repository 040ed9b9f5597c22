"""Missing BOS: the loss on a few windows shows that the model was trained with BOS, but it is scanned without.

Models whose training texts all began with BOS use it as a sink for attention that is not needed elsewhere
(arXiv:2309.17453). Without it their loss is far higher, and sinks and massive activations move or vanish. The numbers
of such a scan are correct, but the model is never used like that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnscope.commands.scan.diagnose import Thresholds
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.finding import Finding, finding
from attnscope.core.words import numeral


@finding(
    order=15,
    reads=(),
    summary="Sequences do not begin with BOS, although the model predicts far better if they do.",
    citation="arXiv:2309.17453",
    severity="wrong: the loss is higher than it has to be",
)
def missing_bos(survey: Survey, thresholds: Thresholds) -> Iterator[Finding]:
    bos = survey.provenance.get("bos")
    bos = bos if isinstance(bos, dict) else {}
    without, put = _loss(bos.get("loss_without")), _loss(bos.get("loss_with"))
    if bos.get("begins") is not False or without is None or put is None or without - put < thresholds.bos_loss:
        return
    token = bos.get("token")
    yield Finding(
        kind=missing_bos.name,
        severity="wrong",
        stack=next(iter(survey.stacks), ""),
        layers=(),
        heads=(),
        sentence=(
            "The model was clearly trained with BOS but is scanned without it: on the same tokens, its mean "
            "next-token loss"
            f" is {numeral(without)}, and {numeral(put)} with {token if isinstance(token, str) else 'BOS'} put first."
        ),
        value=without - put,
        threshold=thresholds.bos_loss,
        threshold_name="bos_loss",
        citation=missing_bos.citation,
        advice=(
            "Scan again with --bos yes (or put BOS first in ready batches): without it, sinks and massive activations "
            "differ from those in normal use."
        ),
        details={"loss_without": without, "loss_with": put, "why": bos.get("why")},
    )


def _loss(value: Any) -> float | None:
    """Return the loss of the survey, or the first one if merged shards hold several."""
    value = value[0] if isinstance(value, list) and value else value
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
