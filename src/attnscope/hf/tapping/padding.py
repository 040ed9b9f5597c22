"""Find which tokens of a stack are real (not padding), which stand for media, and their ids, during a forward pass.

Padding is known from the caller (`token_masks`), from an argument of the model with one entry per token, or, if a model
converts padding of samples or frames itself (speech models), from the mask that it passes to attention: keys that no
query may see are padding. If there is padding and none of these shows it, the model is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Anatomy, Site, Stack, marks_padding
from attnscope.hf.anatomy.recording import Location, read_at
from attnscope.hf.intercepting.masks import visible
from attnscope.hf.intercepting.owners import arguments, float_tensors
from attnscope.hf.intercepting.restoring import Restoring
from attnscope.hf.loading.targets import placeholder_tokens
from attnscope.matrix.scores import Scores

Mask = Bool[Tensor, "batch token"]
TokenMasks = Mapping[str, Mask]
_ELSEWHERE = ("encoder", "decoder", "memory", "cross")  # prefixes of arguments for other stacks


class Padding:
    """For each stack, a mask of the tokens that are not padding, found once in every forward pass."""

    def __init__(self, found: Anatomy, given: TokenMasks | None) -> None:
        self._found = found
        self._given = dict(given or {})
        self.begin({})

    def begin(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = arguments
        self._known: dict[str, Mask] = {}

    def mask(self, stack: str, batch: int, tokens: int, device: torch.device) -> Mask | None:
        """Return a mask of the real tokens of a stack (by default all), or None if only attention can show it."""
        mask = self._known.get(stack)
        if mask is None or mask.shape != (batch, tokens):
            mask = self._from_arguments(stack, batch, tokens)
            if mask is None or mask.shape != (batch, tokens):
                # A model may pad a stack to whole windows, so that it is longer than its arguments.
                longer = any(own.shape[1] < tokens for _, own in self._concerning(stack))
                if stack not in self._given and (longer or self._padded_elsewhere(stack, tokens)):
                    return None
                mask = torch.ones(batch, tokens, dtype=torch.bool)
            mask = self._known[stack] = mask.to(device)
        return mask

    def learn(self, stack: str, batch: int, scores: Scores) -> Mask:
        """Return a mask of the real tokens of a stack, from an attention call that uses these tokens as keys."""
        seen = visible(scores).flatten(1, 2).any(dim=1).expand(batch, -1)
        if bool(seen.all()) and self._padded_elsewhere(stack, seen.shape[1]):
            raise self.refusal(stack)
        self._known[stack] = seen
        return seen

    def refusal(self, stack: str) -> RefusalError:
        names = ", ".join(name for name, _ in self._concerning(stack))
        return RefusalError(
            f"The batch for {self._found.model_class} has padding ({names}), but it is unknown which tokens of the "
            f"stack '{stack}' it concerns: give batches without padding (sequences of equal length)."
        )

    def _from_arguments(self, stack: str, batch: int, tokens: int) -> Bool[Tensor, "batch2 token2"] | None:
        """Return the padding mask from the caller's or the model's own arguments."""
        if stack in self._given:
            return self._given[stack]
        described = self._found.stack(stack)
        names = [f"{stack}_key_padding_mask"] if described is None or described.mask is None else [described.mask]
        if len(self._found.stacks) <= 1 and stack != "memory":
            names += self._arguments  # if there is only one stack, any mask of its size belongs to it
        for name in names:
            mask = self._arguments.get(name)
            if mask is not None and marks_padding(name, mask) and mask.shape == (batch, tokens):
                return real_tokens(name, mask)
        return None

    def _padded_elsewhere(self, stack: str, tokens: int) -> bool:
        """Return whether an argument marks padding that is at least one token of this stack long."""
        return any(
            int((~real_tokens(name, mask)).sum(dim=1).max()) * tokens >= mask.shape[1]
            for name, mask in self._concerning(stack)
        )

    def _concerning(self, stack: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the arguments that mark the padding of a stack, found by the probe or by name.

        An argument that belongs to no stack marks padding of the first one, which reads the model's inputs.
        """
        described = self._found.stack(stack)
        claimed = {s.mask for s in self._found.stacks}
        first = bool(self._found.stacks) and self._found.stacks[0].name == stack
        for name, mask in self._arguments.items():
            if marks_padding(name, mask) and described is not None:
                loose = first and name not in claimed and not name.startswith(_ELSEWHERE)
                if name == described.mask or name.startswith(f"{stack}_") or (described.mask is None and loose):
                    yield name, mask


def real_tokens(name: str, mask: Tensor) -> Mask:
    """Return which tokens are real, from an argument that marks padding."""
    if "padding" not in name:
        return mask > 0
    # torch's own modules mark padding with True, or with a number that is added to the logits.
    return mask == 0 if mask.is_floating_point() else ~mask.bool()


