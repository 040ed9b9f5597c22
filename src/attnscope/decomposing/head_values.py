"""What every head of a language model is worth on a text: the exact Shapley values of one number, heads as players.

The number is the log-probability of the tokens that really come next, to first order in the logits z around those that
the model gives:  sum_t (z_t[y_t] - p_t . z_t),  p_t the model's own probabilities. It is linear in the output, as the
frozen network of `paths` needs it, sees every position at once, and does not change where a constant is added to all
logits of a token.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnscope.decomposing.refusing import fitting, refusing_what_is_not_followed
from attnscope.hf.anatomy.anatomy import Anatomy
from attnscope.hf.editing.freeze import freeze
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.seeing.exclusive import looking_at
from attnscope.hf.seeing.gradients import with_gradients
from attnscope.pathways.heads import head_table


@with_gradients()
def head_values(loaded: Loaded, ids: Int[Tensor, " token"], found: Anatomy) -> Float[Tensor, "layer head"]:
    """By block and head, for a causal language model; the sum over heads is what they add together."""
    with looking_at(loaded.model), quiet(), fitting(len(ids)), refusing_what_is_not_followed(loaded):
        network = freeze(loaded.model, {"input_ids": ids[None]}, found)
        expected = torch.softmax(network.output.detach(), dim=-1)

        def foretold(output: Float[Tensor, "1 token vocabulary"]) -> Float[Tensor, ""]:
            said, wanted = output[..., :-1, :], ids[1:].to(output.device)
            hit = said.gather(-1, wanted.expand(*said.shape[:-2], -1)[..., None]).sum()
            return hit - (said * expected[..., :-1, :]).sum()

        return head_table(network, foretold).shapley.detach()
