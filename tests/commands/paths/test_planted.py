"""Heads planted by hand are named in the headline, with their roles, and no head that changes nothing is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnscope.commands.paths.headline import verdict
from attnscope.commands.paths.record import PathReport
from attnscope.commands.paths.run import paths
from tests.commands.paths.planted import HEADS, SIZE, Planted, copy_suppression, induction, query_mover

QUICK: dict[str, Any] = {"draws": 0, "mlp": False, "top": 1}


def named(report: PathReport) -> set[tuple[int, int]]:
    """Return all heads that the headline names."""
    said = verdict(report).sentence
    found = set()
    for block, heads in re.findall(r"block (\d+) heads? (\d+(?:(?:, | and )\d+)*)", said):
        found |= {(int(block), int(head)) for head in re.findall(r"\d+", heads)}
    return found


def without(planted: Planted, heads: set[tuple[int, int]], report: PathReport) -> float:
    """Return the probability of the answer if heads are replaced, by plain hooks, by their means over the text."""
    model, ids = planted.model.double(), torch.tensor([[int(word) for word in planted.text.split()]])
    handles = []
    for block, head in heads:

        def hook(_: Any, args: tuple[torch.Tensor, ...], head: int = head) -> tuple[torch.Tensor, ...]:
            changed = args[0].clone()
            mine = slice(SIZE * head, SIZE * (head + 1))
            changed[..., mine] = 0
            return (changed,)

        handles.append(model.transformer.h[block].attn.c_proj.register_forward_pre_hook(hook))
    with torch.no_grad():
        chance = float(model(input_ids=ids).logits[0, -1].softmax(-1)[planted.answer])
    for handle in handles:
        handle.remove()
    return chance


def check(make: Callable[..., Planted], seed: int, noise: float) -> tuple[Planted, PathReport]:
    planted = make(seed, noise)
    report = paths(planted.model, planted.text, target=str(planted.answer), effects="zero", **QUICK)
    own = without(planted, set(), report)
    for head in named(report):  # checked by a plain hook
        assert abs(without(planted, {head}, report) / own - 1) > 0.1, verdict(report).sentence
    return planted, report


def both_halves(seed: int, noise: float) -> None:
    planted, report = check(induction, seed, noise)
    said = verdict(report).sentence
    assert "induction circuit" in said
    assert f"block {planted.first[0]} head {planted.first[1]} writes where" in said
    assert {planted.first, planted.second} <= named(report)
    assert report.effects is not None
    effects = {one.place: one for one in report.effects.heads}
    first = effects[planted.first]
    assert first.patterns is not None
    assert first.values is not None
    assert first.patterns > 3 * abs(first.values)
    edge = report.effects.edges[0]
    assert (edge.sender, edge.reader, edge.by) == (planted.first, planted.second, "key")


def moved_query(seed: int, noise: float) -> None:
    planted, report = check(query_mover, seed, noise)
    said = verdict(report).sentence
    block, head = planted.second
    assert f"it moves where block {block} head {head} looks" in said
    assert {planted.first, planted.second} <= named(report)
    assert report.effects is not None
    edge = report.effects.edges[0]
    assert (edge.sender, edge.reader, edge.by) == (planted.first, planted.second, "query")


def suppression(seed: int, noise: float) -> None:
    planted, report = check(copy_suppression, seed, noise)
    said = verdict(report).sentence
    assert "No single head carries it; it would be likelier without" in said
    assert named(report) == {planted.second}


@pytest.mark.parametrize("test", [both_halves, moved_query, suppression])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_planted_circuit_is_named(test: Callable[[int, float], None], seed: int) -> None:
    test(seed, 0.02)


@pytest.mark.thorough
@pytest.mark.parametrize("test", [both_halves, moved_query, suppression])
@pytest.mark.parametrize("noise", [0.01, 0.04])
def test_circuits_in_twenty_random_models_are_named(test: Callable[[int, float], None], noise: float) -> None:
    for seed in range(20):
        test(seed, noise)


def test_in_a_model_without_a_circuit_no_head_is_named() -> None:
    planted = copy_suppression(3, 0.005)
    block, head = planted.second
    with torch.no_grad():
        planted.model.transformer.h[block].attn.c_proj.weight[SIZE * head : SIZE * (head + 1)] = 0
    report = paths(planted.model, planted.text, effects="zero", **QUICK)
    assert "No single head carries it: the largest effect is that of" in verdict(report).sentence
    assert report.effects is not None
    assert not report.effects.named
    assert len(report.effects.heads) == 3 * HEADS


def test_heads_that_back_each_other_up_are_taken_out_together() -> None:
    """Two equal induction heads: without one the other still answers."""
    planted = induction(1, 0.005)
    block, head = planted.second
    other = (head + 1) % HEADS
    attention = planted.model.transformer.h[block].attn
    mine, twin = (slice(SIZE * one, SIZE * (one + 1)) for one in (head, other))
    with torch.no_grad():
        attention.c_proj.weight[mine] *= 4.0  # each alone gives the answer all its probability
        attention.c_proj.weight[twin] = attention.c_proj.weight[mine]
        for part in range(3):
            columns = attention.c_attn.weight[:, 4 * SIZE * part : 4 * SIZE * (part + 1)]
            columns[:, twin] = columns[:, mine]
        first = planted.model.transformer.h[planted.first[0]].attn
        noted = slice(SIZE * planted.first[1], SIZE * (planted.first[1] + 1))
        double = (planted.first[1] + 1) % HEADS
        spare = slice(SIZE * double, SIZE * (double + 1))
        first.c_proj.weight[spare] = first.c_proj.weight[noted]
        for part in range(3):
            columns = first.c_attn.weight[:, 4 * SIZE * part : 4 * SIZE * (part + 1)]
            columns[:, spare] = columns[:, noted]
    report = paths(planted.model, planted.text, effects="zero", **QUICK)
    assert report.effects is not None
    said = verdict(report).sentence
    assert "No single head carries it; taking out block" in said
    assert "together leaves" in said
    (some,) = report.effects.sets
    assert len(some.heads) == 2
    assert report.effects.notable(some)
