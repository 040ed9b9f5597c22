"""How much the pattern of a head shrinks differences between tokens."""

from functools import partial

from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.card import Alarm
from attnscope.core.limits import CONTRACTION
from attnscope.core.measure import measure
from attnscope.matrix.collapse_bounds import centred_contraction
from attnscope.matrix.logits import apply, apply_transposed, with_lse
from attnscope.matrix.scores import Scores
from attnscope.matrix.visibility import accumulation_dtype


@measure(
    title="Contraction",
    summary="The largest factor by which the pattern can scale a difference between tokens.",
    unit="factor",
    citation="arXiv:2202.08625",
    scope="attention",
    group="deep",
    alarm=Alarm("<", CONTRACTION, "the head removes nine tenths of every difference between tokens"),
)
def contraction(
    scores: Scores, query_mask: Bool[Tensor, "batch query"], key_mask: Bool[Tensor, "batch key"]
) -> Float[Tensor, "batch head"]:
    # sqrt(lambda) of d_M(A X) <= sqrt(lambda) d_M(X), the norm of the pattern on centred tokens.
    dtype = accumulation_dtype(scores.query)
    known = with_lse(scores, dtype)  # convert once, not in each of many products
    return centred_contraction(
        partial(apply, known),
        partial(apply_transposed, known),
        query_mask=query_mask,
        key_mask=key_mask,
        heads=scores.query.shape[1],
        dtype=dtype,
    )
