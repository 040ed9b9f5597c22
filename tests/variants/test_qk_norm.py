"""Queries and keys of one length: bounded logits."""

import torch

from attnscope.core.variant import Size
from attnscope.variants.qk_norm import pattern, qk_norm
from tests.variants.calls import heads, inputs

OWN = {name: one.double() for name, one in qk_norm.start(Size(2, 4, 8)).items()}


def test_the_length_of_queries_and_keys_no_longer_matters() -> None:
    query, key, value = heads()
    found = qk_norm(inputs(1000 * query, 300 * key, value), **OWN)
    torch.testing.assert_close(found, qk_norm(inputs(100 * query, 100 * key, value), **OWN), rtol=1e-7, atol=1e-7)


def test_no_row_is_sharper_than_the_bound_on_logits_allows() -> None:
    """|s| <= scale dim g_q g_k, so that no weight of a row is more than e^(2 |s|) times another."""
    query, key, _ = heads()
    rows = pattern(inputs(1e4 * query, 1e4 * key), **OWN)
    assert float((rows.amax(-1) / rows.amin(-1)).log().max()) <= 2 * 0.5 * 4
    sharper = pattern(inputs(1e4 * query, key), query_gain=3 * OWN["query_gain"], key_gain=OWN["key_gain"])
    assert float((sharper.amax(-1) / sharper.amin(-1)).log().max()) > 4


def test_turning_pairs_of_coordinates_before_or_after_is_the_same_without_gains() -> None:
    """Rotary positions commute with the norm."""
    query, key, value = heads(dim=2)
    own = {"query_gain": torch.ones(2, dtype=torch.float64), "key_gain": torch.ones(2, dtype=torch.float64)}
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    turned = qk_norm(inputs(query @ turn, key @ turn, value), **own)
    torch.testing.assert_close(turned, qk_norm(inputs(query, key, value), **own))
