"""Small inputs for a probe run, from the model itself or cut out of a batch that the user gave.

Lengths are chosen to be told apart: two sequences, seven tokens, five decoder tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.intercepting.masks import MaskReader
from attnscope.hf.intercepting.observed_call import ObservedCall
from attnscope.hf.intercepting.pieces import pieces_joined
from attnscope.hf.intercepting.registry import watched_registry
from attnscope.hf.intercepting.restoring import Restoring
from attnscope.hf.intercepting.torch_calls import Seen, SoftmaxWatch
from attnscope.hf.intercepting.wrappers import without_fast_path

BATCH, TOKENS, DECODER_TOKENS = 2, 7, 5
Batch = Mapping[str, Any] | Sequence[Any]


def run(model: nn.Module, batch: Batch) -> Any:
    """Call a model with a batch: a mapping gives named arguments, a sequence positional ones."""
    return model(**batch) if isinstance(batch, Mapping) else model(*batch)


@contextmanager
def same_chance(model: nn.Module) -> Iterator[None]:
    """Models that draw random numbers draw the same ones inside; the generators outside are left alone."""
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=list(devices)):
        torch.manual_seed(0)
        yield


def example_batch(model: nn.Module) -> dict[str, Tensor]:
    """Inputs for a transformers model, from what its forward takes and what its configuration says."""
    takes = inspect.signature(model.forward).parameters
    config = getattr(model, "config", None)
    if config is None:
        raise RefusalError(
            f"{type(model).__name__} has no configuration to make a probe input from: "
            "pass example_inputs, a small batch it can run on."
        )
    generator = torch.Generator().manual_seed(0)
    main = getattr(model, "main_input_name", "input_ids")
    required = {n for n, p in takes.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    towers = {"vision_config", "text_config"} <= set(vars(config)) and "logit_scale" in dict(model.named_parameters())
    batch: dict[str, Tensor] = {}
    if "input_ids" in takes and (main == "input_ids" or "input_ids" in required or towers):
        batch["input_ids"] = _ids(config, TOKENS, generator)
        if "attention_mask" in takes:
            batch["attention_mask"] = torch.ones(BATCH, TOKENS, dtype=torch.long)
    if "pixel_values" in takes and (main == "pixel_values" or "pixel_values" in required or towers):
        batch["pixel_values"] = _pixels(config, generator)
    if "input_features" in takes and main == "input_features":
        length = 2 * getattr(config, "max_source_positions", 500)
        bins = getattr(config, "num_mel_bins", 80)
        batch["input_features"] = torch.randn(BATCH, bins, length, generator=generator)
    if "input_values" in takes and main == "input_values":
        batch["input_values"] = torch.randn(BATCH, 4000, generator=generator)
    if "decoder_input_ids" in takes and getattr(config, "is_encoder_decoder", False):
        batch["decoder_input_ids"] = _ids(config, DECODER_TOKENS, generator)
        if "decoder_attention_mask" in takes:
            batch["decoder_attention_mask"] = torch.ones(BATCH, DECODER_TOKENS, dtype=torch.long)
    if not batch:
        raise RefusalError(
            f"No probe input could be made for {type(model).__name__} (it takes {', '.join(takes)}): "
            "pass example_inputs, a small batch it can run on."
        )
    return {name: _placed(tensor, model) for name, tensor in batch.items()}


def cut_down(model: nn.Module, batch: Batch) -> Batch:
    """A user's batch, made small: two sequences, seven tokens; images and sounds keep their size.

    Fewer tokens are repeated: one alone cannot show causality, and cross-attention is told apart by its lengths. Of two
    stacks the second gets five tokens; labels, moved by one, are what it reads where nothing else is given.
    Only for models of transformers: what the axes of another model's inputs mean is not known.
    """
    if not isinstance(batch, Mapping) or getattr(model, "config", None) is None:
        return batch
    takes = inspect.signature(model.forward).parameters
    two = "decoder_input_ids" in takes and bool(getattr(model.config, "is_encoder_decoder", False))
    second = {name for name in batch if name.startswith("decoder") or (two and name == "labels")}
    lengths = [_length(batch, "input_ids"), _length(batch, "decoder_input_ids") or _length(batch, "labels")]
    small: dict[str, Any] = {}
    for name, value in batch.items():
        tokens = DECODER_TOKENS if name in second else TOKENS
        small[name] = _cut(name, value, tokens, repeat=_length(batch, name) == lengths[name in second])
    for ids, mask in (("input_ids", "attention_mask"), ("decoder_input_ids", "decoder_attention_mask")):
        if ids in small and mask in takes and small.get(mask) is None:
            small[mask] = torch.ones_like(small[ids])
    return small


def few_rows(model: nn.Module, batch: Batch) -> Batch:
    """A user's batch with two of its sequences, as long as they are."""
    if not isinstance(batch, Mapping) or getattr(model, "config", None) is None:
        return batch
    rows = {len(value) for value in batch.values() if isinstance(value, Tensor) and value.ndim}
    if len(rows) != 1 or rows == {1}:
        return batch
    return {n: v[:BATCH] if isinstance(v, Tensor) and v.ndim else v for n, v in batch.items()}


