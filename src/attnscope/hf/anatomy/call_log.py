"""One probe run that notes which modules run inside which, and where attention happens. No tensor outlives
it.

Two routes watch at once: the registry of transformers, and torch functions. Every attention call is tied
to the module that made it (its owner) and to the chain of module calls around it, from which blocks are
found later.
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
from attnscope.hf.anatomy.example import Batch, probe_run
from attnscope.hf.intercepting.masks import MaskReader
from attnscope.hf.intercepting.observed_call import ObservedCall, observe_fused, observe_written_out
from attnscope.hf.intercepting.owners import Slot, arguments, float_tensors
from attnscope.hf.intercepting.recompute import dense_mixed
from attnscope.hf.intercepting.torch_calls import FusedCall, ReportedCall, Seen


@dataclass(frozen=True)
class ModuleCall:
    """One call of one module. `nth` counts the calls of this module within the run."""

    path: str
    nth: int
    class_name: str
    around: int | None  # number of the module call it happened in
    listed: bool  # an element of a ModuleList, ModuleDict or Sequential
    takes: tuple[tuple[Slot, tuple[int, ...]], ...]  # floating inputs, by slot and shape
    gives: tuple[tuple[Slot, tuple[int, ...]], ...] = ()
    overwrites: bool = False  # changes its first input in place


@dataclass(frozen=True)
class LoggedAttention:
    """One attention call: owner, place in the run, and size of everything."""

    owner: str
    nth: int  # counts the attention calls of this owner within the run
    inside: tuple[int, ...]  # numbers of the module calls around it, outermost first
    route: str
    rebuilt: bool  # the pattern follows from queries and keys; otherwise the model's own map is used
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
        """The same call, once it is known whether it looks at its own stream."""
        own = "self" if self.queries == self.keys else "uneven"
        return replace(self, site=own if at_itself else "cross")


@dataclass(frozen=True)
class CallLog:
    calls: tuple[ModuleCall, ...]
    attention: tuple[LoggedAttention, ...]
    fast_path: bool  # torch's fused encoder layers would hide attention and are switched off while watching
    loose: tuple[tuple[int, ...], ...] = ()  # module calls around softmaxes that multiplied no values in sight

    def around(self, number: int) -> Iterator[int]:
        """A module call and those around it, innermost first."""
        inside: int | None = number
        while inside is not None:
            yield inside
            inside = self.calls[inside].around

    def within(self, number: int) -> Iterator[int]:
        """The module calls inside one, itself among them."""
        inside = (one for one in range(number, len(self.calls)))
        return takewhile(lambda one: number in self.around(one), inside)


class _Enumerator:
    def __init__(self, model: nn.Module) -> None:
        self.model_class = type(model).__name__
        self.paths = {module: path for path, module in model.named_modules()}
        containers = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
        self.listed = {child for module in self.paths if isinstance(module, containers) for child in module.children()}
        self.calls: list[ModuleCall] = []
        self.open: list[tuple[int, Tensor | None, int]] = []
        self.called: Counter[str] = Counter()
        self.attention: list[LoggedAttention] = []
        self.attended: Counter[str] = Counter()
        self.masks = MaskReader()

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        path = self.paths[module]
        tensors = list(float_tensors(arguments(args, kwargs)))
        self.calls.append(
            ModuleCall(
                path=path,
                nth=self.called[path],
                class_name=type(module).__name__,
                around=self.open[-1][0] if self.open else None,
                listed=module in self.listed,
                takes=tuple((slot, tuple(t.shape)) for slot, t in tensors),
            )
        )
        self.called[path] += 1
        first = next((t for _, t in tensors if t.ndim == 3), None)
        self.open.append((len(self.calls) - 1, first, 0 if first is None else _version(first)))

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        number, first, version = self.open.pop()
        self.calls[number] = replace(
            self.calls[number],
            gives=tuple((slot, tuple(t.shape)) for slot, t in float_tensors(output)),
            overwrites=first is not None and _version(first) != version,
        )

    def saw(self, call: Seen) -> None:
        """A torch-level attention call: its owner is the innermost module that ran all of it."""
        if isinstance(call, FusedCall):
            self._note(self.calls[self.open[-1][0]].path, observe_fused(call, self.masks), rebuilt=True)
            return
        if isinstance(call, ReportedCall):
            told = call.observed
            self._note(self.calls[self.open[-1][0]].path, told, rebuilt=told.scores.pattern is None)
            return
        observed = observe_written_out(call, heads=None, batch=self._batch_of(call.pattern.shape[-2]))
        self._note(self.calls[shared(call.begun, self.scope())].path, observed, rebuilt=False)

    def scope(self) -> tuple[int, ...]:
        return tuple(number for number, *_ in self.open)

    def saw_interface(self, module: nn.Module, observed: ObservedCall) -> None:
        rebuilt = follows_from_queries_and_keys(observed)
        if rebuilt is None:
            raise RefusalError(
                f"{self.model_class} computes attention in {self.paths[module]} in a way that follows "
                "neither from its queries and keys nor from the map it returns: it cannot be measured."
            )
        self._note(self.paths[module], observed, rebuilt)

    def _batch_of(self, queries: int) -> int | None:
        """The batch, where heads may be melted into it: the other axis of an input of those tokens."""
        for number, *_ in reversed(self.open):
            for _, shape in self.calls[number].takes:
                if len(shape) == 3 and queries in shape[:2]:
                    return shape[0] if shape[1] == queries else shape[1]
        return None

    def _note(self, owner: str, observed: ObservedCall, rebuilt: bool) -> None:
        scores = observed.scores
        self.attention.append(
            LoggedAttention(
                owner=owner,
                nth=self.attended[owner],
                inside=self.scope(),
                route=observed.route,
                rebuilt=rebuilt,
                batch=scores.query.shape[0],
                heads=scores.query.shape[1],
                kv_heads=observed.value.shape[1],
                queries=scores.query.shape[2],
                keys=scores.key.shape[2],
                dim=scores.query.shape[3],
                value_dim=observed.value.shape[3],
                causal=scores.causal or _looks_back(scores.pattern),
                site="self" if scores.query.shape[2] == scores.key.shape[2] else "cross",  # until more is known
            )
        )
        self.attended[owner] += 1


def log_calls(model: nn.Module, batch: Batch) -> CallLog:
    """Run the model once on a small batch and note every module call and every attention call."""
    noted = _Enumerator(model)
    watch = probe_run(model, batch, noted)
    if watch.lost:
        path = noted.calls[watch.lost[0][-1]].path
        raise RefusalError(
            f"{noted.model_class} mixes values in {path} in a way that is not understood (blocks of keys, or an "
            "axis order of its own): part of its attention would be missing, so it is not measured at all. A model of "
            "the same kind with full softmax attention can be measured."
        )
    fast_path = any(isinstance(module, nn.MultiheadAttention) for module in noted.paths)
    loose = (Counter(watch.begun) - Counter(watch.used)).elements()
    return CallLog(tuple(noted.calls), tuple(noted.attention), fast_path, tuple(loose))


def shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """The innermost of the module calls that two moments have in common."""
    return max(set(one) & set(other))


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _looks_back(pattern: Tensor | None) -> bool:
    """Whether a map that the model made puts nothing at all on later keys."""
    if pattern is None or pattern.shape[2] != pattern.shape[3] or pattern.shape[2] == 1:
        return False
    return not bool(pattern.triu(1).any())


def follows_from_queries_and_keys(observed: ObservedCall) -> bool | None:
    """Whether the pattern can be rebuilt; False where only the map that the model made gives its values.

    A fused kernel does what its arguments say. A written-out function may do anything (and return maps from
    before its last twist): what decides is which of the two gives the mixed values. None: neither does.
    """
    scores, mixed = observed.scores, observed.mixed.double()
    if scores.pattern is None:
        return True
    if observed.holds is not None:
        return False  # the attention was exchanged, and its own word is all there is
    made = {
        pattern is None: dense_mixed(replace(scores, pattern=pattern), observed.value)
        for pattern in (None, scores.pattern)
    }
    apart = {rebuilt: (one - mixed).abs().max() for rebuilt, one in made.items() if one.shape == mixed.shape}
    # Models may take their softmax in float32 whatever they compute in: allowed where nothing comes nearer.
    for dtype in (observed.mixed.dtype, torch.float32):
        allowed = 64 * torch.finfo(dtype).eps * observed.value.double().abs().max()
        for rebuilt, difference in apart.items():
            if bool(difference <= allowed):
                return rebuilt
    return None


# What a block does in place of softmax attention, in a word a reader knows: told by the classes of what ran inside it.
#
# No statistic hangs on it: it is how pages and sentences name such a block (`block 2 (Mamba)`).

ATTENTION = "attention"
UNSEEN = "attention that is not seen"
_KINDS: tuple[tuple[str, str], ...] = (  # the first that fits a class inside the block
    ("mamba|ssm|statespace", "Mamba"),
    ("deltanet|deltaattention|lightningattention|linearatt|retention|rwkv|gatedlinear", "linear attention"),
    ("recurrent|rglru|lstm|gru", "recurrent"),
    ("conv", "convolution"),
)
_FEEDS = "mlp|moe|feedforward|ffn|expert"
_ATTENDS = re.compile(r"attention|attn", re.IGNORECASE)


def kind_of(census: CallLog, number: int, told: str | None = None) -> str:
    """The kind of a block in which no softmax attention was seen. `told` is what the configuration calls it."""
    inside = [census.calls[one] for one in census.within(number)]
    classes = [call.class_name.lower() for call in inside]
    names = [call.path.removeprefix(inside[0].path).lower().replace("_", "") for call in inside]
    words = (*classes, *names, (told or "").lower().replace("_", ""))
    for pattern, kind in _KINDS:
        if any(re.search(pattern, word) for word in words):
            return kind
    if unseen_attention(census, number):
        return UNSEEN
    feeds = any(re.search(_FEEDS, name) for name in classes) and not any("mixer" in name for name in classes)
    return "MLP" if feeds else "no attention"


def told_kinds(config: object) -> tuple[str, ...]:
    """What a configuration calls each of its layers, where it says so."""
    for name in ("layers_block_type", "layer_types", "block_types"):
        kinds = getattr(config, name, None)
        if isinstance(kinds, (list, tuple)) and all(isinstance(kind, str) for kind in kinds):
            return tuple(kinds)
    return ()


def unseen_attention(census: CallLog, number: int | None = None) -> tuple[str, ...]:
    """Classes that are called attention and ran without any attention in sight, in one block or in the whole run."""
    calls = range(len(census.calls)) if number is None else census.within(number)
    seen = {inside for attention in census.attention for inside in attention.inside}
    holding = {call.around for call in census.calls}
    named = (n for n in calls if n not in seen and n in holding and _ATTENDS.search(census.calls[n].class_name))
    return tuple(dict.fromkeys(census.calls[n].class_name for n in named))
