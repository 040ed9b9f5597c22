"""Three numbers for each block that only a watch measures, because they need the model or an extra forward pass.

future_influence    how far later tokens change the output of a block at earlier ones: 0 unless a causal mask is lost
distinct_weights    the share of distinct values among weights: about 1 in float32, far less on a coarse grid
norm_gain           the mean size of the gains of the norms in a block
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.commands.watch.forward_capture import AutocastState, Inputs, without_side_effects
from attnscope.commands.watch.look_totals import LookTotals
from attnscope.core.card import Card
from attnscope.data.frame import StreamFrame
from attnscope.hf.anatomy.anatomy import Anatomy
from attnscope.hf.anatomy.weights import training_frames
from attnscope.hf.tapping.tap import Frame, tap

FUTURE, DISTINCT, GAIN = "future_influence", "distinct_weights", "norm_gain"
TOKENS = 32  # tokens of the extra forward pass
SAMPLED = 1024  # weights of each projection that are compared
CARDS = {
    FUTURE: Card(
        FUTURE,
        "Influence of later tokens",
        "How much the output of a block changes at earlier tokens if later tokens are replaced, relative to the change "
        "at the later ones. It is 0 in a causal model.",
        "ratio",
        citation="this software",
        scope="attention",
        group="training",
        sites=("self",),
    ),
    DISTINCT: Card(
        DISTINCT,
        "Distinct weights",
        "The share of different values in a sample of the block's query, key, value and output projections.",
        "share",
        high=1.0,
        citation="this software",
        scope="training",
        group="training",
        sites=("self",),
    ),
    GAIN: Card(
        GAIN,
        "Gain of norms",
        "The mean size of the gains of the norms in a block.",
        "factor",
        citation="this software",
        scope="training",
        group="training",
        sites=("self",),
    ),
}


class ExtraMeasures:
    """Measures the three numbers and adds them to the totals of a look."""

    def __init__(self, model: nn.Module, anatomy: Anatomy) -> None:
        self._model, self._anatomy = model, anatomy
        own = [site for site in anatomy.sites if site.site == "self"]
        self._causal = {stack.name for stack in anatomy.stacks if all(s.causal for s in own if s.stack == stack.name)}
        self._causal &= {site.stack for site in own}
        self._blocks = {(s.name, b.layer): b.path for s in anatomy.stacks for b in s.blocks}

    @torch.no_grad()
    def weights(self, totals: LookTotals) -> None:
        for frame in training_frames(self._model, self._anatomy, None):
            sample = torch.cat([_sampled(weight) for weight in frame.weight.values()] or [torch.zeros(0)])
            if frame.site == "self" and len(sample):
                share = len(torch.unique(sample)) / len(sample)
                totals.observe(DISTINCT, "value", frame.stack, "self", frame.layer, np.array([share]))
        for (stack, layer), path in self._blocks.items():
            parameters = self._model.get_submodule(path).named_parameters()
            gains = [
                p for name, p in parameters if p.ndim == 1 and name.rpartition(".")[2] == "weight" and p.numel() > 1
            ]
            if gains:
                size = float(torch.cat([gain.detach().float().abs() for gain in gains]).mean())
                totals.observe(GAIN, "value", stack, "self", layer, np.array([size]))

    def future(self, totals: LookTotals, inputs: Mapping[str, Any], options: Inputs, autocast: AutocastState) -> None:
        """Run one sequence beside a copy whose later half is replaced, and compare the earlier halves."""
        pair = _pair(inputs) if self._causal else None
        if pair is None:
            return
        half = pair["input_ids"].shape[1] // 2
        streams: dict[tuple[str, int], float] = {}

        def receive(frame: Frame) -> None:
            if isinstance(frame, StreamFrame) and frame.site == "stream" and frame.stack in self._causal:
                change = (frame.stream[0].float() - frame.stream[1].float()).abs().amax(dim=-1)
                streams[frame.stack, frame.layer] = float(change[:half].max() / change[half:].max())  # 0 / 0 is NaN

        with without_side_effects(self._model), tap(self._model, self._anatomy, receive), autocast():
            self._model(**{**pair, **options})
        for (stack, layer), ratio in streams.items():
            if layer and np.isfinite(ratio):  # the stream after block N enters N + 1
                totals.observe(FUTURE, "value", stack, "self", layer - 1, np.array([ratio]))


def _sampled(weight: Tensor) -> Tensor:
    flat = weight.detach().flatten()
    return flat[:: max(1, len(flat) // SAMPLED)][:SAMPLED].float().cpu()


def _pair(inputs: Mapping[str, Any]) -> Inputs | None:
    """Return the first sequence twice, the second time with its later half replaced by its earlier half.

    Return None unless all tensors are tables of tokens.
    """
    ids = inputs.get("input_ids")
    if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.shape[1] < 4:
        return None
    if any(isinstance(value, Tensor) and value.shape != ids.shape for value in inputs.values()):
        return None
    cut = {n: v[:1, :TOKENS].expand(2, -1).clone() if isinstance(v, Tensor) else v for n, v in inputs.items()}
    tokens = cut["input_ids"]
    half = tokens.shape[1] // 2
    tokens[1, half:] = tokens[0].flip(0)[-(tokens.shape[1] - half) :]
    return cut