def _cut(name: str, value: Any, tokens: int, repeat: bool) -> Any:
    if not isinstance(value, Tensor) or not value.ndim:
        return value
    few = value[:BATCH] if value.shape[0] >= BATCH else torch.cat([value] * BATCH)[:BATCH]
    if few.ndim == 2 and not few.is_floating_point():
        if repeat and 0 < few.shape[1] < tokens:
            few = torch.cat([few] * tokens, dim=1)
        few = few[:, :tokens].contiguous()
    return torch.ones_like(few) if name.endswith("attention_mask") else few


def _length(batch: Mapping[str, Any], name: str) -> int:
    """How many tokens an argument has; none where it is no table of integers."""
    value = batch.get(name)
    if not isinstance(value, Tensor) or value.ndim != 2 or value.is_floating_point():
        return 0
    return value.shape[1]


def _ids(config: Any, length: int, generator: torch.Generator) -> Tensor:
    text = config.get_text_config() if callable(getattr(config, "get_text_config", None)) else config
    vocabulary = int(getattr(text, "vocab_size", 0) or getattr(config, "vocab_size", 0) or 100)
    # Never the padding token: some models read positions and masks off it.
    padding = getattr(text, "pad_token_id", None)
    ids = torch.randint(0, vocabulary, (BATCH, length), generator=generator)
    return torch.where(ids == padding, (ids + 1) % vocabulary, ids) if isinstance(padding, int) else ids


def _pixels(config: Any, generator: torch.Generator) -> Tensor:
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", 224)
    height, width = (size, size) if isinstance(size, int) else size
    return torch.randn(BATCH, getattr(vision, "num_channels", 3), height, width, generator=generator)


def _placed(tensor: Tensor, model: nn.Module) -> Tensor:
    """On the model's device, and in its dtype where it is not a tensor of integers."""
    weights = next((p for p in model.parameters() if p.is_floating_point()), None)
    if weights is None:
        return tensor
    return tensor.to(weights.device, weights.dtype if tensor.is_floating_point() else None)


# One forward pass on a probe batch that is watched from everywhere: module calls, torch functions, the registry.
#
# The census, the dissection and the search of parameters each make one such run; they differ in what they note.


@runtime_checkable
class ProbeObserver(Protocol):
    """What a probe run tells: every module call as it begins and ends, and every attention call."""

    @property
    def paths(self) -> Mapping[nn.Module, str]:
        """The modules whose calls are told, all of the model's."""

    @property
    def masks(self) -> MaskReader: ...

    def scope(self) -> tuple[int, ...]:
        """Numbers of the module calls that are under way, outermost first."""

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What it returns, if anything, is what the module is called with instead."""

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None: ...

    def saw(self, call: Seen) -> None:
        """Attention by torch functions."""

    def saw_interface(self, module: nn.Module, observed: ObservedCall) -> None:
        """Attention by a function of transformers' registry."""


def probe_run(
    model: nn.Module,
    batch: Batch,
    watcher: ProbeObserver,
    *,
    fast_path: bool = True,
    also: tuple[AbstractContextManager[Any], ...] = (),
) -> SoftmaxWatch:
    """Run `model` once on `batch`, inside the contexts `also`, and leave nothing behind, after an exception neither.

    Returns the watch of torch functions, which knows in which scopes softmaxes were taken and what became of them.
    `fast_path` says whether the model has torch layers whose fused path must be avoided.
    """
    watch = SoftmaxWatch(watcher.saw, watcher.scope)
    with Restoring() as changes:
        changes.callback(watch.forget)
        for module in watcher.paths:
            changes.before(module, watcher.enter)
            changes.after(module, watcher.leave, kwargs=True)
        changes.enter_context(without_fast_path(fast_path))
        changes.enter_context(pieces_joined(model))
        changes.enter_context(
            watched_registry(watcher.paths.__contains__, watcher.masks, watcher.saw_interface, lambda module: True)
        )
        changes.enter_context(torch.no_grad())
        for context in also:
            changes.enter_context(context)
        changes.enter_context(watch)
        run(model, batch)
    return watch
