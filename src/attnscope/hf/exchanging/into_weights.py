"""Install variants that change projections: once, in place (qk_clip), or in every forward pass (sigma_reparam).

The projection of a head is a range of columns in a matrix that may be fused with others. Weights that are changed in
place are restored bit for bit.

sigma_reparam divides a projection by its largest singular value in every forward pass. That value is u . W v, where u
and v are the singular vectors. They are computed exactly when the variant is installed, updated by one power iteration
per training step (as published), and saved with the model. The factor c acts on the output y of the projection with
bias b: y + (c - 1)(y - b) equals the product with c W plus b, and is exactly y for c = 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import Site
from attnscope.hf.anatomy.projections import Columns
from attnscope.hf.exchanging.call import InstalledVariant, attach, variant_in
from attnscope.hf.exchanging.plan import InstallPlan


@dataclass(frozen=True)
class Projection:
    """Where a projection is stored: the module with its weight and bias, and which of its outputs belong to it."""

    name: str  # query, key, value or output
    module: str
    out_in: bool
    outputs: tuple[int, ...]

    def weight(self, module: nn.Module) -> Tensor:
        """Return the weight as `[out, in]`; gradients flow through it to the parameter."""
        whole = module.get_parameter("weight")
        mine = self.index(whole.device)
        return whole[mine] if self.out_in else whole[:, mine].t()

    def index(self, device: torch.device) -> Tensor:
        return torch.tensor(self.outputs, device=device)


def into_weights(changes: ExitStack, plan: InstallPlan) -> None:
    """Install a variant of the projections. `changes` restores the model."""
    if plan.recipe.variant == "qk_clip":
        _clipped(changes, plan)
    else:
        _reparametrised(changes, plan)


def _clipped(changes: ExitStack, plan: InstallPlan) -> None:
    largest = _largest_logits(plan)
    for site in {site.path: site for site in plan.sites}.values():
        projections = {projection.name: projection for projection in _projections(plan, site, ("query", "key"))}
        if any(c is not None and c.norm for c in (site.projections.query, site.projections.key)):
            raise RefusalError(
                f"{plan.found.model_class} norms its queries and keys after projecting them, so qk_clip would change "
                "no logit: choose another variant."
            )
        modules = {name: plan.model.get_submodule(projection.module) for name, projection in projections.items()}
        before = {
            f"{name}_weight": projection.weight(modules[name]).detach() for name, projection in projections.items()
        }
        for name, projection in projections.items():
            bias = modules[name]._parameters.get("bias")
            if bias is not None:
                before[f"{name}_bias"] = bias.detach()[projection.index(bias.device)]
        threshold = {name: value for name, value in plan.calls.items() if name != "max_logit"}
        after = plan.variant(before, max_logit=largest[site.layer].to(before["query_weight"]), **threshold)
        for name, projection in projections.items():
            _write(changes, modules[name], projection, after[f"{name}_weight"], after.get(f"{name}_bias"))
        module = plan.model.get_submodule(site.path)
        attach(changes, module, plan.part(site, module, silent=True))


def _write(changes: ExitStack, module: nn.Module, where: Projection, weight: Tensor, bias: Tensor | None) -> None:
    """Change a parameter in place, so that optimisers still refer to it; `changes` restores it bit for bit."""
    for name, new in (("weight", weight), ("bias", bias)):
        if new is None:
            continue
        own = module.get_parameter(name)
        columns = name == "weight" and not where.out_in
        changes.callback(_put_back, own, own.detach().clone(), where, columns)
        with torch.no_grad():
            if columns:
                own[:, where.index(own.device)] = new.t()
            else:
                own[where.index(own.device)] = new


def _put_back(own: nn.Parameter, saved: Tensor, where: Projection, columns: bool) -> None:
    mine = where.index(own.device)
    saved = saved.to(own)
    with torch.no_grad():
        if columns:
            own[:, mine] = saved[:, mine]
        else:
            own[mine] = saved[mine]


def _largest_logits(plan: InstallPlan) -> dict[int, Tensor]:
    """Return the largest logit of every head in every treated block, or 0 for untreated heads."""
    table: Any = plan.calls.get("max_logit")
    if table is None:
        raise RefusalError(
            "qk_clip needs max_logit, the largest logit of every head, as a table of blocks and heads: "
            "attnscope.hf.installed.largest_logits(model, batches) measures it."
        )
    rows = dict(table) if isinstance(table, Mapping) else dict(zip(plan.recipe.layers, table, strict=False))
    largest: dict[int, Tensor] = {}
    for site in plan.sites:
        row: Any = rows.get(site.layer, rows.get(str(site.layer)))
        numbers = torch.as_tensor(() if row is None else row, dtype=torch.float32)
        if numbers.shape != (site.heads,):
            raise RefusalError(
                f"max_logit has {numbers.numel()} numbers for block {site.layer}, which has {site.heads} heads: give "
                "one number for each head."
            )
        if plan.recipe.heads is not None:
            kept = torch.zeros(site.heads)
            kept[list(plan.recipe.heads)] = numbers[list(plan.recipe.heads)]
            numbers = kept
        largest[site.layer] = numbers
    return largest


def _reparametrised(changes: ExitStack, plan: InstallPlan) -> None:
    for site in {site.path: site for site in plan.sites}.values():
        by_module: dict[str, list[Projection]] = {}
        for projection in _projections(plan, site, ("query", "key", "value", "output")):
            by_module.setdefault(projection.module, []).append(projection)
        for path, mine in by_module.items():
            module = plan.model.get_submodule(path)
            begun: dict[str, Tensor] = {}
            directions: dict[str, Tensor] = {}
            for projection in mine:
                weight = projection.weight(module).detach()
                direction = _direction(weight)
                directions[f"{projection.name}_weight_direction"] = direction
                begun[f"{projection.name}_weight_gain"] = _sigma(weight, direction)
            part = InstalledVariant(plan.recipe, plan.size(site), begun, {"projections": tuple(mine)})
            for name, direction in directions.items():
                part.register_buffer(name, direction)
            part.weight_in_effect = weight_in_effect
            attach(changes, module, part)
            changes.callback(module.register_forward_hook(_rescaled).remove)


def _direction(weight: Tensor) -> Tensor:
    """Return the right singular vector of the largest singular value."""
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    right: Tensor = torch.linalg.svd(wide, full_matrices=False).Vh[0]
    return right.to(weight.dtype)


def _sigma(weight: Tensor, direction: Tensor) -> Tensor:
    """Return u . W v, where W is `weight`, v is `direction` and u = W v / |W v|. Its gradient is u v^T.

    It is the largest singular value of W if v is the right singular vector.
    """
    left = F.normalize(weight.detach() @ direction, dim=0)
    return left @ (weight @ direction)


def _rescaled(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Any:
    part = variant_in(module)
    if part is None:
        return None
    if part.training and torch.is_grad_enabled():
        _follow(part, module)
    bias = module._parameters.get("bias")
    plain = output if bias is None else output - bias
    return output + (_factors(part, module, output.shape[-1]) - 1).to(output.dtype) * plain


def _follow(part: InstalledVariant, module: nn.Module) -> None:
    """Do one step of power iteration for every projection."""
    with torch.no_grad():
        for projection in part.settings["projections"]:
            weight, direction = projection.weight(module), part.get_buffer(f"{projection.name}_weight_direction")
            direction.copy_(F.normalize(weight.t() @ (weight @ direction), dim=0))


def _factors(part: InstalledVariant, module: nn.Module, outputs: int) -> Tensor:
    """Return gain / largest singular value for every output of the module, or 1 for outputs of no projection."""
    factors = torch.ones_like(module.get_parameter("weight")[:1, :1]).flatten().expand(outputs)
    own: Sequence[Projection] = part.settings["projections"]
    for projection in own:
        direction = part.get_buffer(f"{projection.name}_weight_direction").clone()  # the next step changes it in place
        factor = part.get_parameter(f"{projection.name}_weight_gain") / _sigma(projection.weight(module), direction)
        factors = factors.index_copy(0, projection.index(factors.device), factor.expand(len(projection.outputs)))
    return factors


def weight_in_effect(module: nn.Module) -> Tensor:
    """Return the weight that the module computes with."""
    part, weight = variant_in(module), module.get_parameter("weight").detach()
    if part is None:
        return weight
    out_in = part.settings["projections"][0].out_in
    with torch.no_grad():
        factors = _factors(part, module, weight.shape[0 if out_in else 1])
    return weight * (factors[:, None] if out_in else factors)


def _projections(plan: InstallPlan, site: Site, names: Sequence[str]) -> Iterator[Projection]:
    for name in names:
        stored = getattr(site.projections, name)
        matrix = stored.matrix if isinstance(stored, Columns) else stored
        if matrix is None or matrix.axes or not matrix.parameter.endswith(".weight"):
            raise RefusalError(
                f"The {name} projection of block {site.layer} of {plan.found.model_class} is not the weight of a "
                f"module, so {plan.recipe.variant} cannot change it: choose another variant."
            )
        if isinstance(stored, Columns):
            outputs = stored.numbers
        else:
            shape = plan.model.get_parameter(matrix.parameter).shape
            outputs = list(range(matrix.rows if matrix.out_in else shape[1]))
        shift = matrix.first_row if matrix.out_in else 0
        module = matrix.parameter.removesuffix(".weight")
        yield Projection(name, module, matrix.out_in, tuple(shift + column for column in outputs))
