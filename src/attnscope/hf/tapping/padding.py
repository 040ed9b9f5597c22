"""Which tokens of every stack are real, during one forward pass.

Three may know: the caller (`token_masks`), an argument of the model that has one entry a token, and, where a model
turns padding of samples or frames into padding of tokens on its own (speech models), the mask it gives to attention:
keys that no query may see are padding. Where something is padded and none of them says what, nothing is measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Anatomy, Site, Stack, marks_padding
from attnscope.hf.intercepting.owners import arguments, at, float_tensors
from attnscope.hf.intercepting.recompute import visible
from attnscope.hf.intercepting.restoring import Restoring
from attnscope.hf.loading.targets import placeholder_tokens
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
        """The real tokens of a stack: all where nothing says otherwise; None where only attention can report."""
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


# Which tokens of a language model stand for pictures, video or sound, during one forward pass.
#
# Models that read both put placeholders among the words, which their configuration names, and lay the features of the
# picture over them. The stack that reads words is the one beside the table of their embeddings: a vision tower has as
# many tokens as it likes, and they are all of one kind.


class Media:
    """Masks of tokens that are no words, settled once a forward pass."""

    def __init__(self, model: nn.Module, found: Anatomy) -> None:
        self._tokens = tuple(placeholder_tokens(model).values())
        self._stacks = reading_words(model, found) if self._tokens else frozenset[str]()
        self.begin({})

    def begin(self, arguments: Mapping[str, Any]) -> None:
        self._mask: Bool[Tensor, "batch token"] | None = None
        ids = arguments.get("input_ids")
        if self._tokens and isinstance(ids, Tensor) and ids.ndim == 2:
            self._mask = torch.isin(ids, ids.new_tensor(self._tokens))

    def of(self, stack: str, real: Bool[Tensor, "batch token"]) -> Bool[Tensor, "batch token"] | None:
        """The tokens of a stack that are no words; None where it reads none, or where a sequence holds one kind only,
        which has no part between the two."""
        mask = self._mask
        if mask is None or stack not in self._stacks or mask.shape != real.shape:
            return None
        both = (mask & real).any(dim=1) & (~mask & real).any(dim=1)
        return mask.to(real.device) if bool(both.all()) else None


def reading_words(model: Any, found: Anatomy) -> frozenset[str]:
    """The stacks beside the table of words."""
    try:
        table = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return frozenset()
    path = next((path for path, module in model.named_modules() if module is table), "")
    beside = path.rpartition(".")[0]
    if not beside:
        return frozenset({found.stacks[-1].name}) if found.stacks else frozenset()
    return frozenset(s.name for s in found.stacks if s.blocks[0].path.startswith(f"{beside}."))


# Which tokens a stack reads during one forward pass, as the numbers that the model was given.
#
# An encoder-decoder has two lists: its encoder reads `input_ids`, the stack that looks across reads
# `decoder_input_ids`, and where those were left out the model makes them itself and nothing is said of them. Of
# several other stacks the one beside the table of words reads. Where a model puts tokens of its own before them,
# lengths differ, and nothing is said.


class Tokens:
    """Numbers of tokens by stack, as a forward pass was given them."""

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

    def of(self, stack: str, real: Bool[Tensor, "batch token"]) -> Int[Tensor, "batch token"] | None:
        ids = self._given.get(self._reads.get(stack, ""))
        return ids.to(real.device) if ids is not None and ids.shape == real.shape else None


# What enters every attention call (the tokens its projections read, after whatever norm stands before it), and what
# the block adds to the stream for it.

Receive = Callable[[Site, Float[Tensor, "batch token width"]], None]


@contextmanager
def attention_inputs(model: nn.Module, found: Anatomy, receive: Receive) -> Iterator[None]:
    """Inside, `receive(site, tokens)` is called before every self-attention of a stack, with tokens second."""
    stacks = {stack.name: stack for stack in found.stacks}
    calls: Counter[str] = Counter()

    def begin(*ignored: Any) -> None:
        calls.clear()

    def watch(path: str) -> Callable[..., None]:
        mine = {site.nth: site for site in found.sites if site.path == path}

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            site = mine.get(calls[path])
            calls[path] += 1
            if site is None or site.site != "self" or site.stack not in stacks:
                return
            stack = stacks[site.stack]
            fitting = (
                t for _, t in float_tensors(arguments(args, kwargs)) if t.ndim == 3 and t.shape[-1] == stack.width
            )
            tokens = next(fitting, None)
            if tokens is not None:
                receive(site, tokens.transpose(0, 1) if stack.sequence_first else tokens)

        return hook

    with Restoring() as changes:
        changes.before(model, begin, kwargs=False, prepend=True)
        for path in dict.fromkeys(site.path for site in found.sites):
            changes.before(model.get_submodule(path), watch(path))
        yield


@contextmanager
def first_writes(
    model: nn.Module, stack: Stack, receive: Callable[[int, Float[Tensor, "batch token width"]], None]
) -> Iterator[None]:
    """Inside, `receive(layer, write)` is called with what every block adds to its stream for attention, scaled and
    all: its first write, or in a parallel block the one that attention made."""
    calls: Counter[str] = Counter()
    places = {
        (place.path, place.nth): (block.layer, place.slot)
        for block in stack.blocks
        if block.attends
        for identity in block.writes.identities[:1]
        for place in identity.writes
        if block.writes.norm != "parallel" or place == block.writes.middle
    }

    def begin(*ignored: Any) -> None:
        calls.clear()

    def watch(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            found = places.get((path, calls[path]))
            calls[path] += 1
            if found is not None:
                layer, slot = found
                write = at(output, slot)
                receive(layer, write.transpose(0, 1) if stack.sequence_first else write)

        return hook

    with Restoring() as changes:
        changes.before(model, begin, kwargs=False, prepend=True)
        for path in dict.fromkeys(path for path, _ in places):
            changes.after(model.get_submodule(path), watch(path))
        yield
