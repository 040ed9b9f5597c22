"""Seeing inside a running model: frames are handed out while layers finish, and the model never notices.

    found = anatomy(model)
    with torch.no_grad(), tap(model, found, receive):
        model(**batch)                      # receive(frame) is called with StreamFrame and AttentionFrame

Frames hold the model's own tensors and are kept by nobody: what `receive` does not keep is gone when the
layer is. The model's output stays equal bit for bit. Leaving the context, by an exception too, leaves
nothing behind.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.data.frame import AttentionFrame, StreamFrame
from attnscope.hf.anatomy.anatomy import Anatomy, Block, Site, Stack
from attnscope.hf.anatomy.projections import ParametersInEffect, output_weight
from attnscope.hf.intercepting.masks import MaskReader
from attnscope.hf.intercepting.observed_call import ObservedCall, observe_fused, observe_written_out
from attnscope.hf.intercepting.owners import CallListener, arguments, at, watched_owner
from attnscope.hf.intercepting.pieces import pieces_joined
from attnscope.hf.intercepting.registry import watched_registry
from attnscope.hf.intercepting.restoring import Restoring
from attnscope.hf.intercepting.torch_calls import FusedCall, ReportedCall, Seen, unwatched
from attnscope.hf.intercepting.wrappers import without_fast_path
from attnscope.hf.tapping.padding import Media, Padding, TokenMasks, Tokens

Frame = StreamFrame | AttentionFrame
Receive = Callable[[Frame], None]


@contextmanager
def tap(model: nn.Module, found: Anatomy, receive: Receive, token_masks: TokenMasks | None = None) -> Iterator[None]:
    """Call `receive` with every frame of every forward pass of `model` inside the context.

    `token_masks` says by stack which tokens are real; without it the masks in the model's own arguments do, or the mask
    it makes of them for attention. Every forward pass gives a frame for every site of `found`, or is refused. What runs
    outside one (layers run again for gradient checkpointing) is not looked at. Taps may overlap in any order.
    """
    running = _Tap(model, found, receive, token_masks)
    with Restoring() as changes:
        changes.callback(running.forget)
        changes.before(model, running.begin, prepend=True)
        for path, before in running.entering():
            changes.before(model.get_submodule(path), before)
        for path, after in running.leaving():
            changes.after(model.get_submodule(path), after)
        changes.after(model, running.finish)
        changes.after(model, running.end, always=True)
        if "pieces" in found.routes:  # before its owners are watched, who are to hear of it
            changes.enter_context(pieces_joined(model))
        for path in dict.fromkeys(s.path for s in found.sites if s.route != "interface"):
            changes.enter_context(watched_owner(model.get_submodule(path), running.listener(path)))
        if "interface" in found.routes:
            changes.enter_context(
                watched_registry(running.watches, running.masks, running.interface, running.as_pattern)
            )
        changes.enter_context(without_fast_path(found.fast_path))
        yield


class _Tap:
    def __init__(self, model: nn.Module, found: Anatomy, receive: Receive, token_masks: TokenMasks | None) -> None:
        self.model_class = type(model).__name__
        self.found = found
        self.receive = receive
        self.padding = Padding(found, token_masks)
        self.media = Media(model, found)
        self.tokens = Tokens(model, found)
        self.paths = {module: path for path, module in model.named_modules()}
        self.sites = {(s.path, s.nth): s for s in found.sites}
        self.patterned = {s.path for s in found.sites if not s.rebuilt}
        self.repeating = repeating_paths(found)
        self.parameters = ParametersInEffect(model)
        self.signature = inspect.signature(model.forward)
        self.masks = MaskReader()
        self.running = False  # inside a forward pass of the whole model
        self.forget()

    def forget(self) -> None:
        """Forward passes begin with nothing, and nothing is kept after the last."""
        self.attended: Counter[str] = Counter()
        self.called: Counter[tuple[str, str]] = Counter()
        self.before: dict[str, Tensor] = {}
        self.waiting: dict[str, list[StreamFrame]] = {}  # by stack, until attention shows what is padding
        self.padding.begin({})
        self.media.begin({})
        self.tokens.begin({})
        self.masks.forget()

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.forget()
        named = self.signature.bind_partial(*args).arguments
        self.padding.begin({**named, **kwargs})
        self.media.begin({**named, **kwargs})
        self.tokens.begin({**named, **kwargs})
        self.running = True

    def finish(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """After a forward pass that came to its end: did it attend wherever the probe did?"""
        fewer = {path for path in self.repeating if self.attended[path]}
        missing = [s for s in self.found.sites if s.nth >= self.attended[s.path] and s.path not in fewer]
        if missing:
            places = ", ".join(f"{s.stack} layer {s.layer} {s.site}" for s in missing[:3])
            raise RefusalError(
                f"{self.model_class} did not attend where it did on the batch it was probed with ({places}): give "
                "batches that all take the same path through the model."
            )

    def end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.forget()
        self.running = False

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
            if b.attends and b.writes.middle is not None and b.writes.middle.side == side
        }
        return _by_path(places)

    def _on_input(self, stack: Stack, site: str, path: str, blocks: dict[int, Block]) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            block = self._next(path, stack.name + site, blocks) if self.running else None
            if block is not None:
                middle = block.writes.middle
                slot = block.enters if site == "stream" or middle is None else middle.slot
                self._stream(stack, site, block, arguments(args, kwargs)[slot])

        return hook

    def _on_output(self, stack: Stack, site: str, path: str, blocks: dict[int, Block]) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            block = self._next(path, stack.name + site, blocks) if self.running else None
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
        mask = self.padding.mask(stack.name, tensor.shape[0], tensor.shape[1], tensor.device)
        frame = StreamFrame(
            stack=stack.name,
            site="middle" if site == "middle" else "stream",
            layer=layer,
            stream=tensor.clone() if mask is None and block.overwrites else tensor,
            token_mask=tensor.new_ones(tensor.shape[:2], dtype=torch.bool) if mask is None else mask,
            stream_before=before if fitting else None,
        )
        if site == "stream":
            self.before[stack.name] = tensor.clone() if block.overwrites else tensor
        if mask is None:
            self.waiting.setdefault(stack.name, []).append(frame)
        else:
            self._hand_out(frame)

    def _hand_out(self, frame: Frame) -> None:
        with unwatched():  # what measures compute is not the model's
            self.receive(frame)

    # attention

    def watches(self, module: nn.Module) -> bool:
        return self.running and module in self.paths

    def listener(self, path: str) -> CallListener:
        return CallListener(lambda: self.running, lambda call: self.primitive(path, call), lambda: self._lost(path))

    def _lost(self, path: str) -> None:
        raise RefusalError(
            f"{self.model_class} mixes values in {path or 'its forward'} in a way that it did not on the batch it was "
            "probed with and that is not understood: give batches that all take the same path through the model."
        )

    def interface(self, module: nn.Module, observed: ObservedCall) -> None:
        self._attention(self.paths[module], observed)

    def as_pattern(self, module: nn.Module) -> bool:
        return self.paths[module] in self.patterned

    def primitive(self, path: str, call: Seen) -> None:
        if isinstance(call, FusedCall):
            self._attention(path, observe_fused(call, self.masks))
        elif isinstance(call, ReportedCall):
            self._attention(path, call.observed)
        else:
            site = self._site(path)
            observed = observe_written_out(call, heads=site.heads, batch=None)
            self._attention(path, replace(observed, scores=replace(observed.scores, causal=site.causal)))

    def _site(self, path: str) -> Site:
        site = self.sites.get((path, self.attended[path]))
        if site is None and path in self.repeating:
            site = self.sites[path, 0]  # one more picture of a batch, say
        if site is None:
            raise RefusalError(
                f"{self.model_class} attended in {path or 'its forward'} where it did not on the batch it was probed "
                "with: give batches that all take the same path through the model."
            )
        return site

    def _attention(self, path: str, observed: ObservedCall) -> None:
        site = self._site(path)
        self.attended[path] += 1
        batch, queries = observed.mixed.shape[:2]
        keys = observed.value.shape[2]
        if site.site == "self" and queries != keys:
            raise RefusalError(
                f"{self.model_class} attends from {queries} tokens to {keys} in {path or 'its forward'}, where it was "
                "square on the batch it was probed with (a cache of earlier tokens, or more memory than a shorter "
                "text needs): run it without a cache (use_cache=False), on sequences as long as those of the first "
                "batch."
            )
        key_mask = self.padding.mask(site.keys_from, batch, keys, observed.mixed.device)
        if key_mask is None:
            key_mask = self.padding.learn(site.keys_from, batch, observed.scores)
        for frame in self.waiting.pop(site.keys_from, ()):
            self._hand_out(replace(frame, token_mask=key_mask))
        query_mask = observed.rows
        if query_mask is None or queries == keys:
            query_mask = self.padding.mask(site.stack, batch, queries, observed.mixed.device)
            if query_mask is None:
                raise self.padding.refusal(site.stack)
            query_mask = query_mask if observed.rows is None else query_mask & observed.rows
        self._hand_out(
            AttentionFrame(
                stack=site.stack,
                site=site.site,
                layer=site.layer,
                scores=observed.scores,
                value=observed.value,
                mixed=observed.mixed,
                query_mask=query_mask,
                key_mask=key_mask,
                route=observed.route,
                output_weight=output_weight(site.projections.output, site.heads, self.parameters),
                attended=observed.attended,
                holds=observed.holds,
                sums_to_one=observed.sums_to_one,
                passed_on=observed.passed_on,
                gate=observed.gate,
                media=self.media.of(site.stack, key_mask) if site.site == "self" else None,
                tokens=self.tokens.of(site.stack, key_mask) if site.site == "self" else None,
            )
        )


def repeating_paths(found: Anatomy) -> frozenset[str]:
    """Modules that attend several times at one place: once for every picture of a batch, or every chunk of a sequence.

    How often depends on the batch, so it may be another number than the probe saw.
    """
    places: dict[str, list[tuple[str, str, int]]] = {}
    for site in found.sites:
        places.setdefault(site.path, []).append((site.stack, site.site, site.layer))
    return frozenset(path for path, own in places.items() if len(own) > 1 and len(set(own)) == 1)


def _by_path(places: Mapping[tuple[str, int], Block]) -> dict[str, dict[int, Block]]:
    grouped: dict[str, dict[int, Block]] = {}
    for (path, nth), block in places.items():
        grouped.setdefault(path, {})[nth] = block
    return grouped
