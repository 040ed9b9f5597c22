"""Judging explanations: areas by hand, order on the planted toy, intervals, words, and the command."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

import attnscope
from attnscope.explaining.perturbing import BINS, STEPS, perturbed
from attnscope.records.faithfulness import Estimate
from attnscope.reporting.faithfulness.words import sentences, verdict
from attnscope.reporting.terminal import print_record
from attnscope.stats.bootstrap import bootstrap_mean
from tests.command import attnscope as command
from tests.explaining.deciding import texts, trained
from tests.reporting.sample_faithfulness import sample_faithfulness


def test_areas_by_hand() -> None:
    """Ten tokens, of which one holds the whole answer: with the right order it goes at the first step, with the wrong
    one
    at the last."""
    vectors, nothing = torch.zeros(10, 1), torch.zeros(10, 1)
    vectors[3] = 1

    def ask(given: dict[str, Tensor]) -> Tensor:
        return given["model"][:, 3, 0]

    right = {"model": torch.eye(10)[3]}
    found = perturbed(ask, {"model": vectors}, {"model": nothing}, right)
    assert found.positive == pytest.approx(0.5 / STEPS)
    assert found.negative == pytest.approx(1 - 0.5 / STEPS)
    assert (found.comprehensiveness, found.sufficiency) == (1.0, 0.0)
    wrong = perturbed(ask, {"model": vectors}, {"model": nothing}, {"model": -right["model"]})
    assert wrong.positive == pytest.approx(1 - 0.5 / STEPS)
    assert wrong.negative == pytest.approx(0.5 / STEPS)
    assert (wrong.comprehensiveness, wrong.sufficiency) == (0.0, 1.0)
    assert len(BINS) == 4


def test_the_bootstrap_holds_the_mean_of_normal_numbers() -> None:
    """Of 200 samples of 40, the true mean is inside about 95 times in 100: 190 +- 3, and 175 is five of these below."""
    rng = np.random.default_rng(0)
    inside = 0
    for seed in range(200):
        _, low, high = bootstrap_mean(rng.normal(1.0, 2.0, 40).tolist(), seed)
        inside += low <= 1.0 <= high
    assert 175 <= inside < 200
    assert bootstrap_mean([3.0]) == (3.0, 3.0, 3.0)
    assert bootstrap_mean([1.0, 2.0, 6.0]) == bootstrap_mean([1.0, 2.0, 6.0])


def test_where_one_token_decides_what_names_it_is_faithful() -> None:
    ids, _, _ = texts(6, 5)
    found = attnscope.evaluate(trained(), [{"input_ids": row[None]} for row in ids], methods="relevance,raw_attention")
    assert [one.name for one in found.methods][-1] == "random"
    for name in ("relevance", "occlusion"):
        apart = found.difference(name, "random")
        assert apart.sure
        assert apart.mean > 0.2
    assert found.texts == 6
    assert found.tokens == 72
    assert {one.name for one in found.methods} == {"relevance", "raw_attention", "occlusion", "random"}


def test_words_say_who_cannot_be_told_apart() -> None:
    found = sample_faithfulness()
    assert verdict(found).sentence.startswith("Occlusion is the most faithful here (gap 0.6")
    assert verdict(found).sentence.endswith("; Relevance cannot be told from it.")
    assert "No better than random numbers here: Rollout." in sentences(found)
    assert "12 texts" in " ".join(sentences(found))
    few = sample_faithfulness(texts=4)
    assert "4 texts are few" in " ".join(sentences(few))
    lost = replace(found, methods=found.methods[2:])
    assert verdict(lost).level == "warning"


def test_a_difference_is_taken_text_by_text() -> None:
    found = sample_faithfulness()
    apart = found.difference("occlusion", "rollout")
    gaps = [a - b for a, b in zip(found.method("occlusion").gaps, found.method("rollout").gaps, strict=True)]
    assert apart.mean == pytest.approx(math.fsum(gaps) / len(gaps))
    assert Estimate(0.1, -0.1, 0.3).sure is False
    with pytest.raises(attnscope.RefusalError, match="was not evaluated"):
        found.method("nobody")


@pytest.mark.parametrize("verbose", [False, True])
def test_the_terminal_keeps_to_its_width(verbose: bool) -> None:
    file = StringIO()
    print_record(sample_faithfulness(), console=Console(width=80, file=file), verbose=verbose)
    assert max(map(len, file.getvalue().splitlines())) <= 80
    assert "Occlusion" in file.getvalue().split("most faithful first")[1]


def test_the_command_judges_a_corpus(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("The dog saw the cat. The cat saw the dog. " * 20)
    out = tmp_path / "out"
    words = ("explain", "pocket", corpus, "--evaluate", "--samples", "2", "--max-tokens", "8", "--method", "relevance")
    done = command(*words, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert {one["name"] for one in said["methods"]} == {"relevance", "occlusion", "random"}
    assert sorted(path.name for path in out.iterdir()) == ["faithfulness.html", "faithfulness.json"]
    refused = command(*words, "--target", "x")
    assert refused.returncode == 2
    assert "leave --target, --against and --position out" in refused.stderr
    missing = command("explain", "pocket", "no such text", "--evaluate")
    assert missing.returncode == 2
    assert "no such text" in missing.stderr
