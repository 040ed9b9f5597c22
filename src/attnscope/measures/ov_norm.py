"""How much a head can amplify the vectors that it moves: the norm of W_V W_O."""

from jaxtyping import Float
from torch import Tensor

from attnscope.core.measure import measure
from attnscope.matrix.spectrum import product_norm


@measure(
    title="OV norm",
    summary="The largest factor by which a head's value and output projections together stretch a token.",
    unit="factor",
    citation="arXiv:2103.03404",
    scope="weights",
)
def ov_norm(
    value_weight: Float[Tensor, "head key_width value_dim"], output_weight: Float[Tensor, "head value_dim width"]
) -> Float[Tensor, " head"]:
    # ||W_V W_O||_2: the weights enter every bound on the speed of collapse through this norm.
    return product_norm(value_weight, output_weight)
