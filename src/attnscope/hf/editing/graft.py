"""Plant a compiled head into one attention head of a running model, and take it out again.

    with planted(model, head, layer=3, head_index=5) as plant:
        model(**batch)                       # layer 3, head 5 attends as `head` says
    print(plant.deviation)                   # largest difference of one attention weight, measured when planting

What is possible. The outputs of the query and key projections of one head are replaced: token i gets the query and the
key of row i of the compiled head. Values, output projection and other heads stay as they are. Whatever the model does
between the projections and the products is undone. Say the model turns a projected query u at position p into T_p u
(T_p is the identity in GPT-2, a rotation in Llama and Qwen2, a fixed factor if queries are scaled early) and multiplies
products by its own scale c. Then

    u_p = T_p^-1 [q_p  0] (s / c),        s the scale of the compiled head, zeros up to the model's head dimension

gives exactly the logits s q_p . k_j. Keys are treated alike, without s/c. T_p is measured, not looked up: see
`position_maps`. Precision: u_p is rounded to the model's dtype, and the model maps it in that dtype. So logits carry
a relative error of a few roundings on top of the head's own (1e-7 of the largest logit in float32, 1e-2 in bfloat16:
plant heads with small logits into low precision).

What is refused: heads wider than the model's; models that norm queries or keys after projecting them, cap logits, add
position biases or a learned sink, use a window, or return attention weights of their own; cross-attention; a
bidirectional head under a causal mask or the other way round. A test run follows the planting; if it does not show the
pattern, the plant is refused too. Grouped heads share their keys: planting one gives its keys to the whole group, which
must be allowed with `share_keys`.

Row i belongs to token i of the sequence: no cache, no padding on the left, positions 0, 1, 2, ... Plant first and tap
inside, with the anatomy in `plant.found`, because planting and probing run the model. A bidirectional head only takes
texts of its own length.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.heads.head import Head
from attnscope.hf.anatomy.anatomy import Anatomy, Site, anatomy
from attnscope.hf.anatomy.example import Batch
from attnscope.hf.anatomy.projections import Columns
from attnscope.hf.editing.position_maps import Output, measured_position_maps, probe_of
from attnscope.hf.intercepting.restoring import Restoring, evaluating
from attnscope.matrix.scores import Scores

_ROWS = 512  # rows of attention compared at a time


@dataclass(frozen=True, eq=False)
class Planted:
    """Where a head was planted, and how far the attention measured there was from the head's own."""

    found: Anatomy
    site: Site
    head_index: int
    key_head: int
    shares_keys_with: tuple[int, ...]  # query heads that read the planted keys too
    deviation: float


