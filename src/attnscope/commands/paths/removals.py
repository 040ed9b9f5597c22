"""What the model itself says without some heads or some path lengths, and Shapley values of heads on a text.

Removals: what a target loses when each head is really removed, one run of the model for the heads of each block.

    change(l, h) = T(model) - T(model without head h of block l)

T is what the model itself gives, with nothing frozen. To first order in what the head writes, and if nothing behind
it reacts, this is the sum over all paths through the head; a Shapley value shares each of these paths with the other
heads on it.

Predictions: what follows the last block is linear once its norm is frozen, out(Y) = M Y + c. So one pass through it for
every length is enough: M Y^(k) is added to a running sum for `up to k`, and taken from the model's output for `without
k`. Lengths go through together while their logits take little memory; with a large vocabulary, one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.commands.paths.reading import Aim, fitting, refusing_what_is_not_followed
from attnscope.commands.paths.record import Prediction
from attnscope.commands.task_paths.record import Removal
from attnscope.core.progress import Advance
from attnscope.hf.anatomy.anatomy import Anatomy, Site
from attnscope.hf.anatomy.example import run
from attnscope.hf.editing.freeze import freeze
from attnscope.hf.editing.surgery import Replacement, one_head_removed
from attnscope.hf.intercepting.owners import every_tensor
from attnscope.hf.intercepting.restoring import evaluating, looking_at, with_gradients, without_cache
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.one_text import Reading
from attnscope.hf.loading.outputs import Entries
from attnscope.hf.loading.quiet import quiet
from attnscope.pathways.graded import Graded
from attnscope.pathways.heads import head_table
from attnscope.pathways.lengths import Lengths
from attnscope.pathways.network import Network

AT_ONCE = 16  # copies of a sequence that run together
MAX_LOGITS = 2**21  # of all lengths that go through the tail together


@dataclass(frozen=True)
class Answer:
    """For every row of a batch: the target, and -log p(target token); zero if the output has no probabilities."""

    target: Float[Tensor, " row"]
    loss: Float[Tensor, " row"]


@torch.no_grad()
def removals(
    loaded: Loaded, read: Reading, goal: Aim, sites: dict[int, Site], layers: int, by: Replacement, advance: Advance
) -> Removal:
    """Remove every head of `layers` blocks, one at a time; a block without self-attention has none."""
    whole = _answered(loaded, read, goal, 1)
    targets: list[tuple[float, ...]] = []
    losses: list[tuple[float, ...]] = []
    for layer in range(layers):
        site = sites[layer]
        answers: list[Answer] = []
        for start in range(0, site.heads, AT_ONCE):
            some = range(start, min(start + AT_ONCE, site.heads))
            with one_head_removed(loaded.model, site, some, by):
                answers.append(_answered(loaded, read, goal, len(some)))
        targets.append(tuple((whole.target - torch.cat([answer.target for answer in answers])).tolist()))
        losses.append(tuple((torch.cat([answer.loss for answer in answers]) - whole.loss).tolist()))
        advance("removing heads", layer + 1, layers)
    return Removal(tuple(targets), tuple(losses))


def _answered(loaded: Loaded, read: Reading, goal: Aim, copies: int) -> Answer:
    """Run the model on copies of one sequence."""
    batch = {
        name: value.expand(copies, *value.shape[1:]) if isinstance(value, Tensor) and value.shape[:1] == (1,) else value
        for name, value in read.batch.items()
    }
    if "use_cache" in loaded.accepts:
        batch["use_cache"] = False
    with evaluating(loaded.model), without_cache(loaded.model):
        output = next(tensor for tensor in every_tensor(run(loaded.model, batch)) if tensor.is_floating_point())
    targets = torch.stack([goal.target(output[row : row + 1]) for row in range(copies)])
    return Answer(targets, surprise(output, goal))


def surprise(output: Tensor, goal: Aim) -> Float[Tensor, " row"]:
    """Return -log p of the target entry in every row."""
    if goal.entry is None:
        return output.new_zeros(len(output))
    said = output if goal.position is None else output[:, goal.position]
    return -said.log_softmax(-1)[:, goal.entry]


@dataclass(frozen=True)
class Predicting:
    """How predictions are read from an output."""

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
        """Read a prediction from `output`; `value` is the target there."""
        row = _row(output, self.position)
        distance = float((row - self.own).norm() / self.own.norm().clamp_min(torch.finfo(row.dtype).tiny))
        if self.entries.output == "states":
            return Prediction(value, None, None, None, None, distance)
        chances = row.softmax(-1)
        best = int(chances.argmax())
        target = None if self.entry is None else float(chances[self.entry])
        return Prediction(value, self.entries.word(best), float(chances[best]), target, self._loss(output), distance)

    def _loss(self, output: Float[Tensor, " batch *shape"]) -> float | None:
        """Return the mean of -log p(next token) over the text, for a causal model."""
        if self.entries.output != "tokens" or not self.causal or self.ids is None or len(self.ids) < 2:
            return None
        return float(torch.nn.functional.cross_entropy(output[0, :-1], self.ids[1:]))


def _row(output: Float[Tensor, " batch *shape"], position: int | None) -> Float[Tensor, " entry"]:
    """Return the output at one position, or at all positions as one row if `position` is None."""
    return (output[0] if position is None else output[0, position]).flatten()


@torch.no_grad()
def predictions(
    found: Lengths, values: list[float], constant: float, sight: Predicting, advance: Advance
) -> tuple[tuple[Prediction, Prediction], ...]:
    """Return for every length k the model's prediction with paths up to length k, and without those of length k.

    `values` is the target by length. `constant` is the target of c, which has length zero and is never removed.
    """
    network, stream, whole = found.network, found.stream, sum(values)

    def through_tail(parts: Float[Tensor, " length *shape"], constants: int | None) -> Float[Tensor, " length *output"]:
        """Return M Y, plus c unless constants are dropped."""
        graded = Graded.of(stream.value, parts[:, None, None], constants, stream.count)
        return network.finish(graded).parts.sum((1, 2))

    kept = through_tail(torch.zeros_like(stream.value)[None], 0)[0]
    made, reached = [], constant
    every = found.by_length
    at_once = max(1, MAX_LOGITS // network.output.numel())
    for start in range(0, len(values), at_once):
        for k, part in enumerate(through_tail(every[start : start + at_once], None), start):
            value = values[k] - (constant if k == 0 else 0.0)
            kept = kept + part
            reached += value
            made.append((sight.said(kept, reached), sight.said(network.output - part, whole - value)))
            advance("predictions", k + 1, len(values))
    return tuple(made)


@with_gradients()
def head_values(loaded: Loaded, ids: Int[Tensor, " token"], found: Anatomy) -> Float[Tensor, "layer head"]:
    """Return the exact Shapley values of every head of a causal language model on a text.

    Their game is the log-probability of the tokens that really come next, to first order in the logits z around the
    model's own:  sum_t (z_t[y_t] - p_t . z_t),  p_t the model's probabilities. It is linear in the output, as the
    frozen network of `paths` needs it, reads every position at once, and ignores a constant added to all logits of a
    token. The sum over heads is what they add together.
    """
    with looking_at(loaded.model), quiet(), fitting(len(ids)), refusing_what_is_not_followed(loaded):
        network = freeze(loaded.model, {"input_ids": ids[None]}, found)
        expected = torch.softmax(network.output.detach(), dim=-1)

        def log_probability(output: Float[Tensor, "1 token vocabulary"]) -> Float[Tensor, ""]:
            said, wanted = output[..., :-1, :], ids[1:].to(output.device)
            hit = said.gather(-1, wanted.expand(*said.shape[:-2], -1)[..., None]).sum()
            return hit - (said * expected[..., :-1, :]).sum()

        return head_table(network, log_probability).shapley.detach()
