"""How much words attend to pictures or sounds in the same sequence, per head."""

from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.measure import measure
from attnscope.matrix.logits import apply
from attnscope.matrix.scores import Scores
from attnscope.matrix.visibility import accumulation_dtype, row_mean


@measure(
    title="Attention to media",
    summary="The mean attention to tokens of pictures or sound: from words, from such tokens, and if it were uniform.",
    unit="share",
    low=0.0,
    high=1.0,
    citation="arXiv:2403.06764",
    scope="attention",
    sites=("self",),
    parts=("from_text", "from_media", "from_text_if_uniform"),
)
def media_attention(
    scores: Scores,
    query_mask: Bool[Tensor, "batch query"],
    key_mask: Bool[Tensor, "batch key"],
    media: Bool[Tensor, "batch key"],
) -> dict[str, Float[Tensor, "batch head"]]:
    # sum_j A_ij [token j belongs to a picture] is one product of the pattern with a column of zeros and ones; the mean
    # runs over the rows of words, or over the rows of pictures. Uniform attention is 0 for words before a picture, and
    # for words after it the share of pictures among the keys they see. Compare the first part with it.
    column = (media & key_mask).to(accumulation_dtype(scores.query))[:, None, :, None]
    column = column.expand(-1, scores.query.shape[1], -1, -1)
    share, uniform = (apply(s, column)[..., 0].clamp_max(1.0) for s in (scores, scores.with_equal_logits()))
    words = query_mask & ~media
    return {
        "from_text": row_mean(share, words),
        "from_media": row_mean(share, query_mask & media),
        "from_text_if_uniform": row_mean(uniform, words),
    }
