"""A probe run that logs the nesting of module calls and every attention call. It keeps no tensors.

Attention is observed in two ways at once: in the registry of transformers, and in torch functions. Every attention call
is logged with the module that made it (its owner) and the module calls around it, from which blocks are found later.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.example import Batch
from attnscope.hf.anatomy.probe import OpenCall, ProbeObserver, probe_run
from attnscope.hf.intercepting.masks import dense_mixed
from attnscope.hf.intercepting.observed_call import ObservedCall, observe
from attnscope.hf.intercepting.owners import Slot, arguments, float_tensors
from attnscope.hf.intercepting.torch_calls import Seen, WrittenOutCall

Shapes = tuple[tuple[Slot, tuple[int, ...]], ...]


@dataclass(frozen=True)
class ModuleCall:
    """One call of one module. `nth` counts the calls of this module within the run."""

    path: str
    nth: int
    class_name: str
    around: int | None  # number of the enclosing module call
    listed: bool  # an element of a ModuleList, ModuleDict or Sequential
    takes: Shapes  # shapes of the floating-point inputs, by slot
    gives: Shapes = ()
    overwrites: bool = False  # changes its first input in place


@dataclass(frozen=True)
class LoggedAttention:
    """One attention call: its owner, the module calls around it, and all sizes."""

    owner: str
    nth: int  # counts the attention calls of this owner within the run
    inside: tuple[int, ...]  # numbers of the module calls around it, outermost first
    route: str
    rebuilt: bool  # whether the pattern is computed from queries and keys, or the model's own pattern is used
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    value_dim: int
    causal: bool
    site: str  # "self", "cross", or "uneven": self-attention with pooled tokens on one side

    @property
    def crossing(self) -> bool:
        return self.site == "cross"

    def looking(self, at_itself: bool) -> LoggedAttention:
        """Return the same call with its site: `at_itself` says whether its values come from its own stream."""
        own = "self" if self.queries == self.keys else "uneven"
        return replace(self, site=own if at_itself else "cross")


@dataclass(frozen=True)
class CallLog:
    calls: tuple[ModuleCall, ...]
    attention: tuple[LoggedAttention, ...]
    fast_path: bool  # whether the model has torch's fused encoder path, which is switched off while observing
    loose: tuple[tuple[int, ...], ...] = ()  # module calls around softmaxes that were not seen to multiply values

    def around(self, number: int) -> Iterator[int]:
        """Yield a module call and the calls that contain it, innermost first."""
        inside: int | None = number
        while inside is not None:
            yield inside
            inside = self.calls[inside].around

    def within(self, number: int) -> Iterator[int]:
        """Yield a module call and the calls inside it."""
        return takewhile(lambda other: number in self.around(other), range(number, len(self.calls)))


@dataclass
class _Call(OpenCall):
    first: Tensor | None = None  # its first input with three axes
    version: int = 0


class _Logger(ProbeObserver[_Call]):
    call_class = _Call

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.model_class = type(model).__name__
        containers = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
        self.listed = {child for module in self.paths if isinstance(module, containers) for child in module.children()}
        self.calls: list[ModuleCall] = []
        self.attention: list[LoggedAttention] = []
        self.attended: Counter[str] = Counter()

    def began(self, call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = list(float_tensors(arguments(args, kwargs)))
        around = self.open[-2].number if len(self.open) > 1 else None
        listed, kind = call.module in self.listed, type(call.module).__name__
        self.calls.append(ModuleCall(call.path, call.nth, kind, around, listed, _shapes(tensors)))
        call.first = next((t for _, t in tensors if t.ndim == 3), None)
        call.version = _version(call.first)

    def ended(self, call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        gives, overwrites = _shapes(float_tensors(output)), _version(call.first) != call.version
        self.calls[call.number] = replace(self.calls[call.number], gives=gives, overwrites=overwrites)

    def saw(self, call: Seen) -> None:
        batch = self._batch_of(call.pattern.shape[-2]) if isinstance(call, WrittenOutCall) else None
        observed = observe(call, self.masks, batch=batch)
        self._note(self.owner(call), observed, rebuilt=observed.scores.pattern is None)

    def saw_interface(self, module: nn.Module, observed: ObservedCall) -> None:
        rebuilt = follows_from_queries_and_keys(observed)
        if rebuilt is None:
            raise RefusalError(
                f"The attention of {self.model_class} in {self.paths[module]} follows neither from its queries and "
                "keys nor from the pattern it returns, so it cannot be measured: choose another model."
            )
        self._note(self.paths[module], observed, rebuilt)

    def _batch_of(self, queries: int) -> int | None:
        """Return the batch size, from an input of an enclosing module that has `queries` tokens.

        In the attention call itself, heads may be merged into the batch axis.
        """
        for opened in reversed(self.open):
            for _, shape in self.calls[opened.number].takes:
                if len(shape) == 3 and queries in shape[:2]:
                    return shape[0] if shape[1] == queries else shape[1]
        return None

    def _note(self, owner: str, observed: ObservedCall, rebuilt: bool) -> None:
        scores = observed.scores
        batch, heads, queries, dim = scores.query.shape
        keys = scores.key.shape[2]
        self.attention.append(
            LoggedAttention(
                owner=owner,
                nth=self.attended[owner],
                inside=self.scope(),
                route=observed.route,
                rebuilt=rebuilt,
                batch=batch,
                heads=heads,
                kv_heads=observed.value.shape[1],
                queries=queries,
                keys=keys,
                dim=dim,
                value_dim=observed.value.shape[3],
                causal=scores.causal or _looks_back(scores.pattern),
                site="self" if queries == keys else "cross",  # a first guess
            )
        )
        self.attended[owner] += 1


def log_calls(model: nn.Module, batch: Batch) -> CallLog:
    """Run the model once on a small batch and log every module call and every attention call."""
    logger = _Logger(model)
    watch = probe_run(model, batch, logger)
    if watch.lost:
        path = logger.calls[watch.lost[0][-1]].path
        raise RefusalError(
            f"{logger.model_class} mixes values in {path} in a way that is not supported (blocks of keys, or an "
            "unusual order of axes), so part of its attention would be missing: choose a model of the same kind with "
            "full softmax attention."
        )
    fast_path = any(isinstance(module, nn.MultiheadAttention) for module in logger.paths)
    loose = (Counter(watch.begun) - Counter(watch.used)).elements()
    return CallLog(tuple(logger.calls), tuple(logger.attention), fast_path, tuple(loose))


def _shapes(tensors: Any) -> Shapes:
    return tuple((slot, tuple(tensor.shape)) for slot, tensor in tensors)


def _version(tensor: Tensor | None) -> int:
    return 0 if tensor is None or tensor.is_inference() else tensor._version


def _looks_back(pattern: Tensor | None) -> bool:
    """Return whether a pattern that the model made has no weight on later keys."""
    if pattern is None or pattern.shape[2] != pattern.shape[3] or pattern.shape[2] == 1:
        return False
    return not bool(pattern.triu(1).any())


def follows_from_queries_and_keys(observed: ObservedCall) -> bool | None:
    """Return whether the pattern can be computed from queries and keys.

    Return False if only the model's own pattern gives the mixed values, and None if neither does. A fused kernel does
    what its arguments say. A written-out function may do anything, and may return a pattern from before its last step.
    """
    scores, mixed = observed.scores, observed.mixed.double()
    if scores.pattern is None:
        return True
    if observed.holds is not None:
        return False  # an installed variant, which reports its own pattern
    made = {
        pattern is None: dense_mixed(replace(scores, pattern=pattern), observed.value)
        for pattern in (None, scores.pattern)
    }
    apart = {rebuilt: (own - mixed).abs().max() for rebuilt, own in made.items() if own.shape == mixed.shape}
    # A model may compute its softmax in float32 whatever its dtype, so try that tolerance second.
    for dtype in (observed.mixed.dtype, torch.float32):
        allowed = 64 * torch.finfo(dtype).eps * observed.value.double().abs().max()
        for rebuilt, difference in apart.items():
            if bool(difference <= allowed):
                return rebuilt
    return None


ATTENTION = "attention"
UNSEEN = "attention that is not seen"
_KINDS: tuple[tuple[str, str], ...] = (  # the first pattern that matches a class inside the block decides
    ("mamba|ssm|statespace", "Mamba"),
    ("deltanet|deltaattention|lightningattention|linearatt|retention|rwkv|gatedlinear", "linear attention"),
    ("recurrent|rglru|lstm|gru", "recurrent"),
    ("conv", "convolution"),
)
_FEEDS = "mlp|moe|feedforward|ffn|expert"
_ATTENDS = re.compile(r"attention|attn", re.IGNORECASE)


def kind_of(log: CallLog, number: int, configured: str | None = None) -> str:
    """Return the kind of a block without softmax attention in words, from the classes that ran inside it.

    `configured` is the word in the configuration for this block. The result is only shown; no statistic depends on it.
    """
    inside = [log.calls[other] for other in log.within(number)]
    classes = [call.class_name.lower() for call in inside]
    names = [call.path.removeprefix(inside[0].path).lower().replace("_", "") for call in inside]
    words = (*classes, *names, (configured or "").lower().replace("_", ""))
    for pattern, kind in _KINDS:
        if any(re.search(pattern, word) for word in words):
            return kind
    if unseen_attention(log, number):
        return UNSEEN
    feeds = any(re.search(_FEEDS, name) for name in classes) and not any("mixer" in name for name in classes)
    return "MLP" if feeds else "no attention"


def configured_kinds(config: object) -> tuple[str, ...]:
    """Return the configuration's list of kinds of blocks, or ()."""
    for name in ("layers_block_type", "layer_types", "block_types"):
        kinds = getattr(config, name, None)
        if isinstance(kinds, (list, tuple)) and all(isinstance(kind, str) for kind in kinds):
            return tuple(kinds)
    return ()


def unseen_attention(log: CallLog, number: int | None = None) -> tuple[str, ...]:
    """Return the names of classes called attention that ran without an observed attention call, in one block or in the
    whole run."""
    calls = range(len(log.calls)) if number is None else log.within(number)
    seen = {inside for attention in log.attention for inside in attention.inside}
    holding = {call.around for call in log.calls}
    named = (n for n in calls if n not in seen and n in holding and _ATTENDS.search(log.calls[n].class_name))
    return tuple(dict.fromkeys(log.calls[n].class_name for n in named))
