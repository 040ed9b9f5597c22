"""Predictions without some heads or some path lengths, and Shapley values of heads on a text.

Removals: how the target changes when each head is removed and everything after it is recomputed.

    change(l, h) = T(model) - T(model without head h of block l),  T is the target

Nothing is frozen here. To first order in what the head writes, and if patterns, norms and gates after it do not change,
this is the sum over all paths through the head. A Shapley value shares each of these paths with the other heads on it.

Predictions: with a frozen norm, the part after the last block is linear in the last stream Y: out(Y) = M Y + c. So one
pass is enough for each part Y^(k) of Y, the sum over paths of length k: M Y^(k) is added to a sum for `up to k`,
and subtracted from the model's output for `without k`.
Several lengths are computed together if their logits need little memory; with a large vocabulary, one at a time.
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
MAX_LOGITS = 2**21  # largest number of logits that are computed at once


@dataclass(frozen=True)
class Answer:
    """The target and -log p(target token) for every row of a batch; the latter is 0 without probabilities."""

    target: Float[Tensor, " row"]
    loss: Float[Tensor, " row"]


@torch.no_grad()
def removals(
    loaded: Loaded, read: Reading, goal: Aim, sites: dict[int, Site], layers: int, by: Replacement, advance: Advance
) -> Removal:
    """Remove every head of the first `layers` blocks, one at a time, and return the changes."""
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
    logits = output if goal.position is None else output[:, goal.position]
    return -logits.log_softmax(-1)[:, goal.entry]


@dataclass(frozen=True)
class Predicting:
    """Reads predictions from outputs."""

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
    lengths: Lengths, values: list[float], constant: float, sight: Predicting, advance: Advance
) -> tuple[tuple[Prediction, Prediction], ...]:
    """For every length k, return the predictions with paths up to length k, and without paths of length k.

    `values` has the target by length. `constant` is what c adds to the target; c has length zero and is never removed.
    """
    network, stream, whole = lengths.network, lengths.stream, sum(values)

    def through_tail(parts: Float[Tensor, " length *shape"], constants: int | None) -> Float[Tensor, " length *output"]:
        """Return M Y, plus c unless constants are dropped."""
        graded = Graded.of(stream.value, parts[:, None, None], constants, stream.count)
        return network.finish(graded).parts.sum((1, 2))

    kept = through_tail(torch.zeros_like(stream.value)[None], 0)[0]
    made, reached = [], constant
    every = lengths.by_length
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
def head_values(loaded: Loaded, ids: Int[Tensor, " token"], structure: Anatomy) -> Float[Tensor, "layer head"]:
    """Return the exact Shapley values of every head of a causal language model on a text.

    The game is the log-probability of the actual next tokens, to first order in the logits z around the model's own:
    sum_t (z_t[y_t] - p_t . z_t),  with y_t the actual next token and p_t the model's probabilities. It is linear in the
    output, as the frozen network of `paths` needs, uses all positions, and does not change if a constant is added to
    all logits of a token. The values of all heads add up to what the heads contribute together.
    """
    with looking_at(loaded.model), quiet(), fitting(len(ids)), refusing_what_is_not_followed(loaded):
        network = freeze(loaded.model, {"input_ids": ids[None]}, structure)
        expected = torch.softmax(network.output.detach(), dim=-1)

        def log_probability(output: Float[Tensor, "1 token vocabulary"]) -> Float[Tensor, ""]:
            logits, wanted = output[..., :-1, :], ids[1:].to(output.device)
            hit = logits.gather(-1, wanted.expand(*logits.shape[:-2], -1)[..., None]).sum()
            return hit - (logits * expected[..., :-1, :]).sum()

        return head_table(network, log_probability).shapley.detach()