@contextmanager
def planted(
    model: nn.Module,
    head: Head,
    layer: int,
    head_index: int,
    *,
    stack: str | None = None,
    share_keys: bool = False,
    tolerance: float = 0.01,
    example_inputs: Batch | None = None,
    found: Anatomy | None = None,
) -> Iterator[Planted]:
    """Make head `head_index` of block `layer` attend as `head` inside a `with` block, and restore the model at its end.

    `example_inputs` is a batch that the model runs on; transformers and nano models need none. It must have as many
    tokens as the head has rows, unless it holds token ids, which are repeated. `tolerance` is the largest allowed
    difference between an attention weight in the test run and the head's own.
    """
    found = anatomy(model, example_inputs) if found is None else found
    site = found.self_attention_at(layer, head_index, stack)
    _refuse_what_cannot_fit(model, head, site)
    key_head = head_index // (site.heads // site.kv_heads)
    places = (_place(model, site.projections.query, head_index), _place(model, site.projections.key, key_head))
    group = _heads_that_share(site, places[1]) - {head_index}
    if group and not share_keys:
        raise RefusalError(
            f"{1 + len(group)} query heads of {type(model).__name__} share one key head, so heads "
            f"{', '.join(map(str, sorted(group)))} would read the planted keys too: pass share_keys=True if they may."
        )
    probe = probe_of(model, found, site, head.n, example_inputs)
    with evaluating(model):
        turning = measured_position_maps(probe, places, (head_index, key_head))
    _refuse_other_attention(model, turning.scores, head, turning.tokens)
    ratio = head.scale / turning.scores.scale
    vectors = (
        turning.undone(0, head.queries[: turning.tokens].double() * ratio),
        turning.undone(1, head.keys[: turning.tokens].double()),
    )
    hooks = _Hooks(
        model_class=type(model).__name__,
        head=head,
        vectors=vectors,
        site=site,
        signature=inspect.signature(model.forward),
        counting=sum(s.path == site.path for s in found.sites) > 1,
    )
    with Restoring() as changes:
        changes.before(model, hooks.begin, prepend=True)
        for which, place in enumerate(places):
            changes.after(model.get_submodule(place.module), hooks.replacing(which, place))
        with evaluating(model):
            seen = probe.scores(1, turning.tokens)
        deviation = _deviation(seen, head, head_index, key_head)
        if not deviation <= tolerance:
            raise RefusalError(
                f"Head {head_index} of layer {layer} of {type(model).__name__} does not show the planted pattern (an "
                f"attention weight is {deviation:.2g} off in {str(seen.query.dtype).removeprefix('torch.')}): plant a "
                "head with smaller logits, or run the model in float32."
            )
        yield Planted(found, site, head_index, key_head, tuple(sorted(group)), deviation)


def _place(model: nn.Module, columns: Columns | None, index: int) -> Output:
    """Return which module outputs hold a head's projection; refuse projections without a module of their own."""
    name = type(model).__name__
    if columns is None:
        raise RefusalError(
            f"The query and key projections of {name} were not recognised, so nothing can be planted there: "
            "choose a model with plain linear projections."
        )
    if columns.norm is not None:
        raise RefusalError(
            f"{name} norms queries and keys after projecting them ({columns.norm}), so no projection gives it the "
            "planted ones: choose a model without query and key norms."
        )
    matrix = columns.matrix
    path, _, _ = matrix.parameter.rpartition(".")
    parameter = model.get_parameter(matrix.parameter)
    if matrix.first_row or matrix.rows != parameter.shape[0] or parameter.ndim != 2:
        raise RefusalError(
            f"{name} cuts queries and keys out of one parameter ({matrix.parameter}) inside its own code, where "
            "nothing can be planted: choose a model whose projections are modules."
        )
    return Output(path, columns.starts[index], columns.dim, parameter.shape[0 if matrix.out_in else 1])


def _refuse_what_cannot_fit(model: nn.Module, head: Head, site: Site) -> None:
    name = type(model).__name__
    if len(head.keys) != head.n:
        raise RefusalError(
            f"The head has {head.n} queries and {len(head.keys)} keys, and self-attention has as many of both: compile "
            "a square pattern."
        )
    if head.width > site.dim:
        raise RefusalError(
            f"The head is {head.width} wide and the heads of {name} are {site.dim}: compile the pattern with "
            f"`width={site.dim}` or less."
        )
    if site.causal and not head.causal:
        raise RefusalError(
            f"{name} is causal in this layer and would hide half of a two-way pattern: compile it with `causal=True`."
        )
    if head.causal and not site.causal:
        raise RefusalError(
            f"{name} looks both ways in this layer, and a causal head says nothing about later keys: compile the "
            "pattern without `causal=`."
        )
    if not site.rebuilt:
        raise RefusalError(
            f"{name} writes its attention out itself, where position biases may hide: choose a model that calls an "
            "attention function."
        )


