"""Plant a compiled head into one attention head of a model, for as long as a context lasts.

The outputs of the query and key projections of the chosen head at token i are replaced by vectors made from row i of
the compiled head. Everything else stays: values, output projection, other heads. The map that the model applies between
projections and products is undone. Say it maps a projected query u at position p to T_p u before the products (T_p is
the identity in GPT-2, a rotation in Llama and Qwen2, a fixed factor if queries are scaled early) and multiplies the
products by its own scale c. Then

    u_p = T_p^-1 [q_p  0] (s / c),  with zeros up to the model's head dimension

gives exactly the logits s q_p . k_j, where q_p, k_j and s are the queries, keys and scale of the compiled head; the
formula for keys has no factor s / c. T_p is measured: see `position_maps`.
u_p is rounded to the model's dtype, and the model maps it in that dtype, so logits have an additional relative error of
a few roundings (1e-7 of the largest logit in float32, 1e-2 in bfloat16): in low precision, plant heads with small
logits.

Rows are assigned to tokens by position in the sequence: no cache, no padding on the left, positions 0, 1, 2, ... Plant
first and tap inside, with the anatomy in `plant.found`. A bidirectional head only fits texts of its own length.
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
    """Where a head was planted, and how much the observed attention differs from the pattern of the compiled head."""

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
    block: int,
    head_index: int,
    *,
    stack: str | None = None,
    share_keys: bool = False,
    tolerance: float = 0.01,
    example_inputs: Batch | None = None,
    found: Anatomy | None = None,
) -> Iterator[Planted]:
    """Let one head of a model attend like a compiled head inside a `with` statement.

    Parameters
    ----------
    model, head : torch.nn.Module, Head
        The model, which is restored on leaving, also after an exception; and the compiled head.
    block, head_index, stack : int, int, str, optional
        The block, the head in it that is replaced, and the stack, if the model has several.
    share_keys : bool
        Allow the whole group of query heads that share a key head to read the planted keys.
    tolerance : float
        The largest difference that any attention weight may have from that of `head`.
    example_inputs, found : mapping, Anatomy, optional
        A batch with as many tokens as the head has rows (token ids are repeated); and an anatomy. Rarely needed.

    Yields
    ------
    Planted
        Where the head was planted, and the measured deviation.

    Raises
    ------
    RefusalError
        If the head is wider than the model's; if the model norms projected queries or keys, caps logits, adds position
        biases or a learned sink, has a sliding window, or computes its attention without an attention function; for
        cross-attention; if only the head or only the model is causal; if keys are shared without `share_keys`; if the
        deviation exceeds `tolerance`.

    Examples
    --------
    >>> from attnscope.hf.loading.load import load
    >>> head = attnscope.compile(attnscope.generate("window", 16, 2, causal=True)).head
    >>> with attnscope.planted(load("pocket").model, head, block=0, head_index=0, share_keys=True) as plant:
    ...     deviation = plant.deviation
    """
    found = anatomy(model, example_inputs) if found is None else found
    site = found.self_attention_at(block, head_index, stack)
    _refuse_what_cannot_fit(model, head, site)
    key_head = head_index // (site.heads // site.kv_heads)
    outputs = (_place(model, site.projections.query, head_index), _place(model, site.projections.key, key_head))
    group = _heads_that_share(site, outputs[1]) - {head_index}
    if group and not share_keys:
        raise RefusalError(
            f"{1 + len(group)} query heads of {type(model).__name__} share one key head, so heads "
            f"{', '.join(map(str, sorted(group)))} would read the planted keys too: pass share_keys=True if they may."
        )
    probe = probe_of(model, found, site, head.n, example_inputs)
    with evaluating(model):
        turning = measured_position_maps(probe, outputs, (head_index, key_head))
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
        for which, output in enumerate(outputs):
            changes.after(model.get_submodule(output.module), hooks.replacing(which, output))
        with evaluating(model):
            seen = probe.scores(1, turning.tokens)
        deviation = _deviation(seen, head, head_index, key_head)
        if not deviation <= tolerance:
            raise RefusalError(
                f"Head {head_index} of block {block} of {type(model).__name__} does not show the planted pattern (an "
                f"attention weight is off by {deviation:.2g} in {str(seen.query.dtype).removeprefix('torch.')}): plant "
                "a head with smaller logits, or run the model in float32."
            )
        yield Planted(found, site, head_index, key_head, tuple(sorted(group)), deviation)


def _place(model: nn.Module, columns: Columns | None, index: int) -> Output:
    """Return the module and the outputs that hold the projection of one head; refuse other projections."""
    name = type(model).__name__
    if columns is None:
        raise RefusalError(
            f"The query and key projections of {name} were not recognised, so no head can be planted: "
            "choose a model with plain linear projections."
        )
    if columns.norm is not None:
        raise RefusalError(
            f"{name} norms queries and keys after projecting them ({columns.norm}), so no head can be planted: choose "
            "a model without query and key norms."
        )
    matrix = columns.matrix
    path, _, _ = matrix.parameter.rpartition(".")
    parameter = model.get_parameter(matrix.parameter)
    if matrix.first_row or matrix.rows != parameter.shape[0] or parameter.ndim != 2:
        raise RefusalError(
            f"{name} takes queries and keys from rows of one parameter ({matrix.parameter}) in its own code, where no "
            "head can be planted: choose a model whose projections are modules."
        )
    return Output(path, columns.starts[index], columns.dim, parameter.shape[0 if matrix.out_in else 1])


def _refuse_what_cannot_fit(model: nn.Module, head: Head, site: Site) -> None:
    name = type(model).__name__
    if len(head.keys) != head.n:
        raise RefusalError(
            f"The head has {head.n} queries and {len(head.keys)} keys, and self-attention needs equal numbers: compile "
            "a square pattern."
        )
    if head.width > site.dim:
        raise RefusalError(
            f"The head is {head.width} wide and the heads of {name} are {site.dim}: compile the pattern with "
            f"`width={site.dim}` or less."
        )
    if site.causal and not head.causal:
        raise RefusalError(
            f"{name} is causal in this block and would hide half of a two-way pattern: compile it with `causal=True`."
        )
    if head.causal and not site.causal:
        raise RefusalError(
            f"{name} is not causal in this block, and a causal head does not define the weights of later keys: compile "
            "the pattern without `causal=`."
        )
    if not site.rebuilt:
        raise RefusalError(
            f"{name} computes its attention without an attention function, so position biases cannot be excluded: "
            "choose a model that calls one."
        )


def _heads_that_share(site: Site, place: Output) -> set[int]:
    """Return the query heads that read the same outputs of the key projection."""
    keys = site.projections.key
    assert keys is not None
    each = site.heads // site.kv_heads
    return {h for h in range(site.heads) if keys.starts[h // each] == place.start}


def _refuse_other_attention(model: nn.Module, scores: Scores, head: Head, tokens: int) -> None:
    """Refuse a model that does more to its logits than scaling them, and a length that does not fit."""
    name = type(model).__name__
    twists = {
        "caps its logits": scores.softcap is not None,
        "adds a learned sink to every row": scores.sinks is not None,
        "adds a position bias to its logits": scores.bias is not None,
        f"has a sliding window of {scores.window} tokens": scores.window is not None,
        "hides tokens with its own mask": scores.allowed is not None,
        "computes its attention without an attention function": scores.pattern is not None,
    }
    for twist, there in twists.items():
        if there:
            raise RefusalError(
                f"{name} {twist} in this block, so a planted head would attend differently: choose another block."
            )
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
    counting: bool  # whether several blocks share the module, so that only one of its calls is replaced
    called: Counter[int] = field(default_factory=Counter)

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.called.clear()
        _refuse_other_places(self.model_class, {**self.signature.bind_partial(*args).arguments, **kwargs})

    def replacing(self, which: int, target: Output) -> Callable[..., Tensor | None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
            nth = self.called[which]
            self.called[which] += 1
            if self.counting and nth != self.site.nth:
                return None
            tokens = output.shape[1]
            self._refuse_length(tokens)
            changed = output.clone()
            changed[..., target.start : target.start + target.dim] = self.vectors[which][:tokens].to(output)
            return changed

        return hook

    def _refuse_length(self, tokens: int) -> None:
        rows = len(self.vectors[0])
        if tokens > rows or (tokens != rows and not self.head.causal):
            fitting = f"up to {rows}" if self.head.causal else f"exactly {rows}"
            raise RefusalError(
                f"The planted head fits {fitting} tokens, but {self.model_class} reads {tokens}: shorten the text, or "
                "compile a pattern of its length."
            )


def _refuse_other_places(model_class: str, kwargs: Mapping[str, Any]) -> None:
    """Refuse a cache, position_ids that do not count from 0, and padding on the left: rows are assigned to tokens by
    position."""
    cache = kwargs.get("past_key_values")
    if cache is not None and cache.get_seq_length():
        raise RefusalError(f"{model_class} got a cache of earlier tokens: run whole sequences (use_cache=False).")
    places = kwargs.get("position_ids")
    if isinstance(places, Tensor) and not bool((places == torch.arange(places.shape[-1], device=places.device)).all()):
        raise RefusalError(f"{model_class} got position_ids that do not count from 0: leave them out.")
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
