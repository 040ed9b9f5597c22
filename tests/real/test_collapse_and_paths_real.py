"""Collapse, over-smoothing and paths on pretrained weights.

The claim of arXiv:2103.03404 holds: attention alone collapses, the whole model does not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from attnscope.commands.collapse.run import collapse
from attnscope.commands.logit_paths.run import logit_paths
from attnscope.commands.paths.record import Goal, PathReport
from attnscope.commands.paths.run import paths
from attnscope.papers.trials.smoothing import of_model
from tests.pathways.logit_models import check_sums
from tools.fetch_models import unquantised

pytestmark = pytest.mark.real


def test_trained_bert_of_twelve_blocks_collapses_without_skips(material: Callable[[str], Path]) -> None:
    report = collapse(material("rxnfp"), allow_pickle=True, samples=4, max_tokens=64, bound_samples=1)
    assert report.layers == 12
    assert report.curves["san"].mean[-1] < 1e-3
    assert min(report.curves["whole"].mean) > 0.1
    assert report.curves["san"].mean[0] == report.curves["whole"].mean[0]
    assert sum(row.violations for rows in (report.bounds, report.skip_bounds) for row in rows) == 0
    assert len(report.bounds) == len(report.skip_bounds) == 12
    assert all(row.cubic is not None for row in report.bounds)  # recognised as plain logits


def test_trained_bert_of_six_blocks_collapses_without_skips(material: Callable[[str], Path]) -> None:
    report = collapse(material("minilm"), samples=4, max_tokens=48, variants="san,whole", bound_samples=1)
    assert report.curves["san"].mean[-1] < 0.2 * report.curves["whole"].mean[-1]
    assert min(report.curves["whole"].mean) > 0.1
    assert len(report.bounds) == 6
    assert sum(row.violations for row in report.bounds) == 0


def test_minilm_tokens_become_similar_with_depth_and_fusion_reduces_it(material: Callable[[str], Path]) -> None:
    """Measured: .09 at the embedding, .27 after the last block; fused .19 by equal weights, .48 by max."""
    report = of_model(str(material("minilm")), 2, 48, 0)
    similarity, fused = report["similarity"], report["fused"]
    assert len(similarity) == 7
    assert similarity[-1] > similarity[0] + 0.1
    assert fused["gate"] < fused["last"] - 0.03
    assert fused["max"] > fused["last"], "max moves all tokens the same way"


def test_smollm2_moves_italy_to_rome_through_one_head() -> None:
    text = "The capital of Italy is"
    report = paths(unquantised("smollm2"), text, target=" Rome", draws=0, mlp=False, top=2)
    assert PathReport.from_json(report.to_json()) == report  # more paths than 64 bits can count
    assert report.goal == Goal("logit", " Rome", where="after the last token")
    assert report.difference < 1e-10
    assert report.linear_difference < 1e-10
    assert report.lengths[-1].up_to.predicted == " Rome"
    assert len(report.lengths) == 31
    # Over four fifths of the logit come from the 35,506 paths (of 1e30) through at most two heads.
    assert sum(row.paths for row in report.lengths[:3]) == 35_506
    assert 0.8 * report.value < sum(row.value for row in report.lengths[:3]) < report.value
    values = {(layer, head): v for layer, row in enumerate(report.head_values) for head, v in enumerate(row)}
    assert max(values, key=lambda head: values[head]) == (23, 4)
    first = report.top[0]
    assert (first.token, first.heads) == (" Italy", ((23, 4),))
    assert report.lengths[1].without.predicted != " Rome"


@pytest.mark.thorough
def test_smollm2_logits_are_sums_over_what_the_head_reads() -> None:
    text = "The Eiffel Tower stands in Paris. The Eiffel Tower"
    report = logit_paths(unquantised("smollm2"), text, head="12.3")
    check_sums(report)
    assert len(report.sources) == 2 + 12 * 10


def test_minilm_logits_are_sums_through_post_norms_and_biases(material: Callable[[str], Path]) -> None:
    text = "Paris is the capital of France, and Rome is the capital of Italy."
    report = logit_paths(material("minilm"), text, head="4.2", query=3, key=1)
    check_sums(report)
    assert abs(sum(source.key_logit for source in report.sources if source.kind == "biases")) > 0.01


@pytest.mark.parametrize(
    ("name", "text", "words", "why"),
    [
        ("microformer", "2 15 99 3 40 512 77 8", "sequences of 8 tokens that the model wrote itself", "no tokenizer"),
        ("rxnfp", "CC(C)S.CN(C)C=O.Fc1cccnc1F>>CC(C)Sc1ncccc1F", "other orders of the", "of their letters"),
        ("antiberty", "E V Q L V [MASK] S G P E V K K P G", "other orders of the", "its tokenizer"),
    ],
)
def test_models_that_do_not_read_english_get_texts_of_their_own_kind(
    material: Callable[[str], Path], name: str, text: str, words: str, why: str
) -> None:
    report = paths(material(name), text, allow_pickle=True, draws=0, mlp=False, top=1)
    assert report.effects is not None
    assert words in report.effects.reference
    assert any(why in note and "English" in note for note in report.notes)