class Media:
    """Masks of tokens that stand for pictures, video or sound, found once in every forward pass.

    The text of such models contains placeholder tokens, named in the configuration, whose embeddings are replaced by
    features of the picture. Only the stack that reads words, next to the word embedding, has such masks.
    """

    def __init__(self, model: nn.Module, found: Anatomy) -> None:
        self._tokens = tuple(placeholder_tokens(model).values())
        self._stacks = reading_words(model, found) if self._tokens else frozenset[str]()
        self.begin({})

    def begin(self, arguments: Mapping[str, Any]) -> None:
        self._mask: Mask | None = None
        ids = arguments.get("input_ids")
        if self._tokens and isinstance(ids, Tensor) and ids.ndim == 2:
            self._mask = torch.isin(ids, ids.new_tensor(self._tokens))

    def of(self, stack: str, real: Mask) -> Mask | None:
        """Return the tokens of a stack that are not words; None unless every sequence has words and media."""
        mask = self._mask
        if mask is None or stack not in self._stacks or mask.shape != real.shape:
            return None
        both = (mask & real).any(dim=1) & (~mask & real).any(dim=1)
        return mask.to(real.device) if bool(both.all()) else None


def reading_words(model: Any, found: Anatomy) -> frozenset[str]:
    """Return the stacks that belong to the same module as the word embedding."""
    try:
        table = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return frozenset()
    path = next((path for path, module in model.named_modules() if module is table), "")
    beside = path.rpartition(".")[0]
    if not beside:
        return frozenset({found.stacks[-1].name}) if found.stacks else frozenset()
    return frozenset(s.name for s in found.stacks if s.blocks[0].path.startswith(f"{beside}."))


class Tokens:
    """Ids of the tokens that a stack reads, from the arguments of a forward pass.

    A stack with cross-attention reads `decoder_input_ids`, and an encoder reads `input_ids`. Without cross-attention,
    the stack next to the word embedding reads `input_ids`. The ids are unknown if the model makes decoder_input_ids
    itself, or adds tokens of its own, so that lengths differ.
    """

    def __init__(self, model: nn.Module, found: Anatomy) -> None:
        names = [stack.name for stack in found.stacks]
        crossing = {site.stack for site in found.sites if site.site == "cross"}
        self._reads: dict[str, str] = {}
        if crossing:
            self._reads = {name: "decoder_input_ids" if name in crossing else "input_ids" for name in names}
        elif names:
            reading = set(names) if len(names) == 1 else reading_words(model, found)
            self._reads = dict.fromkeys(reading, "input_ids")
        self.begin({})

    def begin(self, arguments: Mapping[str, Any]) -> None:
        self._given = {
            name: arguments[name]
            for name in set(self._reads.values())
            if isinstance(arguments.get(name), Tensor) and not torch.is_floating_point(arguments[name])
        }

    def of(self, stack: str, real: Mask) -> Int[Tensor, "batch token"] | None:
        ids = self._given.get(self._reads.get(stack, ""))
        return ids.to(real.device) if ids is not None and ids.shape == real.shape else None


Receive = Callable[[Site, Float[Tensor, "batch token width"]], None]


@contextmanager
def attention_inputs(model: nn.Module, found: Anatomy, receive: Receive) -> Iterator[None]:
    """Call `receive(site, tokens)` with the input of every self-attention of a stack, before it runs."""
    stacks = {stack.name: stack for stack in found.stacks}

    def enter(site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        stack = stacks[site.stack]
        three = (t for _, t in float_tensors(arguments(args, kwargs)) if t.ndim == 3)
        tokens = next((t for t in three if t.shape[-1] == stack.width), None)
        if tokens is not None:
            receive(site, stack.turned(tokens))

    sites = {(s.path, s.nth): s for s in found.sites if s.site == "self" and s.stack in stacks}
    with Restoring() as changes:
        changes.nth_calls(model, sites, before=enter)
        yield


@contextmanager
def first_writes(
    model: nn.Module, stack: Stack, receive: Callable[[int, Float[Tensor, "batch token width"]], None]
) -> Iterator[None]:
    """Call `receive(block, write)` with the attention write of every block.

    This is the first write of the block, or the write of attention in a parallel block.
    """
    blocks: dict[Location, int] = {
        location: block.layer
        for block in stack.blocks
        if block.attends
        for identity in block.writes.identities[:1]
        for location in identity.writes
        if block.writes.norm != "parallel" or location == block.writes.middle
    }
    with Restoring() as changes:
        read_at(changes, model, blocks, lambda location, write: receive(blocks[location], stack.turned(write)))
        yield
