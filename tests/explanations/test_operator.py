"""The operator as an explanation: tokens and constants add up to the norm of the states that answer, row by row of the
map by contribution, and a planted token is found."""

import pytest
import torch

import attnscope
from attnscope.explanations.operator import operator
from attnscope.hf.editing.freeze import freeze
from attnscope.pathways.affine import Affine
from attnscope.pathways.operator_maps import collapsed, directions
from tests.explanations.runs import batch_of, model_of, places_of
from tests.specimens import byte_tokenizer, tiny_llama


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama"])
def test_equals_weighted_rows_of_the_map_and_adds_up(name: str) -> None:
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


def test_explain_reads_the_row_of_the_answering_token() -> None:
    """A logit behind the last token: the last row of the map, and of no other."""
    model, tokenizer = tiny_llama(), byte_tokenizer()
    found = attnscope.explain(model, "which one?", methods="operator", dtype="float64", tokenizer=tokenizer)
    whole = attnscope.operator(model, "which one?", tokenizer=tokenizer).stream.map("contribution")
    assert found.names == ("operator",)
    assert found.scores("operator") == pytest.approx(whole.row(-1), abs=1e-11)
    assert whole.totals is not None
    assert found.method("operator").total == pytest.approx(whole.totals[-1], abs=1e-10)  # a Llama has no constants
