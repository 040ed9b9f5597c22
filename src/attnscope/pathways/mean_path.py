"""The mean path of length k: the sum of all of them over their number, which replaces drawing some at random."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.pathways.edges import number_of_paths
from attnscope.pathways.lengths import SOURCES, Lengths


def mean_path(found: Lengths) -> Float[Tensor, " length *shape"]:
    """Y^(k) over the number of its paths, k = 0, 1, ..., of those that begin at the input; zero where there is none.

    The number is C(L, k) H^k where every block has a skip and H heads (`edges.number_of_paths`).
    """
    stream = found.stream
    if stream.count not in ("attention", "both") or stream.parts.shape[0] != len(SOURCES):
        raise RefusalError("A mean path needs lengths counted by attention edges, with sources kept apart.")
    sums = stream.parts[0].sum(1)
    counts = sums.new_tensor([float(max(1, c)) for c in number_of_paths(found.network)])
    return sums / counts[: len(sums)].reshape(-1, *[1] * (sums.ndim - 1))
