"""Which tokens of every stack are real, which stand for media, and which numbers they have, during one forward pass.

Three sources know about padding: the caller (`token_masks`); an argument of the model that has one entry a token; and,
if a model turns padding of samples or frames into padding of tokens on its own (speech models), the mask it gives to
attention: keys that no query may see are padding. If something is padded and no source says what, the model is refused.
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
_ELSEWHERE = ("encoder", "decoder", "memory", "cross")  # how arguments for another stack's tokens begin


class Padding:
    """Masks of tokens by stack, each found once a forward pass."""

    def __init__(self, found: Anatomy, given: TokenMasks | None) -> None:
        self._found = found
        self._given = dict(given or {})
        self.begin({})

    def begin(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = arguments
        self._known: dict[str, Mask] = {}

    def mask(self, stack: str, batch: int, tokens: int, device: torch.device) -> Mask | None:
        """Return the real tokens of a stack, by default all; None if only attention can show them."""
        mask = self._known.get(stack)
        if mask is None or mask.shape != (batch, tokens):
            mask = self._from_arguments(stack, batch, tokens)
            if mask is None or mask.shape != (batch, tokens):
                # A model may pad a stack to whole windows itself: it is then longer than the arguments about it.
                longer = any(own.shape[1] < tokens for _, own in self._concerning(stack))
                if stack not in self._given and (longer or self._padded_elsewhere(stack, tokens)):
                    return None
                mask = torch.ones(batch, tokens, dtype=torch.bool)
            mask = self._known[stack] = mask.to(device)
        return mask

    def learn(self, stack: str, batch: int, scores: Scores) -> Mask:
        """Return the real tokens of a stack, from a call that has them as keys."""
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

    def _from_arguments(self, stack: str, batch: int, tokens: int) -> Bool[Tensor, "batch2 token2"] | None:
        """Return the padding mask from the caller's or the model's own arguments."""
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
        """Return whether an argument, in its own units, marks padding of at least one token of this stack."""
        return any(
            int((~_real_tokens(name, mask)).sum(dim=1).max()) * tokens >= mask.shape[1]
            for name, mask in self._concerning(stack)
        )

    def _concerning(self, stack: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the arguments about a stack's padding: its own by the probe or by name, else the first stack's.

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


def _real_tokens(name: str, mask: Tensor) -> Mask:
    if "padding" not in name:
        return mask > 0
    # torch's own layers mark padding: with True, or with a number that is added to the logits.
    return mask == 0 if mask.is_floating_point() else ~mask.bool()


class Media:
    """Masks of tokens that stand for pictures, video or sound, found once a forward pass.

    Models that read both put placeholders among the words, which their configuration names, and lay the features of the
    picture over them. The stack that reads words is the one beside the table of their embeddings: the tokens of a
    vision tower are all of one kind.
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
        """Return the tokens of a stack that are no words; None if it reads none, or a sequence has one kind only."""
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
    """Numbers of the tokens that a stack reads, as a forward pass was given them.

    An encoder reads `input_ids`, a stack with cross-attention `decoder_input_ids`; if the model makes those itself they
    are unknown. Of several other stacks the one beside the table of words reads. If a model puts tokens of its own
    before them, lengths differ, and the numbers are unknown.
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
    """Call `receive(site, tokens)` with the tokens that projections read, before every self-attention of a stack."""
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
    """Call `receive(block, write)` with the scaled attention write of every block.

    That is its first write, or in a parallel block the one that attention made.
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
