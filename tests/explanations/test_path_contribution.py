"""Path contribution: tokens and constants add up to the answer, and each token alone contributes its part."""

import pytest
import torch

from attnscope.explanations.path_contribution import path_contribution
from attnscope.hf.editing.freeze import freeze
from attnscope.pathways.graded import Graded
from attnscope.pathways.lengths import lengths
from attnscope.pathways.targets import logit, pulled_back, pulled_back_by_length, pulled_back_through_tail
from tests.explanations.runs import ENTRY, batch_of, model_of, places_of


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "GPT-NeoX"])
def test_parts_add_up_and_equal_the_frozen_network(name: str) -> None:
    model, batch = model_of(name, torch.float64), batch_of(name)
    network = freeze(model, batch, places_of(name)[0])
    target = logit(ENTRY)
    adjoint, constant = pulled_back(network, target)
    sent = network.streams[0] * adjoint
    found = path_contribution(contributions=lambda: {"model": sent[0]})["model"]
    answer = float(target(network.output))
    # The frozen network is the model to 1e-10 of its largest number (freeze refuses it otherwise).
    assert float(found.sum()) + constant == pytest.approx(answer, abs=1e-9)
    # Slow and obvious: one token of the stream alone, constants dropped, through the frozen network.
    for place in (0, 4, len(found) - 1):
        alone = torch.zeros_like(network.streams[0])
        alone[0, place] = network.streams[0][0, place]
        stream = Graded.of(network.streams[0], alone[None, None, None], None, "none")
        with torch.no_grad():
            for layer in range(network.layers):
                stream = network.block(layer, stream)
            alone_gives = float(target(network.finish(stream).parts[0, 0, 0]))
        assert alone_gives == pytest.approx(float(found[place]), abs=1e-9)


@pytest.mark.parametrize("name", ["GPT-2", "Llama"])
def test_numbers_are_split_by_length_and_add_up_both_ways(name: str) -> None:
    """By token to the numbers that the explanation gives, by length to the full recursion, in all to the answer."""
    model, batch = model_of(name, torch.float64), batch_of(name)
    network = freeze(model, batch, places_of(name)[0])
    target = logit(ENTRY)
    whole, _ = pulled_back(network, target)
    adjoint, constants = pulled_back_by_length(network, target)
    split = (network.streams[0] * adjoint)[:, 0].sum(-1)  # [length, token]
    tokens = path_contribution(contributions=lambda: {"model": (network.streams[0] * whole)[0]})["model"]
    # Two orders of adding the same products, in float64: far below what freeze allows.
    assert (split.sum(0) - tokens).abs().max() <= 1e-10
    with torch.no_grad():
        last, constant = pulled_back_through_tail(network, target)
        by_length = torch.einsum("sk...,...->sk", lengths(network).stream.parts[:, :, 0], last)
    by_length[1, 0] += constant
    assert (split.sum(1) - by_length[0]).abs().max() <= 1e-10
    assert (constants - by_length[1]).abs().max() <= 1e-10
    assert float(split.sum() + constants.sum()) == pytest.approx(float(target(network.output)), abs=1e-9)
    assert split[1:].abs().max() > 1e-3  # paths through heads are there
