"""What a model says when only some lengths count: up to k, and all but k.

What follows the last block is linear once its norm is frozen, out(Y) = M Y + c. So one pass through it for every length
is enough: M Y^(k) is added to a running sum for `up to k`, and taken from the model's output for `without k`. Lengths
go through together while their logits take little room; of a large vocabulary they exist for one length at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.core.progress import Advance
from attnscope.decomposing.reading import Aim
from attnscope.hf.loading.one_text import Reading
from attnscope.hf.loading.outputs import Entries
from attnscope.pathways.graded import Graded
from attnscope.pathways.lengths import Lengths
from attnscope.pathways.network import Network
from attnscope.records.paths import Prediction

ROOM = 2**21  # logits that lengths may have together


@dataclass(frozen=True)
class Predicting:
    """How an output is read."""

    entries: Entries
    entry: int | None
    position: int | None
    ids: Int[Tensor, " token"] | None
    own: Float[Tensor, " entry"]  # the model's own output at the position
    causal: bool

    @classmethod
    def of(cls, goal: Aim, read: Reading, network: Network, causal: bool) -> Predicting:
        own = _row(network.output, goal.position)
        return cls(goal.entries, goal.entry, goal.position, read.ids, own, causal)

    def said(self, output: Float[Tensor, " batch *shape"], value: float) -> Prediction:
        """What `output` says; `value` is the target there."""
        row = _row(output, self.position)
        distance = float((row - self.own).norm() / self.own.norm().clamp_min(torch.finfo(row.dtype).tiny))
        if self.entries.output == "states":
            return Prediction(value, None, None, None, None, distance)
        chances = row.softmax(-1)
        best = int(chances.argmax())
        wished = None if self.entry is None else float(chances[self.entry])
        return Prediction(value, self.entries.word(best), float(chances[best]), wished, self._loss(output), distance)

    def _loss(self, output: Float[Tensor, " batch *shape"]) -> float | None:
        """Mean of -log p(next token) over the text; only a model that does not see the next token predicts it."""
        if self.entries.output != "tokens" or not self.causal or self.ids is None or len(self.ids) < 2:
            return None
        return float(torch.nn.functional.cross_entropy(output[0, :-1], self.ids[1:]))


def _row(output: Float[Tensor, " batch *shape"], position: int | None) -> Float[Tensor, " entry"]:
    """One row; states of a model without an axis of tokens, or asked for at no position, as one."""
    row = output[0] if position is None else output[0, position]
    return row.flatten()


@torch.no_grad()
def predictions(
    found: Lengths, values: list[float], constant: float, sight: Predicting, advance: Advance
) -> tuple[tuple[Prediction, Prediction], ...]:
    """For every length k: with paths up to k, and with all but those of k. `values` is the target by length; of length
    zero `constant` is the target of c, which is there whatever is left out."""
    network, stream, whole = found.network, found.stream, sum(values)

    def through_tail(parts: Float[Tensor, " length *shape"], constants: int | None) -> Float[Tensor, " length *output"]:
        """M Y, and c with it where constants are not dropped."""
        graded = Graded.of(stream.value, parts[:, None, None], constants, stream.count)
        return network.finish(graded).parts.sum((1, 2))

    kept = through_tail(torch.zeros_like(stream.value)[None], 0)[0]
    made, reached = [], constant
    every = found.by_length
    at_once = max(1, ROOM // network.output.numel())
    for start in range(0, len(values), at_once):
        for k, part in enumerate(through_tail(every[start : start + at_once], None), start):
            value = values[k] - (constant if k == 0 else 0.0)
            kept = kept + part
            reached += value
            made.append((sight.said(kept, reached), sight.said(network.output - part, whole - value)))
            advance("predictions", k + 1, len(values))
    return tuple(made)
