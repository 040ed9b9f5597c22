"""The two largest singular values of a head's pattern. A wide gap makes tokens collapse."""

from functools import partial

from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.measure import measure
from attnscope.matrix.collapse_bounds import pattern_singular_values
from attnscope.matrix.logits import apply, apply_transposed, with_lse
from attnscope.matrix.scores import Scores
from attnscope.matrix.visibility import accumulation_dtype


@measure(
    title="Spectral gap",
    summary="The largest and the second largest singular value of the attention pattern.",
    unit="singular value",
    citation="arXiv:2410.07799",
    scope="attention",
    group="deep",
    parts=("sigma_1", "sigma_2"),
)
def spectral_gap(
    scores: Scores, query_mask: Bool[Tensor, "batch query"], key_mask: Bool[Tensor, "batch key"]
) -> dict[str, Float[Tensor, "batch head"]]:
    # Random softmax patterns have sigma_1 -> 1 and sqrt(n) sigma_2 -> 2: one direction survives a stack of them.
    dtype = accumulation_dtype(scores.query)
    known = with_lse(scores, dtype)  # convert once, not in each of many products
    values = pattern_singular_values(
        partial(apply, known),
        partial(apply_transposed, known),
        query_mask=query_mask,
        key_mask=key_mask,
        heads=scores.query.shape[1],
        dtype=dtype,
    )
    return {"sigma_1": values[..., 0], "sigma_2": values[..., 1]}
