"""Path contribution: tokens and constants add up to the answer, and a token that is left out of the frozen network
takes
just its part with it."""

from __future__ import annotations

import pytest
import torch

from attnscope.explanations.path_contribution import path_contribution
from attnscope.hf.editing.freeze import freeze
from attnscope.pathways.adjoint import pulled_back
from attnscope.pathways.graded import Graded
from attnscope.pathways.targets import logit
from tests.explanations.runs import ENTRY, batch_of, model_of, places_of


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "GPT-NeoX"])
def test_parts_add_up_and_are_those_of_the_frozen_network(name: str) -> None:
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
