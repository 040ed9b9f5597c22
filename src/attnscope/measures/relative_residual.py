"""How far the tokens are from being one token repeated: the collapse curve."""

from jaxtyping import Bool, Float
from torch import Tensor

from attnscope.core.card import Alarm
from attnscope.core.limits import COLLAPSE_RESIDUAL
from attnscope.core.measure import measure
from attnscope.matrix import residual


@measure(
    title="Relative residual",
    summary="The part of the stream that differs from its mean token, relative to the stream.",
    unit="share",
    low=0.0,
    high=2.0,
    citation="arXiv:2103.03404",
    scope="stream",
    alarm=Alarm("<", COLLAPSE_RESIDUAL, "the tokens are nearly one token repeated"),
)
def relative_residual(
    stream: Float[Tensor, "batch token width"], token_mask: Bool[Tensor, "batch token"]
) -> Float[Tensor, " batch"]:
    # ||X - 1 mean^T||_{1,inf} / ||X||_{1,inf}; the centre is the mean, as in the authors' own code.
    return residual.relative_residual(stream, token_mask)
