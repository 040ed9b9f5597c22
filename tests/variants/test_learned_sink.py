"""A learned sink has no effect at its start and is the published one at share 1."""

import torch

from attnscope.core.variant import Size
from attnscope.variants.learned_sink import learned_sink
from tests.variants.calls import heads, inputs, softmax

WHOLE = torch.ones(2, dtype=torch.float64)


def test_the_published_sink_by_its_formula() -> None:
    query, key, value = heads()
    sink = torch.tensor([1.5, -0.5], dtype=torch.float64)
    raised = (0.5 * query @ key.mT).exp()
    expected = raised / (sink.exp()[:, None, None] + raised.sum(-1, keepdim=True)) @ value
    torch.testing.assert_close(learned_sink(inputs(query, key, value), sink=sink, share=WHOLE), expected)


def test_a_low_sink_takes_nothing_and_a_high_one_all() -> None:
    query, key, value = heads()
    seen = torch.ones(9, 9, dtype=torch.bool).tril()
    low = learned_sink(inputs(query, key, value, causal=True), sink=-90 * WHOLE, share=WHOLE)
    torch.testing.assert_close(low, softmax(query, key, seen=seen) @ value)
    high = learned_sink(inputs(query, key, value, causal=True), sink=90 * WHOLE, share=WHOLE)
    assert float(high.abs().max()) < 1e-30


def test_from_its_start_the_share_can_be_trained_at_once() -> None:
    """A sink that starts at a very low logit also keeps the function, but its gradient is tiny."""
    query, key, value = heads()
    begun = {name: one.double().requires_grad_() for name, one in learned_sink.start(Size(2, 4, 8)).items()}
    learned_sink(inputs(query, key, value), **begun).square().sum().backward()
    gradient = begun["share"].grad
    assert gradient is not None
    assert bool((gradient.abs() > 0.1).all())


def test_a_share_that_was_pushed_below_nothing_takes_nothing_and_can_come_back() -> None:
    query, key, value = heads()
    share = torch.tensor([-0.2, 1.3], dtype=torch.float64, requires_grad=True)
    found = learned_sink(inputs(query, key, value), sink=0 * WHOLE, share=share)
    torch.testing.assert_close(found[:, 0], (softmax(query, key) @ value)[:, 0])
    whole = learned_sink(inputs(query, key, value), sink=0 * WHOLE, share=WHOLE)
    torch.testing.assert_close(found[:, 1], whole[:, 1])
    found.square().sum().backward()
    assert share.grad is not None
    assert bool((share.grad != 0).all())
