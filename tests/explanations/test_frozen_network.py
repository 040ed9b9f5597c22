"""Operator and path contribution: tokens and constants add up, and equal slow runs of the frozen network."""

import pytest
import torch

import attnscope
from attnscope.explanations.operator import operator
from attnscope.explanations.path_contribution import path_contribution
from attnscope.hf.editing.freeze import freeze
from attnscope.pathways.affine import Affine
from attnscope.pathways.graded import Graded
from attnscope.pathways.lengths import lengths
from attnscope.pathways.operator_maps import collapsed, directions
from attnscope.pathways.targets import logit, pulled_back, pulled_back_by_length, pulled_back_through_tail
from tests.explanations.runs import ENTRY, batch_of, model_of, places_of
from tests.specimens import byte_tokenizer, tiny_llama


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama"])
def test_operator_equals_weighted_rows_of_the_map_and_adds_up(name: str) -> None:
    model, batch = model_of(name, torch.float64), batch_of(name)
    network = freeze(model, batch, places_of(name)[0])
    blocks = Affine(network, 0, network.layers, False)
    weights = torch.linspace(0, 1, len(blocks.enters), dtype=torch.float64)
    back = blocks.transposed_times((weights[:, None] * directions(blocks))[None])[0]
    found = operator(made_of=lambda: {"model": back * blocks.enters})["model"]
    whole = collapsed(blocks, "contribution", None, None, 0, lambda *_: None)
    assert whole.constants is not None
    assert whole.totals is not None
    # Sums of a few thousand products of numbers of order one, in float64.
    torch.testing.assert_close(found, weights @ whole.values, atol=1e-11, rtol=0)
    assert float(found.sum() + weights @ whole.constants) == pytest.approx(float(weights @ whole.totals), abs=1e-10)


def test_operator_reads_the_row_of_the_answering_token() -> None:
    """For a logit after the last token, that is only the last row of the map."""
    model, tokenizer = tiny_llama(), byte_tokenizer()
    found = attnscope.explain(model, "which one?", methods="operator", dtype="float64", tokenizer=tokenizer)
    whole = attnscope.operator(model, "which one?", tokenizer=tokenizer).stream.map("contribution")
    assert found.names == ("operator",)
    assert found.scores("operator") == pytest.approx(whole.row(-1), abs=1e-11)
    assert whole.totals is not None
    assert found.method("operator").total == pytest.approx(whole.totals[-1], abs=1e-10)  # a Llama has no constants


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "GPT-NeoX"])
def test_path_contribution_adds_up_and_equals_the_frozen_network(name: str) -> None:
    model, batch = model_of(name, torch.float64), batch_of(name)
    network = freeze(model, batch, places_of(name)[0])
    target = logit(ENTRY)
    adjoint, constant = pulled_back(network, target)
    sent = network.streams[0] * adjoint
    found = path_contribution(contributions=lambda: {"model": sent[0]})["model"]
    answer = float(target(network.output))
    # The frozen network is the model to 1e-10 of its largest number (freeze refuses it otherwise).
    assert float(found.sum()) + constant == pytest.approx(answer, abs=1e-9)
    # Slow reference: one token of the stream alone through the frozen network, without constants.
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
def test_path_contribution_by_length_adds_up_both_ways(name: str) -> None:
    """Sums over lengths give the scores, sums over tokens the full recursion, and the total the answer."""
    model, batch = model_of(name, torch.float64), batch_of(name)
    network = freeze(model, batch, places_of(name)[0])
    target = logit(ENTRY)
    whole, _ = pulled_back(network, target)
    adjoint, constants = pulled_back_by_length(network, target)
    split = (network.streams[0] * adjoint)[:, 0].sum(-1)  # [length, token]
    tokens = path_contribution(contributions=lambda: {"model": (network.streams[0] * whole)[0]})["model"]
    # The same products in two orders of summation, in float64: far below the tolerance of freeze.
    assert (split.sum(0) - tokens).abs().max() <= 1e-10
    with torch.no_grad():
        last, constant = pulled_back_through_tail(network, target)
        by_length = torch.einsum("sk...,...->sk", lengths(network).stream.parts[:, :, 0], last)
    by_length[1, 0] += constant
    assert (split.sum(1) - by_length[0]).abs().max() <= 1e-10
    assert (constants - by_length[1]).abs().max() <= 1e-10
    assert float(split.sum() + constants.sum()) == pytest.approx(float(target(network.output)), abs=1e-9)
    assert split[1:].abs().max() > 1e-3  # some paths pass heads
