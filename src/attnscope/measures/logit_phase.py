"""Whether attention averages, selects or is frozen: the spread of logits relative to the spread that freezes a row."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.measure import measure
from attnscope.matrix.logits import logit_spread
from attnscope.matrix.scores import Scores
from attnscope.matrix.visibility import accumulation_dtype, row_mean


@measure(
    title="Logit phase",
    summary="The spread of logits relative to the one that freezes a row, with predicted entropy and sum of squares.",
    unit="ratio",
    citation="arXiv:2505.24333",
    scope="attention",
    group="deep",
    parts=("value", "spread", "predicted_entropy", "predicted_squares", "squares"),
)
def logit_phase(
    scores: Scores, row_sum_squares: Float[Tensor, "batch head query"], query_mask: Bool[Tensor, "batch query"]
) -> dict[str, Float[Tensor, "batch head"]]:
    # Independent Gaussian logits of standard deviation sigma over n keys are the random energy model. With
    # r = sigma / sqrt(2 ln n): below 1 the sum of exponentials is its mean, ln Z = ln n + sigma^2/2, so
    #     H = ln n - sigma^2/2 = (1 - r^2) ln n    and    sum_j A_j^2 -> 0;
    # above 1 a few largest logits hold all mass: H stays bounded as n grows, and sum_j A_j^2 -> 1 - 1/r. These are
    # limits for long rows: at finite n the transition is smooth. A row that sees one key has r = 0, H = 0 and a square
    # of 1.
    dtype = accumulation_dtype(scores.query)
    norm, keys = logit_spread(scores, dtype)
    spread = norm / keys.clamp_min(1).sqrt()
    log = keys.clamp_min(1).log()
    ratio = torch.where(keys < 2, 0.0 * spread, spread / (2 * log.clamp_min(1e-30)).sqrt())
    entropy = (log - spread.square() / 2).clamp_min(0.0)
    squares = torch.where(keys < 2, 1.0 + 0.0 * ratio, 1 - 1 / ratio.clamp_min(1.0))
    return {
        "value": row_mean(ratio, query_mask),
        "spread": row_mean(spread, query_mask),
        "predicted_entropy": row_mean(entropy, query_mask),
        "predicted_squares": row_mean(squares, query_mask),
        "squares": row_mean(row_sum_squares.to(dtype), query_mask),
    }
