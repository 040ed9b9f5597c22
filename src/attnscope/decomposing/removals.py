"""What a target loses when each head is really removed: one run of the model for the heads of each block.

    change(l, h) = T(model) - T(model without head h of block l)

T is what the model itself gives, with nothing frozen. To first order in what the head writes, and where nothing behind
it reacts, this is the sum over all paths through the head; a Shapley value shares each of these paths with the other
heads on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnscope.core.progress import Advance
from attnscope.decomposing.reading import Aim
from attnscope.hf.anatomy.anatomy import Site
from attnscope.hf.anatomy.example import run
from attnscope.hf.editing.removing import Replacement, one_head_removed
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.one_text import Reading
from attnscope.hf.seeing.intact import evaluating, without_cache
from attnscope.hf.seeing.tensors import every_tensor
from attnscope.records.task_paths import Removal, Values

AT_ONCE = 16  # copies of a sequence that run together


@dataclass(frozen=True)
class Answer:
    """Of every row of a batch: the target, and -log p(target token); zero where the output has no probabilities."""

    target: Float[Tensor, " row"]
    loss: Float[Tensor, " row"]


@torch.no_grad()
def removals(
    loaded: Loaded, read: Reading, goal: Aim, sites: dict[int, Site], layers: int, by: Replacement, advance: Advance
) -> Removal:
    """By block and head of `layers` blocks; a block without self-attention has none."""
    whole = _answered(loaded, read, goal, 1)
    targets: list[tuple[float, ...]] = []
    losses: list[tuple[float, ...]] = []
    for layer in range(layers):
        site = sites[layer]
        found: list[Answer] = []
        for start in range(0, site.heads, AT_ONCE):
            some = range(start, min(start + AT_ONCE, site.heads))
            with one_head_removed(loaded.model, site, some, by):
                found.append(_answered(loaded, read, goal, len(some)))
        targets.append(tuple((whole.target - torch.cat([one.target for one in found])).tolist()))
        losses.append(tuple((torch.cat([one.loss for one in found]) - whole.loss).tolist()))
        advance("removing heads", layer + 1, layers)
    made: tuple[Values, Values] = (tuple(targets), tuple(losses))
    return Removal(*made)


def _answered(loaded: Loaded, read: Reading, goal: Aim, copies: int) -> Answer:
    """The model on copies of one sequence."""
    batch = {
        name: thing.expand(copies, *thing.shape[1:]) if isinstance(thing, Tensor) and thing.shape[:1] == (1,) else thing
        for name, thing in read.batch.items()
    }
    if "use_cache" in loaded.accepts:
        batch["use_cache"] = False
    with evaluating(loaded.model), without_cache(loaded.model):
        output = next(tensor for tensor in every_tensor(run(loaded.model, batch)) if tensor.is_floating_point())
    targets = torch.stack([goal.target(output[row : row + 1]) for row in range(copies)])
    return Answer(targets, surprise(output, goal))


def surprise(output: Tensor, goal: Aim) -> Float[Tensor, " row"]:
    """-log p of the entry that is asked for, in every row."""
    if goal.entry is None:
        return output.new_zeros(len(output))
    said = output if goal.position is None else output[:, goal.position]
    return -said.log_softmax(-1)[:, goal.entry]
