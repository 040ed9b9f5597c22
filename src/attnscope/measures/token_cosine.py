"""How much tokens point in the same direction: the over-smoothing curve."""

from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.card import Alarm
from attnscope.core.limits import TOKEN_COSINE
from attnscope.core.measure import measure
from attnscope.matrix import similarity


@measure(
    title="Token cosine similarity",
    summary="The mean cosine similarity of two different tokens of the same sequence.",
    unit="cosine",
    low=-1.0,
    high=1.0,
    citation="arXiv:2202.08625",
    scope="stream",
    alarm=Alarm(">", TOKEN_COSINE, "the tokens point in one direction"),
)
def token_cosine(
    stream: Float[Tensor, "batch token width"], token_mask: Bool[Tensor, "batch token"]
) -> Float[Tensor, " batch"]:
    # Rounding of the sum over n^2 pairs may exceed the range by a few units in the last place.
    return similarity.token_cosine(stream, token_mask).clamp(-1.0, 1.0)