def _heads_that_share(site: Site, place: Output) -> set[int]:
    """Return the query heads that read the same outputs of the key projection."""
    keys = site.projections.key
    assert keys is not None
    each = site.heads // site.kv_heads
    return {h for h in range(site.heads) if keys.starts[h // each] == place.start}


def _refuse_other_attention(model: nn.Module, scores: Scores, head: Head, tokens: int) -> None:
    """Refuse a model that does more to its logits than scale them, or that cannot run on all rows of the head."""
    name = type(model).__name__
    twists = {
        "caps its logits": scores.softcap is not None,
        "adds a learned sink to every row": scores.sinks is not None,
        "adds a position bias to its logits": scores.bias is not None,
        f"sees a window of {scores.window} tokens only": scores.window is not None,
        "hides tokens by a mask of its own": scores.allowed is not None,
        "writes its attention out itself": scores.pattern is not None,
    }
    for twist, there in twists.items():
        if there:
            raise RefusalError(f"{name} {twist} in this layer, so a planted head would not be itself: choose another.")
    if not head.causal and tokens != head.n:
        raise RefusalError(
            f"The head has {head.n} rows and {name} runs on {tokens} tokens at most here: compile a pattern of "
            "that size."
        )


@dataclass
class _Hooks:
    """Hooks that replace projected queries and keys while the model runs."""

    model_class: str
    head: Head
    vectors: tuple[Float[Tensor, "row dim"], Float[Tensor, "row dim"]]
    site: Site
    signature: inspect.Signature
    counting: bool  # one module may serve several blocks: replace the outputs of one call only
    called: Counter[int] = field(default_factory=Counter)

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.called.clear()
        _refuse_other_places(self.model_class, {**self.signature.bind_partial(*args).arguments, **kwargs})

    def replacing(self, which: int, place: Output) -> Callable[..., Tensor | None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
            nth = self.called[which]
            self.called[which] += 1
            if self.counting and nth != self.site.nth:
                return None
            tokens = output.shape[1]
            self._refuse_length(tokens)
            changed = output.clone()
            changed[..., place.start : place.start + place.dim] = self.vectors[which][:tokens].to(output)
            return changed

        return hook

    def _refuse_length(self, tokens: int) -> None:
        rows = len(self.vectors[0])
        if tokens > rows or (tokens != rows and not self.head.causal):
            fitting = f"up to {rows}" if self.head.causal else f"exactly {rows}"
            raise RefusalError(
                f"The planted head is for {fitting} tokens, and {self.model_class} is given {tokens}: cut the text, or "
                "compile a pattern of its length."
            )


def _refuse_other_places(model_class: str, kwargs: Mapping[str, Any]) -> None:
    """Refuse inputs that shift tokens: row i of the head belongs to token i of the sequence."""
    cache = kwargs.get("past_key_values")
    if cache is not None and cache.get_seq_length():
        raise RefusalError(f"{model_class} is given a cache of earlier tokens: run whole sequences (use_cache=False).")
    places = kwargs.get("position_ids")
    if isinstance(places, Tensor) and not bool((places == torch.arange(places.shape[-1], device=places.device)).all()):
        raise RefusalError(
            f"{model_class} is given position_ids of its own: leave them out, so that they count from 0."
        )
    mask = kwargs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.ndim == 2 and not bool(mask[:, 0].all()):
        raise RefusalError(f"The batch for {model_class} is padded on the left: pad it on the right.")


@torch.no_grad()
def _deviation(scores: Scores, head: Head, head_index: int, key_head: int) -> float:
    """Return the largest difference between an attention weight of the model's head and of the planted head."""
    query, key = scores.query[0, head_index].double(), scores.key[0, key_head].double()
    worst = 0.0
    for first in range(0, len(query), _ROWS):
        rows = query[first : first + _ROWS]
        logits = scores.scale * rows @ key.T
        if scores.causal:
            at = torch.arange(first, first + len(rows), device=key.device)[:, None]
            logits = logits.masked_fill(torch.arange(len(key), device=key.device) > at, -torch.inf)
        wanted = head.attention(first, first + len(rows))[:, : len(key)]
        off = (logits.softmax(-1).cpu() - wanted.double().cpu()).abs().max()
        worst = max(worst, float(off.nan_to_num(nan=torch.inf)))
    return worst
