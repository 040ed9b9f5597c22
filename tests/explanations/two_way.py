"""A slow reference for a two-way decoder (SAM): the equations of arXiv:2103.15679 on full maps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

CALLS = 3  # attention of a block: tokens to themselves, tokens to the picture, the picture to tokens


@contextmanager
def written_out(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """Return every result of a softmax, in order, with gradients. A softmax in float32 gets the precision of its
    scores instead."""
    maps: list[Tensor] = []
    original = nn.functional.softmax

    def softmax(*args: Any, **kwargs: Any) -> Tensor:
        made = original(*args, **{name: value for name, value in kwargs.items() if name != "dtype"})
        made.retain_grad()
        maps.append(made)
        return made

    with monkeypatch.context() as patch:
        patch.setattr(nn.functional, "softmax", softmax)
        yield maps


def abar(pattern: Tensor) -> Tensor:
    assert pattern.grad is not None
    return (pattern.detach() * pattern.grad)[0].clamp_min(0).mean(0)


def normalised(R: Tensor) -> Tensor:
    own = torch.eye(len(R), dtype=R.dtype)
    sums = (R - own).sum(-1, keepdim=True)
    return own + torch.where(sums > 0, (R - own) / sums.where(sums > 0, torch.ones_like(sums)), 0.0)


def row_of(
    model: Any, number: Callable[[], Tensor], token: int, layers: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[float, Tensor, Tensor]:
    """Return the value of `number`, and the row of one token in the maps between tokens and to the picture.

    These are the last maps of the run, after those of the encoder.
    """
    model.set_attn_implementation("eager")
    model.requires_grad_(True)
    with written_out(monkeypatch) as maps, torch.enable_grad():
        value = number()
        value.backward()
    model.requires_grad_(False)
    model.set_attn_implementation("sdpa")
    used = [abar(one) for one in maps[-(CALLS * layers + 1) :]]
    tokens, places = used[1].shape
    tt, ii = torch.eye(tokens, dtype=torch.float64), torch.eye(places, dtype=torch.float64)
    ti, it = torch.zeros(tokens, places).double(), torch.zeros(places, tokens).double()
    for layer in range(layers):
        own, to_picture, to_tokens = used[CALLS * layer : CALLS * layer + CALLS]
        tt, ti = tt + own @ tt, ti + own @ ti
        ti, tt = ti + normalised(tt).T @ to_picture @ normalised(ii), tt + to_picture @ it
        it, ii = it + normalised(ii).T @ to_tokens @ normalised(tt), ii + to_tokens @ ti
    ti, tt = ti + normalised(tt).T @ used[-1] @ normalised(ii), tt + used[-1] @ it
    begins = torch.eye(tokens, dtype=torch.float64)[token]
    return float(value.detach()), tt[token] - begins, ti[token]
