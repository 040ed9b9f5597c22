"""Seeing inside a running model: frames are handed out while layers finish, and the model never notices.

    found = anatomy(model)
    with torch.inference_mode(), tap(model, found, receive):
        model(**batch)                      # receive(frame) is called with StreamFrame and AttentionFrame

Frames hold the model's own tensors and are kept by nobody: what `receive` does not keep is gone when the
layer is. The model's output stays equal bit for bit. Leaving the context, by an exception too, leaves
nothing behind.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy import Anatomy, Block, Site, Stack, marks_padding
from attnscope.hf.census import without_fast_path
from attnscope.hf.interface import watched_interface
from attnscope.hf.masks import MaskReader
from attnscope.hf.primitives import FusedCall, Seen, SoftmaxWatch, muted
from attnscope.hf.projections import output_weight
from attnscope.hf.sighting import Sighting, sight_fused, sight_written_out
from attnscope.hf.tensors import arguments, at
from attnscope.trace.frame import AttentionFrame, StreamFrame

Frame = StreamFrame | AttentionFrame
Receive = Callable[[Frame], None]
TokenMasks = Mapping[str, Bool[Tensor, "batch token"]]


@contextmanager
def tap(model: nn.Module, found: Anatomy, receive: Receive, token_masks: TokenMasks | None = None) -> Iterator[None]:
    """Call `receive` with every frame of every forward pass of `model` inside the context.

    `token_masks` says by stack which tokens are real; without it the masks in the model's own arguments do.
    """
    running = _Tap(model, found, receive, token_masks)
    with ExitStack() as stack:
        stack.callback(model.register_forward_pre_hook(running.begin, with_kwargs=True, prepend=True).remove)
        for path, hook in running.entering():
            module = model.get_submodule(path)
            stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        for path, after in running.leaving():
            stack.callback(model.get_submodule(path).register_forward_hook(after).remove)
        for path in dict.fromkeys(s.path for s in found.sites if s.route != "interface"):
            stack.enter_context(_watched(model.get_submodule(path), path, running))
        if "interface" in found.routes:
            stack.enter_context(
                watched_interface(running.paths.__contains__, running.masks, running.interface, running.as_pattern)
            )
        stack.enter_context(without_fast_path(found.fast_path))
        stack.callback(running.forget)
        yield


@contextmanager
def _watched(module: nn.Module, path: str, running: _Tap) -> Iterator[None]:
    """Torch-level attention calls are watched only while their owner runs."""
    forward = module.forward
    own = "forward" in vars(module)

    def watching(*args: Any, **kwargs: Any) -> Any:
        outer, running.watch = running.watch, SoftmaxWatch(lambda call: running.primitive(path, call))
        try:
            with running.watch:
                return forward(*args, **kwargs)
        finally:
            running.watch = outer

    module.forward = watching
    try:
        yield
    finally:
        if own:
            module.forward = forward
        else:
            del module.forward


class _Tap:
    def __init__(self, model: nn.Module, found: Anatomy, receive: Receive, token_masks: TokenMasks | None) -> None:
        self.model_class = type(model).__name__
        self.found = found
        self.receive = receive
        self.given_masks = dict(token_masks or {})
        self.paths = {module: path for path, module in model.named_modules()}
        self.sites = {(s.path, s.nth): s for s in found.sites}
        self.patterned = {s.path for s in found.sites if not s.rebuilt}
        parameters = dict(model.named_parameters())
        self.output_weights = {
            (s.path, s.nth): output_weight(s.projections.output, s.heads, parameters) for s in found.sites
        }
        self.signature = inspect.signature(model.forward)
        self.masks = MaskReader()
        self.watch: SoftmaxWatch | None = None  # active while the owner of torch-level attention runs
        self.forget()

    def forget(self) -> None:
        """Forward passes begin with nothing, and nothing is kept after the last."""
        self.attended: Counter[str] = Counter()
        self.called: Counter[tuple[str, str]] = Counter()
        self.before: dict[str, Tensor] = {}
        self.padding: dict[str, Bool[Tensor, "batch token"]] = {}
        self.arguments: Mapping[str, Any] = {}
        self.masks.forget()

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.forget()
        named = self.signature.bind_partial(*args).arguments
        self.arguments = {**named, **kwargs}

    # streams

    def entering(self) -> Iterator[tuple[str, Callable[..., None]]]:
        """Hooks on module inputs: streams that enter blocks, and those between attention and MLP."""
        for stack in self.found.stacks:
            for path, blocks in _by_path({(b.path, b.nth): b for b in stack.blocks}).items():
                yield path, self._on_input(stack, "stream", path, blocks)
            for path, blocks in self._middles(stack, "input").items():
                yield path, self._on_input(stack, "middle", path, blocks)

    def leaving(self) -> Iterator[tuple[str, Callable[..., None]]]:
        """Hooks on module outputs: the stream that leaves the last block, and those between its halves."""
        for stack in self.found.stacks:
            if stack.chained:
                last = stack.blocks[-1]
                yield last.path, self._on_output(stack, "left", last.path, {last.nth: last})
            for path, blocks in self._middles(stack, "output").items():
                yield path, self._on_output(stack, "middle", path, blocks)

    def _middles(self, stack: Stack, side: str) -> dict[str, dict[int, Block]]:
        places = {
            (b.writes.middle.path, b.writes.middle.nth): b
            for b in stack.blocks
            if b.writes.middle is not None and b.writes.middle.side == side
        }
        return _by_path(places)

    def _on_input(self, stack: Stack, site: str, path: str, blocks: dict[int, Block]) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            block = self._next(path, stack.name + site, blocks)
            if block is not None:
                middle = block.writes.middle
                slot = block.enters if site == "stream" or middle is None else middle.slot
                self._stream(stack, site, block, arguments(args, kwargs)[slot])

        return hook

    def _on_output(self, stack: Stack, site: str, path: str, blocks: dict[int, Block]) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            block = self._next(path, stack.name + site, blocks)
            if block is not None:
                middle = block.writes.middle
                slot = block.leaves if site == "left" or middle is None else middle.slot
                self._stream(stack, site, block, at(output, slot))

        return hook

    def _next(self, path: str, kind: str, blocks: dict[int, Block]) -> Block | None:
        nth = self.called[path, kind]
        self.called[path, kind] += 1
        return blocks.get(nth)

    def _stream(self, stack: Stack, site: str, block: Block, tensor: Tensor) -> None:
        tensor = tensor.detach()
        if stack.sequence_first:
            tensor = tensor.transpose(0, 1)
        before = self.before.get(stack.name)
        if site == "middle":
            if block.writes.adds is not None and before is not None:
                tensor = before + block.writes.adds * tensor.reshape(before.shape)
            elif before is not None:
                tensor = tensor.reshape(before.shape)
        layer = block.layer + (site == "left")
        fitting = before is not None and before.shape == tensor.shape and (site == "middle" or layer > 0)
        frame = StreamFrame(
            stack=stack.name,
            site="middle" if site == "middle" else "stream",
            layer=layer,
            stream=tensor,
            token_mask=self._token_mask(stack.name, tensor),
            stream_before=before if fitting else None,
        )
        if site == "stream":
            self.before[stack.name] = tensor.clone() if block.overwrites else tensor
        with muted(self.watch):  # what measures compute is not the model's
            self.receive(frame)

    # attention

    def interface(self, module: nn.Module, sighting: Sighting) -> None:
        self._attention(self.paths[module], sighting)

    def as_pattern(self, module: nn.Module) -> bool:
        return self.paths[module] in self.patterned

    def primitive(self, path: str, call: Seen) -> None:
        if isinstance(call, FusedCall):
            self._attention(path, sight_fused(call, self.masks))
        else:
            site = self._site(path)
            sighting = sight_written_out(call, heads=site.heads, batch=None)
            self._attention(path, replace(sighting, scores=replace(sighting.scores, causal=site.causal)))

    def _site(self, path: str) -> Site:
        site = self.sites.get((path, self.attended[path]))
        if site is None:
            raise RefusalError(
                f"{self.model_class} attended in {path or 'its forward'} where its probe run did not: "
                "give anatomy() example inputs that take the same path through the model."
            )
        return site

    def _attention(self, path: str, sighting: Sighting) -> None:
        site = self._site(path)
        self.attended[path] += 1
        batch, queries = sighting.mixed.shape[:2]
        keys = sighting.value.shape[2]
        self.receive(
            AttentionFrame(
                stack=site.stack,
                site=site.site,
                layer=site.layer,
                scores=sighting.scores,
                value=sighting.value,
                mixed=sighting.mixed,
                query_mask=self._mask(site.stack, batch, queries, sighting.mixed.device),
                key_mask=self._mask(site.keys_from, batch, keys, sighting.mixed.device),
                route=sighting.route,
                output_weight=self.output_weights[site.path, site.nth],
            )
        )

    # padding

    def _token_mask(self, stack: str, stream: Float[Tensor, "batch token width"]) -> Bool[Tensor, "batch token"]:
        return self._mask(stack, stream.shape[0], stream.shape[1], stream.device)

    def _mask(self, stack: str, batch: int, tokens: int, device: torch.device) -> Bool[Tensor, "batch token"]:
        """Which tokens of a stack are real; all of them where nothing of the right size says otherwise."""
        mask = self.padding.get(stack)
        if mask is None or mask.shape != (batch, tokens):
            mask = self._told(stack, batch, tokens)
            if mask is None or mask.shape != (batch, tokens):
                mask = torch.ones(batch, tokens, dtype=torch.bool)
            mask = self.padding[stack] = mask.to(device)
        return mask

    def _told(self, stack: str, batch: int, tokens: int) -> Bool[Tensor, "batch2 token2"] | None:
        """What the caller or the model's own arguments say about padding."""
        if stack in self.given_masks:
            return self.given_masks[stack]
        described = self.found.stack(stack)
        names = [f"{stack}_key_padding_mask"] if described is None or described.mask is None else [described.mask]
        if len(self.found.stacks) <= 1 and stack != "memory":
            names += self.arguments  # one stack: any mask of its size is its own, though the probe had none
        for name in names:
            mask = self.arguments.get(name)
            if mask is not None and marks_padding(name, mask) and mask.shape == (batch, tokens):
                return _real_tokens(name, mask)
        return None


def _real_tokens(name: str, mask: Tensor) -> Bool[Tensor, "batch token"]:
    if "padding" not in name:
        return mask > 0
    # torch's own layers mark padding: with True, or with a number that is added to the logits.
    return mask == 0 if mask.is_floating_point() else ~mask.bool()


def _by_path(places: Mapping[tuple[str, int], Block]) -> dict[str, dict[int, Block]]:
    grouped: dict[str, dict[int, Block]] = {}
    for (path, nth), block in places.items():
        grouped.setdefault(path, {})[nth] = block
    return grouped
