"""Which attention call a person means by a layer and a head of a model, and what attention writes in a block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnscope.core.errors import RefusalError, nearest
from attnscope.core.words import blocks
from attnscope.data.frame import TrainingFrame
from attnscope.hf.anatomy.anatomy import Anatomy, Block, Site
from attnscope.hf.anatomy.projections import Columns
from attnscope.hf.anatomy.recording import Location, Matrix
from attnscope.hf.intercepting.restoring import Restoring


def self_attention_site(found: Anatomy, layer: int, head: int, stack: str | None = None) -> Site:
    """The self-attention of one layer, or a sentence that says which layers and heads there are."""
    sites = [site for site in found.sites if site.site == "self"]
    if not sites:
        raise RefusalError(f"{found.model_class} has cross-attention only: choose a model with self-attention.")
    stacks = list(dict.fromkeys(site.stack for site in sites))
    if stack is None and len(stacks) > 1:
        raise RefusalError(f"{found.model_class} has the stacks {', '.join(stacks)}: say which one with stack=.")
    if stack is not None and stack not in stacks:
        raise RefusalError(f"{found.model_class} has no stack '{stack}' with self-attention.{nearest(stack, stacks)}")
    chosen = [site for site in sites if site.stack == (stack or stacks[0])]
    here = [site for site in chosen if site.layer == layer]
    if not here:
        raise RefusalError(
            f"{found.model_class} attends in {blocks(site.layer for site in chosen)}, not in block {layer}: choose one "
            "of those."
        )
    if not 0 <= head < here[0].heads:
        raise RefusalError(
            f"Block {layer} of {found.model_class} has heads 0 to {here[0].heads - 1}, not {head}: choose one of those."
        )
    return here[0]


def attention_writes(block: Block) -> set[Location]:
    """The writes of attention, or of what stands in its place: those before `middle`; in parallel blocks, `middle`."""
    writes = block.writes
    if block.kind == "MLP":
        return set()
    if writes.norm == "parallel":
        return {writes.middle} if writes.middle else set()
    upto = next((i for i, one in enumerate(writes.identities) if i and one.before == writes.middle), None)
    if writes.middle is None or upto is None:
        upto = len(writes.identities)  # attention writes last, or alone
    return {place for identity in writes.identities[:upto] for place in identity.writes}


# What a step of training did to attention: its projections now, before the step, and the gradients between.

PROJECTIONS = ("query", "key", "value", "output")


def projection_parameters(found: Anatomy) -> tuple[str, ...]:
    """The names of all parameters that project queries, keys, values and outputs."""
    matrices = (matrix for site in found.sites for matrix in _matrices(site).values())
    return tuple(dict.fromkeys(matrix.parameter for matrix in matrices))


def training_frames(model: nn.Module, found: Anatomy, before: Mapping[str, Tensor] | None) -> Iterator[TrainingFrame]:
    """One frame for every attention call. `before` are parameters as they were before the step, by name; gradients are
    those that the parameters hold now, and are not there unless all of them are."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    gradients = {name: p.grad.detach() for name, p in model.named_parameters() if p.grad is not None}
    for site in found.sites:
        names = {matrix.parameter for matrix in _matrices(site).values()}
        yield TrainingFrame(
            stack=site.stack,
            site=site.site,
            layer=site.layer,
            weight=_projections(site, weights),
            gradient=_projections(site, gradients) if names and names <= gradients.keys() else None,
            weight_before=None if before is None or not names <= before.keys() else _projections(site, before),
        )


def _matrices(site: Site) -> dict[str, Matrix]:
    found = {name: getattr(site.projections, name) for name in PROJECTIONS}
    return {name: one.matrix if isinstance(one, Columns) else one for name, one in found.items() if one is not None}


def _projections(site: Site, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    made: dict[str, Tensor] = {}
    for name, matrix in _matrices(site).items():
        whole = matrix.of(tensors)
        columns = getattr(site.projections, name)
        made[name] = _own_columns(whole, columns) if isinstance(columns, Columns) else whole
    return made


def _own_columns(whole: Tensor, columns: Columns) -> Tensor:
    """The columns of a projection in a matrix that may hold others too: a view where they stand side by side."""
    first = min(columns.starts)
    width = len(columns.starts) * columns.dim
    if sorted(columns.starts) == list(range(first, first + width, columns.dim)):
        return whole[:, first : first + width]
    chosen = [column for start in columns.starts for column in range(start, start + columns.dim)]
    return whole[:, torch.tensor(chosen, device=whole.device)]


# Which modules round more coarsely than the model's own numbers, whatever dtype was asked for.
#
# Many norms (Llama's, for one) and some softmaxes work in float32 inside a float64 model. What they give then does not
# change when their input changes in the tenth digit, and that is how they are found: no list of names. `widened` leaves
# such casts out for as long as it lasts.

_NUDGE = 1e-10  # far below float32's rounding (6e-8) and far above float64's (1e-16)
_UNMOVED = 0.9  # a ReLU leaves half of its outputs unmoved; float32 leaves all but a few in a thousand


def coarse_modules(model: nn.Module, inputs: Mapping[str, Any]) -> tuple[str, ...]:
    """Classes of the modules that compute in less than float64 inside a float64 model; none for other models."""
    found: dict[str, None] = {}

    def look(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        name = type(module).__name__
        if name in found or len(args) != 1 or not isinstance(args[0], Tensor) or not isinstance(output, Tensor):
            return
        taken = args[0]
        if taken.dtype != torch.float64 or output.dtype != torch.float64 or taken.shape != output.shape:
            return
        nudged = taken * (1 + _NUDGE * torch.linspace(-1, 1, taken.shape[-1], dtype=taken.dtype, device=taken.device))
        again = module.forward(nudged)
        moved = nudged != taken
        same = (again == output) & moved
        if bool(moved.any()) and float(same.sum() / moved.sum()) > _UNMOVED and not bool((output == 0).all()):
            found[name] = None

    with Restoring() as changes:
        for module in model.modules():
            if not any(True for _ in module.children()):
                changes.after(module, look)
        with torch.no_grad():
            model(**inputs)
    return tuple(found)


class widened(TorchFunctionMode):  # noqa: N801 - used as `with widened():`
    """Inside, float64 tensors are not cast to float32: `x.to(torch.float32)`, `x.float()`, `softmax(x, dtype=...)`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if args and isinstance(args[0], Tensor) and args[0].dtype == torch.float64:
            wanted = (*args[1:], *kwargs.values())
            if func is Tensor.float or (func in (Tensor.to, Tensor.type) and any(w is torch.float32 for w in wanted)):
                return args[0]
            if kwargs.get("dtype") is torch.float32:
                kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **kwargs)
