"""Which tokens of every stack are real, during one forward pass.

Three may know: the caller (`token_masks`), an argument of the model that has one entry a token, and, where a model
turns padding of samples or frames into padding of tokens on its own (speech models), the mask it gives to attention:
keys that no query may see are padding. Where something is padded and none of them says what, nothing is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Anatomy, marks_padding
from attnscope.hf.seeing.recompute import visible
from attnscope.matrix.scores import Scores

TokenMasks = Mapping[str, Bool[Tensor, "batch token"]]
_ELSEWHERE = ("encoder", "decoder", "memory", "cross")  # how arguments for another stack's tokens begin


class Padding:
    """Masks of tokens by stack, each settled once a forward pass."""

    def __init__(self, found: Anatomy, given: TokenMasks | None) -> None:
        self._found = found
        self._given = dict(given or {})
        self.begin({})

    def begin(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = arguments
        self._known: dict[str, Bool[Tensor, "batch token"]] = {}

    def mask(self, stack: str, batch: int, tokens: int, device: torch.device) -> Bool[Tensor, "batch token"] | None:
        """The real tokens of a stack: all where nothing says otherwise; None where only attention can tell."""
        mask = self._known.get(stack)
        if mask is None or mask.shape != (batch, tokens):
            mask = self._told(stack, batch, tokens)
            if mask is None or mask.shape != (batch, tokens):
                unsure = self._padded_elsewhere(stack, tokens) or self._padded_further(stack, tokens)
                if stack not in self._given and unsure:
                    return None
                mask = torch.ones(batch, tokens, dtype=torch.bool)
            mask = self._known[stack] = mask.to(device)
        return mask

    def learn(self, stack: str, batch: int, scores: Scores) -> Bool[Tensor, "batch token"]:
        """The real tokens of a stack, from a call that has them as keys."""
        seen = visible(scores).flatten(1, 2).any(dim=1).expand(batch, -1)
        if bool(seen.all()) and self._padded_elsewhere(stack, seen.shape[1]):
            raise self.refusal(stack)
        self._known[stack] = seen
        return seen

    def refusal(self, stack: str) -> RefusalError:
        names = ", ".join(name for name, _ in self._concerning(stack))
        return RefusalError(
            f"{self._found.model_class} is told of padding ({names}), but not for the tokens of its stack '{stack}', "
            "and its attention does not show it: give batches without padding (sequences of one length each)."
        )

    def _told(self, stack: str, batch: int, tokens: int) -> Bool[Tensor, "batch2 token2"] | None:
        """What the caller or the model's own arguments say about padding."""
        if stack in self._given:
            return self._given[stack]
        described = self._found.stack(stack)
        names = [f"{stack}_key_padding_mask"] if described is None or described.mask is None else [described.mask]
        if len(self._found.stacks) <= 1 and stack != "memory":
            names += self._arguments  # one stack: any mask of its size is its own, though the probe had none
        for name in names:
            mask = self._arguments.get(name)
            if mask is not None and marks_padding(name, mask) and mask.shape == (batch, tokens):
                return _real_tokens(name, mask)
        return None

    def _padded_elsewhere(self, stack: str, tokens: int) -> bool:
        """Whether an argument marks padding worth a token of this stack or more, in units of its own."""
        for name, mask in self._concerning(stack):
            padded = int((~_real_tokens(name, mask)).sum(dim=1).max())
            if padded * tokens >= mask.shape[1]:
                return True
        return False

    def _padded_further(self, stack: str, tokens: int) -> bool:
        """Whether a stack is longer than the arguments that speak of it: a model may pad to whole windows itself."""
        return any(mask.shape[1] < tokens for _, mask in self._concerning(stack))

    def _concerning(self, stack: str) -> Iterator[tuple[str, Tensor]]:
        """The arguments that speak of a stack's padding: its own by the probe or by name; the first stack's otherwise.

        The first stack that runs reads the model's inputs, so an argument that no stack claims is about them.
        """
        described = self._found.stack(stack)
        claimed = {s.mask for s in self._found.stacks}
        first = bool(self._found.stacks) and self._found.stacks[0].name == stack
        for name, mask in self._arguments.items():
            if marks_padding(name, mask) and described is not None:
                loose = first and name not in claimed and not name.startswith(_ELSEWHERE)
                if name == described.mask or name.startswith(f"{stack}_") or (described.mask is None and loose):
                    yield name, mask


def _real_tokens(name: str, mask: Tensor) -> Bool[Tensor, "batch token"]:
    if "padding" not in name:
        return mask > 0
    # torch's own layers mark padding: with True, or with a number that is added to the logits.
    return mask == 0 if mask.is_floating_point() else ~mask.bool()
