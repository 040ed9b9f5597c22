"""The induction network (arXiv:2409.10559) against its definition, its chains, and the shorter computation of its
answers.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.papers.models.induction import Chains, InductionNetwork
from attnscope.papers.trials.induction_training import answers, counted, information, long_run, rule_of_three


def shaken(window: int = 4, seed: int = 0) -> InductionNetwork:
    network, rng = InductionNetwork(3, 3, window).double(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.rand(parameter.shape, generator=rng, dtype=torch.float64))
        network.sharpness.mul_(4)
    return network


def test_attention_equals_the_definition_and_the_counted_form() -> None:
    network, text = shaken(), Chains(tokens=20).draw(5, seed=1)
    x = F.one_hot(text.ids[:, :-1], 3).double()
    weights, share = network.lag_weights, network.shares
    said = []
    for row in x:
        fetched = torch.stack([weights @ row[[place - lag for lag in (1, 2, 3, 4)]] for place in range(4, 21)])
        fetched = F.normalize(fetched, dim=-1)  # [place, head, symbol]
        like = (fetched[:-1] * fetched[-1]).sum(-1)
        kernel = sum(own * like[:, list(heads)].prod(-1) for own, heads in zip(share, network.sets, strict=True))
        said.append((float(network.sharpness.detach()) * kernel).softmax(0) @ row[4:])
    with torch.no_grad():
        torch.testing.assert_close(network(text.ids[:, :-1]), torch.stack(said), atol=1e-12, rtol=0)
        short = answers(network, counted(text.ids, 4, 3))
    torch.testing.assert_close(short, torch.stack(said), atol=1e-12, rtol=0)


def test_a_network_that_has_learned_counts_what_followed() -> None:
    """Heads on lags 1 and 2, their set alone, sharp: the answer is what followed the same two symbols before."""
    network = InductionNetwork(3, 3, 3).double()
    with torch.no_grad():
        network.lags.copy_(40.0 * torch.eye(3, 3))
        network.sets_weight.copy_(torch.tensor([1.0 if heads == (0, 1) else 0.0 for heads in network.sets]))
        network.sharpness.fill_(60.0)
        ids = torch.tensor([[0, 1, 2, 0, 1, 0, 0, 1, 2, 2, 0, 1]])
        said = network(ids)[0]
    # After places with 0 1 before them that have three symbols before: 0 (place 5) and 2 (place 8).
    torch.testing.assert_close(said, torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64), atol=1e-9, rtol=0)


def test_chains_follow_their_rules() -> None:
    chains = Chains((1, 3), tokens=400, alpha=0.5)
    text = chains.draw(2, seed=0)
    for ids, rule in zip(text.ids, text.rules, strict=True):
        hits = torch.zeros(3, 3, 3)
        for place in range(3, 401):
            hits[ids[place - 1], ids[place - 3], ids[place]] += 1
        seen = hits.sum(-1, keepdim=True)
        # The standard error of a share of c counts is at most 1 / (2 sqrt(c)): four of them.
        assert bool(((hits / seen.clamp_min(1) - rule).abs() * seen.sqrt() <= 2 + 1e-9).all())


def test_the_long_run_distribution_is_stationary() -> None:
    rule = rule_of_three(Chains(alpha=1.0).rules(4, seed=0), (1, 2))
    now = long_run(rule)
    torch.testing.assert_close(now.sum((1, 2, 3)), torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(torch.einsum("rabc,rabce->reab", now, rule), now, atol=1e-9, rtol=0)


def test_information_of_a_chain_by_hand() -> None:
    """The next symbol is the last but one, of two equally frequent symbols: lag 2 determines it, other lags do not.

    I({2}) = sum over two values (1/2)^2 (1 / (1/2)) - 2 (1/2)^2 = 1 - 1/2; with another lag beside it values are half
    as frequent, 4 (1/4)^2 2 - 4 (1/4)^2 = 1/4: larger sets pay.
    """
    rules = torch.eye(2, dtype=torch.float64)[None]  # next = parent
    told = information(rules, (2,), degree=2)
    for chosen, wanted in {(): 0.0, (1,): 0.0, (2,): 0.5, (3,): 0.0, (1, 2): 0.25, (2, 3): 0.25, (1, 3): 0.0}.items():
        assert told[chosen] == pytest.approx(wanted, abs=1e-12), chosen


def test_both_blocks_can_be_scanned() -> None:
    ids = Chains(tokens=12).draw(3, seed=0).ids
    survey = attnscope.scan(InductionNetwork(), [{"input_ids": ids}], measures=("entropy", "previous_token"))
    assert {key.measure for key in survey.cells} >= {"entropy"}
    started = InductionNetwork().lag_weights[0, 0]
    assert float(started) == pytest.approx(math.exp(3) / (math.exp(3) + 4 * math.exp(0.1)))


def test_impossible_networks_and_chains_are_refused() -> None:
    with pytest.raises(RefusalError, match="as many heads as lags"):
        InductionNetwork(3, 4, 3)
    with pytest.raises(RefusalError, match="parents at distance 1"):
        Chains((0,))
    with pytest.raises(RefusalError, match="alpha over 0"):
        Chains(alpha=0.0)
