"""QK-Clip while training: heads whose largest logit passes a threshold have their W_Q and W_K scaled after the step.

MuonClip's rule (arXiv:2507.20534): S_h is the largest logit of head h over the batch of the step, seen in the training
forward itself (every step, by a tap that looks at queries and keys and changes nothing); after the optimiser's step the
projections of heads with S_h > t take sqrt(t / S_h) each. Where heads share keys the query takes t / S_h alone. Rows of
other heads are not written, so they keep their bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from attnscope.commands.watch.catching import Precision, untouched
from attnscope.commands.watch.settings import Page, merged
from attnscope.core.errors import RefusalError
from attnscope.data.frame import AttentionFrame
from attnscope.hf.anatomy.anatomy import Anatomy, Site
from attnscope.hf.anatomy.projections import Columns
from attnscope.hf.intercepting.restoring import Restoring
from attnscope.hf.tapping.tap import Frame, tap
from attnscope.matrix.logits import largest_product
from attnscope.variants.qk_clip import qk_clip

# Processes that train one model together: each looks at its own part of the batch, and all know of all of it.
#
# Every process comes to the same numbers and so to the same alarms and the same scaled heads; the first writes. What is
# exchanged is a few thousand numbers at a look, between steps, by the process group that the training itself uses.


def together() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def writes() -> bool:
    """Whether this process keeps the record."""
    return not together() or dist.get_rank() == 0


def of_all(page: Page, *, same: bool) -> Page:
    """The page of the whole batch. `same`: all processes looked at the same batch (a probe), and the first counts."""
    if not together():
        return page
    pages: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(pages, page)
    tokens = sum(one.tokens for one in pages)
    whole: Page = pages[0] if same else merged(pages)
    whole.tokens = tokens
    return whole


def mean_of_all(value: float | None) -> float | None:
    """The loss of the whole batch, where every process knows its own."""
    if not together():
        return value
    known: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(known, value)
    return None if None in known else sum(known) / len(known)


def largest_of_all(numbers: Tensor) -> Tensor:
    if together():
        dist.all_reduce(numbers, op=dist.ReduceOp.MAX)
    return numbers


Key = tuple[str, str, int]  # stack, site, layer


@dataclass(frozen=True)
class Clipped:
    """One head that was scaled: its largest logit before, by which factor its logits are smaller now."""

    stack: str
    site: str
    layer: int
    head: int
    largest: float
    factor: float


class Clip:
    """Active from `install` on, for as long as `changes` is open."""

    def __init__(self, model: nn.Module, found: Anatomy, threshold: float | int) -> None:
        self._model, self._found, self._threshold = model, found, threshold
        self._largest: dict[Key, Tensor] = {}
        self._looking = False
        self.installed = False
        for site in found.sites:
            _refuse_unfit(found, site)

    def first(self, inputs: Mapping[str, Any], precision: Precision) -> None:
        """The first step's batch once more, after the step: its own forward began before anybody looked on."""
        self._looking = True
        try:
            with untouched(self._model), tap(self._model, self._found, self._receive), precision():
                self._model(**inputs)
        finally:
            self._looking = False

    def install(self, changes: Restoring) -> None:
        self.installed = True
        changes.enter_context(tap(self._model, self._found, self._receive))

    def _receive(self, frame: Frame) -> None:
        training = self._model.training and torch.is_grad_enabled()
        if isinstance(frame, AttentionFrame) and (training or self._looking):
            with torch.no_grad(), torch.autocast(frame.mixed.device.type, enabled=False):
                found = largest_product(frame.scores, frame.query_mask)
            key = (frame.stack, frame.site, frame.layer)
            before = self._largest.get(key)
            self._largest[key] = found if before is None else torch.maximum(before, found)

    def after_step(self) -> tuple[Clipped, ...]:
        """Scale what is too large. Called after every optimiser step."""
        seen, self._largest = self._largest, {}
        if not seen:
            raise RefusalError(
                f"qk_clip has seen no training forward of {type(self._model).__name__} since the last step, so it "
                "knows no logits (the model is compiled, or another module is trained): train without torch.compile, "
                "or leave qk_clip out."
            )
        done: list[Clipped] = []
        for site in {(s.path, s.nth): s for s in self._found.sites}.values():
            key = (site.stack, site.site, site.layer)
            if key not in seen:
                continue
            largest = largest_of_all(seen[key])
            if bool((largest > self._threshold).any()) and bool(largest.isfinite().all()):
                self._scale(site, largest)
                done += [
                    Clipped(*key, head, float(one), self._threshold / float(one))
                    for head, one in enumerate(largest)
                    if one > self._threshold
                ]
        return tuple(done)

    @torch.no_grad()
    def _scale(self, site: Site, largest: Tensor) -> None:
        query, key = site.projections.query, site.projections.key
        assert query is not None
        assert key is not None
        shared = len(key.starts) != len(query.starts)
        for name, columns in (("query", query),) if shared else (("query", query), ("key", key)):
            for parameter, index in self._slices(columns):
                rows = parameter[index] if columns.matrix.out_in or parameter.ndim == 1 else parameter[:, index].t()
                given = {"query_weight": rows} if shared else {"query_weight": rows, "key_weight": rows}
                changed = qk_clip(given, max_logit=largest.to(rows.device), threshold=self._threshold)
                kept = (largest > self._threshold).to(rows.device).repeat_interleave(columns.dim)
                new = changed[f"{name}_weight"][kept]
                if columns.matrix.out_in or parameter.ndim == 1:
                    parameter[index[kept]] = new
                else:
                    parameter[:, index[kept]] = new.t()

    def _slices(self, columns: Columns) -> list[tuple[Tensor, Tensor]]:
        """The weight, and the bias where there is one, each with the rows that belong to the heads in order."""
        matrix = columns.matrix
        weight = self._model.get_parameter(matrix.parameter)
        shift = matrix.first_row if matrix.out_in else 0
        numbers = [shift + column for start in columns.starts for column in range(start, start + columns.dim)]
        index = torch.tensor(numbers, device=weight.device)
        module = self._model.get_submodule(matrix.parameter.rpartition(".")[0])
        bias = module._parameters.get("bias")
        return [(weight, index)] if bias is None else [(weight, index), (bias, index)]


def _refuse_unfit(found: Anatomy, site: Site) -> None:
    query, key = site.projections.query, site.projections.key
    where = f"the attention of layer {site.layer} of {found.model_class}"
    if query is None or key is None or query.matrix.axes or key.matrix.axes:
        raise RefusalError(f"The query and key projections in {where} were not recognised: leave qk_clip out.")
    if query.norm or key.norm:
        raise RefusalError(
            f"Queries and keys are normed after they are projected in {where}, so scaling the projections changes no "
            "logit: leave qk_clip out."
        )
    if not site.rebuilt:
        raise RefusalError(f"The logits in {where} are not products of queries and keys: leave qk_clip out.")
