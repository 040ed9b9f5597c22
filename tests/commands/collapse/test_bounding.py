"""Violated bounds are counted, so that `no violation` means something."""

from dataclasses import replace

import pytest
import torch

from attnscope.commands.collapse.bound_tables import bounds_by_layer, end_to_end
from attnscope.commands.collapse.bounding import (
    OVERFLOWING,
    Bounding,
    Known,
    Reading,
    known_weights,
    reads_other_tokens,
)
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.editing.surgery import CUTS, cut
from attnscope.hf.tapping.padding import attention_inputs
from attnscope.hf.tapping.tap import tap
from attnscope.matrix.collapse_bounds import head_norms
from attnscope.papers.models.nano import Config, Nano

SOUND = Reading(
    layer=0,
    before=1.0,
    after=0.5,
    contraction=0.6,
    strength=0.6,
    tau=0.3,
    residual_before=1.0,
    residual_after=0.4,
    tau_violated=False,
    rounding=1e-14,
    cubic_factor=0.7,
    paper_factor=9.0,
    paper=9.0,
    spread=1.0,
    growth=1.2,
    skip_strength=0.6,
)


def test_a_sound_reading_violates_nothing() -> None:
    assert SOUND.violations == 0
    assert not SOUND.skip_violated
    assert replace(SOUND, after=0.6 + 1e-15).violations == 0  # rounding is no violation


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"contraction": 0.4}, 1),
        ({"cubic_factor": 0.4}, 1),
        ({"contraction": 0.4, "cubic_factor": 0.4}, 2),
        ({"paper": 0.3}, 1),
        ({"paper": 0.3, "spread": 1.3}, 0),  # the theorem's condition is not met: it says nothing
        ({"tau_violated": True}, 1),
        ({"cubic_factor": None, "paper": None, "spread": None}, 0),
    ],
)
def test_every_exceeded_bound_is_counted(changes: dict[str, float | bool | None], count: int) -> None:
    assert replace(SOUND, **changes).violations == count  # type: ignore[arg-type]


@pytest.mark.parametrize(("growth", "violated"), [(0.39, True), (0.41, False), (1.59, False), (1.61, True)])
def test_a_skip_has_a_bound_on_either_side(growth: float, violated: bool) -> None:
    assert replace(SOUND, growth=growth).skip_violated is violated


@torch.no_grad()
def test_overflowing_block_is_skipped_with_a_reason() -> None:
    """Otherwise NaN would be in the table like a measured value."""
    model = Nano(Config(vocab_size=30, width=8, heads=2, layers=3, norm="none"), 0).double()
    batch = {"input_ids": torch.arange(6)[None]}
    found = anatomy(model, batch)
    for layer in (1, 2):
        model.blocks[layer].get_parameter("attention.output.weight").mul_(1e200)
    seen = Bounding(found.stacks[0], known_weights(model, found, found.stacks[0]))
    with cut(model, found, CUTS["san"]), attention_inputs(model, found, seen.took), tap(model, found, seen.receive):
        model(**batch)
    assert [row.layer for row in bounds_by_layer(seen)] == [0, 1]
    assert OVERFLOWING in seen.reasons
    assert end_to_end(seen, "san") == ()


def test_projections_of_normed_tokens_are_recognised() -> None:
    rng = torch.Generator().manual_seed(0)
    tokens = torch.randn(1, 6, 8, generator=rng, dtype=torch.float64)
    pattern = torch.randn(1, 2, 6, 6, generator=rng, dtype=torch.float64).softmax(-1)
    query, key, value = torch.randn(3, 2, 8, 4, generator=rng, dtype=torch.float64)
    output = torch.randn(2, 4, 8, generator=rng, dtype=torch.float64)
    own = Known(query, key, value, output, 0.5, head_norms(query, key, value, output))

    def mixed(read: torch.Tensor) -> torch.Tensor:
        return torch.einsum("hqk,kw,hwd->qhd", pattern[0], read, value) + 0.3  # a bias makes no difference

    epsilon = torch.finfo(torch.float64).eps
    assert not reads_other_tokens(pattern, tokens, mixed(tokens[0]), own, epsilon)
    normed = torch.nn.functional.layer_norm(tokens[0], (8,))
    assert reads_other_tokens(pattern, tokens, mixed(normed), own, epsilon)
