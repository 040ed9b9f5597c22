"""Findings on weights that stand out: untrained blocks, lost precision, copies."""

from __future__ import annotations

import math

import pytest

from attnscope.commands.scan.survey.trial import OddWeight
from tests.commands.scan.survey.tried import TWO, found, healthy, only, parts


def random_block(layer: int, ratio: float = 1.03, stack: str = "decoder") -> OddWeight:
    return OddWeight("", "random", ratio, stack, layer)


def test_blocks_that_look_untrained() -> None:
    finding = only("untrained_block", healthy(weights=(random_block(2),)))
    assert finding.sentence == (
        "Block 2 looks untrained: the largest singular value of every matrix there is at most 1.03 times that of a"
        " random matrix."
    )
    assert (finding.severity, finding.layers, finding.value, finding.threshold) == ("wrong", (2,), 1.03, 1.1)
    several = only("untrained_block", healthy(weights=(random_block(2), random_block(3, 1.05, "decoder"))))
    assert several.sentence.startswith("Blocks 2-3 look untrained: ")
    assert several.value == 1.05


@pytest.mark.parametrize(("ratio", "speaks"), [(1.0999, True), (1.1, False), (math.nan, False)])
def test_borders_of_untrained_blocks(ratio: float, speaks: bool) -> None:
    assert bool(found("untrained_block", healthy(weights=(random_block(2, ratio),)))) == speaks


def test_a_model_that_is_random_as_a_whole_has_no_untrained_block() -> None:
    whole = tuple(random_block(layer) for layer in range(4))
    assert found("untrained_block", healthy(weights=whole)) == []
    assert found("untrained_block", healthy(weights=whole, parts=())) == []  # no part could be tried
    assert found("untrained_block", healthy(weights=whole[:1]), random=True) == []


def test_untrained_blocks_are_counted_in_their_stack() -> None:
    whole = tuple(random_block(layer, stack="encoder") for layer in range(4))
    finding = only("untrained_block", healthy(weights=(*whole, random_block(1))), TWO)
    assert finding.sentence.startswith("Block 1 of the decoder looks untrained: ")


def grid(bits: float, layer: int = 2, name: str = "a.weight", stack: str = "decoder") -> OddWeight:
    return OddWeight(name, "grid", bits, stack, layer)


def test_a_quantised_model_is_to_know() -> None:
    finding = only("lost_precision", healthy(weights=(OddWeight("", "grid", 4.0, share=0.96),)))
    assert finding.sentence == (
        "96% of the weight matrices of blocks lie on a grid of 4 bits: 32 neighbouring entries have at most 16"
        " different values."
    )
    assert (finding.severity, finding.stack, finding.layers) == ("to_know", "decoder", ())
    assert finding.advice.startswith("These weights were quantised: compare the loss")


def test_fewer_bits_in_a_few_blocks_are_wrong() -> None:
    common = OddWeight("", "grid", 4.0, share=0.9)
    finding = only("lost_precision", healthy(weights=(common, grid(3.0), grid(2.0, name="b.weight"))))
    assert finding.sentence == (
        "2 weight matrices of block 2 lie on coarse grids, the coarsest of 2 bits: 32 neighbouring entries have at most"
        " 4 different values there."
    )
    assert (finding.severity, finding.layers, finding.value, finding.threshold) == ("wrong", (2,), 2.0, 4.0)
    assert finding.details == {"parameters": ["a.weight", "b.weight"], "block": 2}
    assert finding.advice.startswith("Load these weights again")


def test_few_bits_in_most_blocks_are_the_precision_of_the_model() -> None:
    whole = only("lost_precision", healthy(weights=(OddWeight("", "grid", 2.0, share=0.9), grid(3.0))))
    assert (whole.severity, whole.value, whole.layers) == ("to_know", 2.0, ())
    many = only("lost_precision", healthy(weights=(grid(3.0, 1), grid(3.0, 2))))  # of four blocks
    assert (many.severity, many.layers) == ("to_know", (1, 2))
    assert many.sentence.startswith("2 weight matrices of blocks 1-2 lie on a grid of 3 bits: ")


@pytest.mark.parametrize(("bits", "severity"), [(4.0, "to_know"), (math.log2(12), "to_know"), (math.log2(11), "wrong")])
def test_borders_of_bits(bits: float, severity: str) -> None:
    finding = only("lost_precision", healthy(weights=(grid(bits),)))
    assert finding.severity == severity
    assert finding.sentence.startswith("1 weight matrix of block 2 lies on a grid of ")
    assert finding.sentence.endswith(f"at most {2**bits:.0f} different values.")


def test_two_matrices_of_a_block_below_four_bits_are_wrong_and_one_is_not() -> None:
    bits = math.log2(15)
    together = only("lost_precision", healthy(weights=(grid(bits), grid(bits, name="b.weight"))))
    assert together.severity == "wrong"
    apart = only("lost_precision", healthy(weights=(grid(bits, 0),)))
    assert apart.severity == "to_know"


def test_coarse_weights_are_named_by_stack() -> None:
    trial = healthy(weights=(grid(3.0, 1, stack="encoder"), grid(2.0)), parts=(*parts("encoder"), *parts()))
    several = found("lost_precision", trial, TWO)
    assert [(each.stack, each.layers) for each in several] == [("encoder", (1,)), ("decoder", (2,))]
    assert several[0].sentence.startswith("1 weight matrix of block 1 of the encoder lies on a grid of 3 bits")


def copy(layer: int, name: str, of: str, stack: str = "decoder") -> OddWeight:
    return OddWeight(name, "copy", 1.0, stack, layer, of=of)


def test_copied_blocks() -> None:
    finding = only("copied_block", healthy(weights=(copy(3, "blocks.3.w", "blocks.2.w"),)))
    assert finding.sentence == "1 weight matrix of block 3 is an exact copy: blocks.3.w equals blocks.2.w."
    assert (finding.severity, finding.layers, finding.value) == ("wrong", (3,), 1.0)
    assert "written into two places" in finding.advice
    several = only("copied_block", healthy(weights=(copy(3, "b.3.w", "b.2.w"), copy(3, "b.3.v", "b.2.v"))))
    assert several.sentence == "2 weight matrices of block 3 are exact copies: b.3.w equals b.2.w."


def test_copies_are_named_by_stack_and_other_oddities_are_not_copies() -> None:
    trial = healthy(weights=(copy(1, "e.1", "e.0", "encoder"), copy(3, "d.3", "d.2"), grid(4.0)))
    said = [each.sentence for each in found("copied_block", trial, TWO)]
    assert said == [
        "1 weight matrix of block 1 of the encoder is an exact copy: e.1 equals e.0.",
        "1 weight matrix of block 3 of the decoder is an exact copy: d.3 equals d.2.",
    ]
    assert found("copied_block", healthy(weights=(OddWeight("w", "zero", 0.5, "decoder", 1),))) == []
