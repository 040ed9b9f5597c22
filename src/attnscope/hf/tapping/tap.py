"""Get frames from a model while it runs, without changing its output.

    found = anatomy(model)
    with torch.no_grad(), tap(model, found, receive):
        model(**batch)                      # receive(frame) is called with StreamFrame and AttentionFrame

Frames hold the model's own tensors. Tensors that `receive` does not keep are freed when the block ends. The output is
equal bit for bit to the output without the tap. Leaving the context, even by an exception, restores the model.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.data.frame import AttentionFrame, StreamFrame
from attnscope.hf.anatomy.anatomy import Anatomy, Block, Site, Stack
from attnscope.hf.anatomy.weights import ParametersInEffect, output_weight
from attnscope.hf.intercepting.masks import MaskReader
from attnscope.hf.intercepting.observed_call import ObservedCall, observe
from attnscope.hf.intercepting.owners import CallListener, arguments, at, watched_owner
from attnscope.hf.intercepting.pieces import pieces_joined
from attnscope.hf.intercepting.registry import RegistryWatcher, watched_registry
from attnscope.hf.intercepting.restoring import Restoring
from attnscope.hf.intercepting.torch_calls import Seen, WrittenOutCall, unwatched
from attnscope.hf.intercepting.wrappers import without_fast_path
from attnscope.hf.tapping.padding import Media, Padding, TokenMasks, Tokens

Frame = StreamFrame | AttentionFrame
Receive = Callable[[Frame], None]
_SAME_PATH = "give batches that all take the same path through the model"


@contextmanager
def tap(model: nn.Module, found: Anatomy, receive: Receive, token_masks: TokenMasks | None = None) -> Iterator[None]:
    """Call `receive` with every frame of every forward pass of `model` inside the context.

    `token_masks` says for each stack which tokens are real; the default comes from the model's arguments, or from the
    mask that it passes to attention. A forward pass without a frame for every site of `found` is refused. Modules that
    run outside a forward pass of the model (for gradient checkpointing) are ignored. Taps may overlap.
    """
    running = _Tap(model, found, receive, token_masks)
    with Restoring() as changes:
        changes.callback(running.forget)
        changes.before(model, running.begin, prepend=True)
        for stack in found.stacks:
            running.watch_streams(changes, model, stack)
        changes.after(model, running.finish)
        changes.after(model, running.end, always=True)
        if "pieces" in found.routes:  # before the owners are watched, which must get the joined calls
            changes.enter_context(pieces_joined(model))
        for path in dict.fromkeys(s.path for s in found.sites if s.route != "interface"):
            changes.enter_context(watched_owner(model.get_submodule(path), running.listener(path)))
        if "interface" in found.routes:
            changes.enter_context(watched_registry(running.registry_watcher()))
        changes.enter_context(without_fast_path(found.fast_path))
        yield


class _Tap:
    def __init__(self, model: nn.Module, found: Anatomy, receive: Receive, token_masks: TokenMasks | None) -> None:
        self.model_class = type(model).__name__
        self.found, self.receive = found, receive
        self.padding, self.media, self.tokens = Padding(found, token_masks), Media(model, found), Tokens(model, found)
        self.paths = {module: path for path, module in model.named_modules()}
        self.sites = {(s.path, s.nth): s for s in found.sites}
        self.repeating = repeating_paths(found)
        self.parameters = ParametersInEffect(model)
        self.signature = inspect.signature(model.forward)
        self.masks = MaskReader()
        self.running = False  # True inside a forward pass of the whole model
        self.forget()

    def forget(self, given: dict[str, Any] | None = None) -> None:
        """Drop the stored values of a forward pass. `given` are the arguments of the next one."""
        self.attended: Counter[str] = Counter()
        self.before: dict[str, Tensor] = {}
        self.waiting: dict[str, list[StreamFrame]] = {}  # by stack: frames that wait until attention shows the padding
        for reader in (self.padding, self.media, self.tokens):
            reader.begin(given or {})
        self.masks.forget()

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.forget({**self.signature.bind_partial(*args).arguments, **kwargs})
        self.running = True

    def finish(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Refuse a forward pass that lacks an attention call of the probe."""
        fewer = {path for path in self.repeating if self.attended[path]}
        missing = [s for s in self.found.sites if s.nth >= self.attended[s.path] and s.path not in fewer]
        if missing:
            places = ", ".join(f"{s.stack} block {s.layer} {s.site}" for s in missing[:3])
            raise RefusalError(
                f"{self.model_class} skipped attention calls that it made on the batch it was probed with ({places}): "
                f"{_SAME_PATH}."
            )

    def end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.forget()
        self.running = False

    def watch_streams(self, changes: Restoring, model: nn.Module, stack: Stack) -> None:
        """Hook the inputs of blocks, the output of the last block, and the stream between attention and MLP."""
        last = stack.blocks[-1]
        middles: dict[str, dict[tuple[str, int], Block]] = {"input": {}, "output": {}}
        for block in stack.blocks:
            if block.attends and (middle := block.writes.middle) is not None:
                middles[middle.side][middle.path, middle.nth] = block

        def enters(site: str) -> Callable[..., None]:
            def hook(block: Block, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                middle = block.writes.middle if site == "middle" else None
                slot = block.enters if middle is None else middle.slot
                self._stream(stack, site, block, arguments(args, kwargs)[slot])

            return hook

        def leaves(site: str) -> Callable[..., None]:
            def hook(block: Block, output: Any) -> None:
                middle = block.writes.middle if site == "middle" else None
                self._stream(stack, site, block, at(output, block.leaves if middle is None else middle.slot))

            return hook

        changes.nth_calls(model, stack.calls, before=enters("stream"))
        changes.nth_calls(model, middles["input"], before=enters("middle"))
        if stack.chained:
            changes.nth_calls(model, {(last.path, last.nth): last}, after=leaves("left"))
        changes.nth_calls(model, middles["output"], after=leaves("middle"))

    def _stream(self, stack: Stack, site: str, block: Block, tensor: Tensor) -> None:
        if not self.running:
            return
        tensor = stack.turned(tensor.detach())
        before = self.before.get(stack.name)
        if site == "middle" and before is not None:
            tensor = tensor.reshape(before.shape)
            if block.writes.adds is not None:
                tensor = before + block.writes.adds * tensor
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
        with unwatched():  # do not observe the arithmetic of measures
            self.receive(frame)

    def registry_watcher(self) -> RegistryWatcher:
        patterned = {s.path for s in self.found.sites if not s.rebuilt}
        return RegistryWatcher(
            lambda module: self.running and module in self.paths,
            self.masks,
            lambda module, observed: self._attention(self.paths[module], observed),
            lambda module: self.paths[module] in patterned,
        )

    def listener(self, path: str) -> CallListener:
        return CallListener(lambda: self.running, lambda call: self._torch_call(path, call), lambda: self._lost(path))

    def _lost(self, path: str) -> None:
        raise RefusalError(
            f"{self.model_class} mixes values in {path or 'its forward'} in an unsupported way, unlike on the batch it "
            f"was probed with: {_SAME_PATH}."
        )

    def _torch_call(self, path: str, call: Seen) -> None:
        if not isinstance(call, WrittenOutCall):
            self._attention(path, observe(call, self.masks))
        else:
            site = self._site(path)
            observed = observe(call, self.masks, heads=site.heads)
            self._attention(path, replace(observed, scores=replace(observed.scores, causal=site.causal)))

    def _site(self, path: str) -> Site:
        site = self.sites.get((path, self.attended[path]))
        if site is None and path in self.repeating:
            site = self.sites[path, 0]  # the call is repeated, for example for another picture of the batch
        if site is None:
            raise RefusalError(
                f"{self.model_class} made an attention call in {path or 'its forward'} that it did not make on the "
                f"batch it was probed with: {_SAME_PATH}."
            )
        return site

    def _attention(self, path: str, observed: ObservedCall) -> None:
        site = self._site(path)
        self.attended[path] += 1
        batch, queries = observed.mixed.shape[:2]
        keys, device, own = observed.value.shape[2], observed.mixed.device, site.site == "self"
        if own and queries != keys:
            raise RefusalError(
                f"{self.model_class} attends from {queries} tokens to {keys} in {path or 'its forward'}, unlike on the "
                "batch it was probed with, where attention was square (there may be a cache or memory of earlier "
                "tokens): run it without a cache (use_cache=False), on sequences as long as those of the first batch."
            )
        key_mask = self.padding.mask(site.keys_from, batch, keys, device)
        if key_mask is None:
            key_mask = self.padding.learn(site.keys_from, batch, observed.scores)
        for frame in self.waiting.pop(site.keys_from, ()):
            self._hand_out(replace(frame, token_mask=key_mask))
        query_mask = observed.rows
        if query_mask is None or queries == keys:
            query_mask = self.padding.mask(site.stack, batch, queries, device)
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
                media=self.media.of(site.stack, key_mask) if own else None,
                tokens=self.tokens.of(site.stack, key_mask) if own else None,
            )
        )


def repeating_paths(found: Anatomy) -> frozenset[str]:
    """Return modules that repeat the same attention: for every picture of a batch, or chunk of a sequence.

    The number of repetitions depends on the batch, so it may differ from the number in the probe.
    """
    places: dict[str, list[tuple[str, str, int]]] = {}
    for site in found.sites:
        places.setdefault(site.path, []).append(site.key)
    return frozenset(path for path, own in places.items() if len(own) > 1 and len(set(own)) == 1)
