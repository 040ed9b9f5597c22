"""Runs of small models that several tests share."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from attnscope.commands.explain.running import start_of
from attnscope.hf.anatomy.anatomy import Anatomy, anatomy
from attnscope.hf.tapping.capture import Captured, capture
from attnscope.hf.tapping.entrances import Entrance, entrances
from tests.hf.families import FAMILIES

BY_NAME = {family.name: family for family in FAMILIES}
TEXTS = tuple(family.name for family in FAMILIES if family.inputs in ("text", "pair"))
ENTRY = 5


def number(output: Tensor) -> Tensor:
    """Return the answer of these runs: one entry of the last token's output."""
    return output[:, -1, ENTRY]


@cache
def model_of(name: str, dtype: torch.dtype) -> Any:
    model = BY_NAME[name].model()
    return model.to(dtype).requires_grad_(False)


def batch_of(name: str) -> dict[str, Tensor]:
    return {key: value[:1] for key, value in BY_NAME[name].batch().items()}


@cache
def places_of(name: str) -> tuple[Anatomy, tuple[Entrance, ...]]:
    """Return the anatomy and entrances of a model, which are equal in every precision."""
    model, batch = BY_NAME[name].model(), batch_of(name)
    found = anatomy(model, batch)
    return found, entrances(model, batch, found)


@cache
def captured(name: str, dtype: torch.dtype = torch.float32) -> tuple[Captured, dict[str, Tensor]]:
    """Return the captured run, and the weights of the tokens that give the answer."""
    model, batch = model_of(name, dtype), batch_of(name)
    found, places = places_of(name)
    run = capture(model, batch, found, places, number)
    return run, start_of(run, found)


def eager_maps(name: str, dtype: torch.dtype) -> tuple[list[tuple[str, Tensor, Tensor]], Tensor]:
    """Return full attention maps of the eager model, with gradients from autograd.

    Maps and gradients are `[head, query, key]` and are named `self`, `encoder`, `decoder` or `cross`. The output of the
    model is returned too.
    """
    model: Any = BY_NAME[name].model().to(dtype).requires_grad_(False)
    batch = batch_of(name)
    model.set_attn_implementation("eager")
    model.get_input_embeddings().weight.requires_grad_()  # so that maps have a gradient
    with torch.enable_grad():
        answer = model(**batch, output_attentions=True)
        first = answer.logits if "logits" in answer else answer[0]
        kinds = {"self": "attentions", "encoder": "encoder_attentions"}
        kinds |= {"decoder": "decoder_attentions", "cross": "cross_attentions"}
        maps = [(kind, one) for kind, field in kinds.items() for one in (answer.get(field) or ())]
        gradients = torch.autograd.grad(number(first).sum(), [one for _, one in maps])
    return [(kind, one[0].detach(), g[0]) for (kind, one), g in zip(maps, gradients, strict=True)], first.detach()
