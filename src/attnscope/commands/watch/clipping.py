"""QK-Clip in training: scale W_Q and W_K of every head whose largest logit exceeds a threshold t.

MuonClip's rule (arXiv:2507.20534): S_h is the largest logit of head h over the batch of the step, taken from the
training forward by a tap that reads queries and keys at every step and changes nothing. After the optimiser's step,
both projections of every head with S_h > t are multiplied by sqrt(t / S_h). If heads share keys, the query projection
alone is multiplied by t / S_h. Rows of other heads are not written, so they stay bit-equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.commands.watch.forward_capture import AutocastState, without_side_effects
from attnscope.commands.watch.look_totals import gather_max
from attnscope.core.errors import RefusalError
from attnscope.data.frame import AttentionFrame
from attnscope.hf.anatomy.anatomy import Anatomy, Site
from attnscope.hf.anatomy.projections import Columns
from attnscope.hf.intercepting.restoring import Restoring
from attnscope.hf.tapping.tap import Frame, tap
from attnscope.matrix.logits import largest_product
from attnscope.variants.qk_clip import qk_clip


@dataclass(frozen=True)
class ClippedHead:
    """One head that was scaled: its largest logit before, and the factor by which its logits shrank."""

    stack: str
    site: str
    layer: int
    head: int
    largest: float
    factor: float


class QKClip:
    """QK-Clip for a model in training. It is active from `install` on, until `changes` is closed."""

    def __init__(self, model: nn.Module, anatomy: Anatomy, threshold: float | int) -> None:
        self._model, self._anatomy, self._threshold = model, anatomy, threshold
        self._largest: dict[tuple[str, str, int], Tensor] = {}  # largest logits by stack, site and block
        self._repeating = False
        self.installed = False
        for site in anatomy.sites:
            _refuse_unfit(anatomy, site)

    def repeat_first_step(self, inputs: Mapping[str, Any], autocast: AutocastState) -> None:
        """Run the first batch again to record its largest logits.

        During its own forward pass the attention modules were still being located, so nothing was recorded.
        """
        self._repeating = True
        try:
            with without_side_effects(self._model), tap(self._model, self._anatomy, self._receive), autocast():
                self._model(**inputs)
        finally:
            self._repeating = False

    def install(self, changes: Restoring) -> None:
        self.installed = True
        changes.enter_context(tap(self._model, self._anatomy, self._receive))

    def _receive(self, frame: Frame) -> None:
        training = self._model.training and torch.is_grad_enabled()
        if isinstance(frame, AttentionFrame) and (training or self._repeating):
            with torch.no_grad(), torch.autocast(frame.mixed.device.type, enabled=False):
                largest = largest_product(frame.scores, frame.query_mask)
            key = (frame.stack, frame.site, frame.layer)
            earlier = self._largest.get(key)
            self._largest[key] = largest if earlier is None else torch.maximum(earlier, largest)

    def after_step(self) -> tuple[ClippedHead, ...]:
        """Scale heads above the threshold. Call it after every optimiser step."""
        seen, self._largest = self._largest, {}
        if not seen:
            raise RefusalError(
                f"qk_clip has seen no training forward of {type(self._model).__name__} since the last step, so the "
                "logits are unknown (the model is compiled, or another module is trained): train without "
                "torch.compile, "
                "or leave qk_clip out."
            )
        clipped: list[ClippedHead] = []
        for site in {(s.path, s.nth): s for s in self._anatomy.sites}.values():
            key = (site.stack, site.site, site.layer)
            if key not in seen:
                continue
            largest = gather_max(seen[key])
            if bool((largest > self._threshold).any()) and bool(largest.isfinite().all()):
                self._scale(site, largest)
                clipped += [
                    ClippedHead(*key, head, float(logit), self._threshold / float(logit))
                    for head, logit in enumerate(largest)
                    if logit > self._threshold
                ]
        return tuple(clipped)

    @torch.no_grad()
    def _scale(self, site: Site, largest: Tensor) -> None:
        query, key = site.projections.query, site.projections.key
        assert query is not None
        assert key is not None
        shared = len(key.starts) != len(query.starts)
        for name, columns in (("query", query),) if shared else (("query", query), ("key", key)):
            for parameter, index in self._slices(columns):
                out_first = columns.matrix.out_in or parameter.ndim == 1
                rows = parameter[index] if out_first else parameter[:, index].t()
                weights = {"query_weight": rows} if shared else {"query_weight": rows, "key_weight": rows}
                changed = qk_clip(weights, max_logit=largest.to(rows.device), threshold=self._threshold)
                above = (largest > self._threshold).to(rows.device).repeat_interleave(columns.dim)
                scaled = changed[f"{name}_weight"][above]
                if out_first:
                    parameter[index[above]] = scaled
                else:
                    parameter[:, index[above]] = scaled.t()

    def _slices(self, columns: Columns) -> list[tuple[Tensor, Tensor]]:
        """Return the weight, and the bias if there is one, each with the rows of the heads in order."""
        matrix = columns.matrix
        weight = self._model.get_parameter(matrix.parameter)
        shift = matrix.first_row if matrix.out_in else 0
        rows = [shift + column for start in columns.starts for column in range(start, start + columns.dim)]
        index = torch.tensor(rows, device=weight.device)
        bias = self._model.get_submodule(matrix.parameter.rpartition(".")[0])._parameters.get("bias")
        return [(weight, index)] if bias is None else [(weight, index), (bias, index)]


def _refuse_unfit(anatomy: Anatomy, site: Site) -> None:
    query, key = site.projections.query, site.projections.key
    where = f"the attention of block {site.layer} of {anatomy.model_class}"
    if query is None or key is None or query.matrix.axes or key.matrix.axes:
        raise RefusalError(f"The query and key projections in {where} were not recognised: leave qk_clip out.")
    if query.norm or key.norm:
        raise RefusalError(
            f"Queries and keys are normalised after the projections in {where}, so scaling the projections changes no "
            "logit: leave qk_clip out."
        )
    if not site.rebuilt:
        raise RefusalError(f"The logits in {where} are not products of queries and keys: leave qk_clip out.")
