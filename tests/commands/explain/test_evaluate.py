"""`evaluate`: areas solved by hand, soft masks, intervals, sentences, and the command."""

import json
import math
from copy import deepcopy
from dataclasses import replace
from io import StringIO
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

import attnscope
from attnscope.commands.evaluate.perturbing import AWAY, BINS, SHARES, STEPS, perturbed, ranks_of, retention, soft_masks
from attnscope.commands.evaluate.record import Estimate, Faithfulness
from attnscope.commands.evaluate.replacing import DRAWN, drawn_tokens
from attnscope.commands.evaluate.run import FAR, FLOORS
from attnscope.commands.evaluate.words import difference_rows, method_rows, verdict
from attnscope.explanations.random import random
from attnscope.reports.terminal import print_record
from tests.command import attnscope as command
from tests.commands.explain.deciding import texts, trained
from tests.reports.sample_faithfulness import sample_faithfulness


def test_areas_by_hand() -> None:
    """One of ten tokens holds the answer. The right order removes it at the first step, the wrong one at the last."""
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


def test_retention_keeps_the_same_share_for_every_method() -> None:
    """The mean of p is the share, up to rounding of 30 float64 terms; p grows with the score and stays in 0 to 1."""
    rng = torch.Generator().manual_seed(0)
    flat, one = torch.zeros(9), torch.eye(9)[4]
    drawn = [torch.randn(int(n), generator=rng) ** 3 for n in torch.randint(2, 30, (40,), generator=rng)]
    for scores in (flat, one, torch.arange(1, 10).float(), *drawn, *(each.clamp_min(0) for each in drawn)):
        ranks = ranks_of(scores, rng)
        assert ranks.sort().values.tolist() == list(range(len(scores)))
        assert bool((scores[ranks.argsort()].diff() >= 0).all())
        for share in SHARES:
            p = retention(ranks, share)
            assert float(p.mean()) == pytest.approx(share, abs=1e-12)
            assert 0 <= float(p.min()) <= float(p.max()) <= 1
            assert bool((p[scores.argsort(stable=True)].diff() >= -1e-12).all()) or len(scores.unique()) < len(scores)
    assert len({tuple(ranks_of(flat, rng).tolist()) for _ in range(9)}) > 1
    assert {int(ranks_of(one, rng)[4]) for _ in range(9)} == {8}
    assert retention(torch.arange(4), 0.25).tolist() == pytest.approx([0, 1 / 6, 2 / 6, 3 / 6])
    assert retention(torch.arange(4), 0.5).tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert retention(torch.arange(4), 0.75).tolist() == pytest.approx([1 / 2, 4 / 6, 5 / 6, 1])
    assert retention(torch.arange(1), 0.25).tolist() == [0.25]


def test_random_orders_have_no_soft_gap_on_average() -> None:
    """Over all 120 orders of five tokens, `kept` and `dropped` give the same sum up to rounding (360 terms below 2),
    for an answer that is far from linear."""
    weights = torch.tensor([3.0, 1.0, 0.0, 2.0, 0.5], dtype=torch.float64)

    def answer(p: Tensor) -> float:
        return float((p * weights).sum() ** 4 / 1e3 + p[0] ** 4 * (1 - p[2]) + p[3].sqrt())

    orders = [torch.tensor(order) for order in permutations(range(5))]
    kept, dropped = (
        math.fsum(answer(p if side else 1 - p) for order in orders for s in SHARES for p in [retention(order, s)])
        for side in (True, False)
    )
    assert kept == pytest.approx(dropped, rel=360 * 2.0**-50)
    assert sorted(SHARES) == sorted(1 - share for share in SHARES)


def test_soft_masks_use_other_random_numbers_than_random_explanations() -> None:
    """The k-th random order is drawn from seed + k * FAR, which must never give the numbers of the soft masks."""
    for seed in (0, 1, 7):
        generator = torch.Generator().manual_seed(seed + AWAY)
        of_masks = torch.rand(64, generator=generator)
        for turn in range(FLOORS):
            numbers = random(embedding={"model": torch.zeros(64, 1)}, seed=seed + turn * FAR)["model"]
            assert not torch.equal(of_masks, numbers)


def test_soft_masks_follow_probabilities_and_share_random_numbers() -> None:
    """Entries are kept with probability p: of 4 x 2000 entries with p = 1/2 a share within 5 sd = 0.03."""
    scores = torch.tensor([0.0, 1.0, 2.0, 3.0])
    kept, dropped = soft_masks(scores, 2000, seed=3)
    middle = kept[len(kept) // 2].float()
    assert float(middle.mean()) == pytest.approx(0.5, abs=0.03)
    assert middle.mean(1).tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1], abs=0.06)
    assert dropped[len(kept) // 2].float().mean(1).tolist() == pytest.approx([1, 2 / 3, 1 / 3, 0], abs=0.06)
    again, _ = soft_masks(scores, 2000, seed=3)
    other, _ = soft_masks(scores, 2000, seed=4)
    assert torch.equal(kept, again)
    assert not torch.equal(kept, other)
    # Both methods use the same random numbers: where one keeps more of a token, it keeps all that the other kept.
    reverse, _ = soft_masks(-scores, 2000, seed=3)
    assert bool((reverse[:, :2] >= kept[:, :2]).all())  # their ranks were 0 and 1, and are now 3 and 2


def test_soft_measures_by_hand() -> None:
    """One token holds the whole answer, in 64 equal entries. For the shares 1/4, 1/2 and 3/4 the right explanation
    keeps 1/2, all and all of it; the wrong one keeps 0, 0 and 1/2. The random half of 64 entries, drawn twice and
    averaged over three shares, is 1/6 +- 0.015."""
    vectors, nothing = torch.zeros(4, 64), torch.zeros(4, 64)
    vectors[3] = 1 / 64

    def ask(given: dict[str, Tensor]) -> Tensor:
        return given["model"][:, 3].sum(-1)

    right = perturbed(ask, {"model": vectors}, {"model": nothing}, {"model": torch.eye(4)[3]})
    assert right.soft_sufficiency == pytest.approx(1 / 6, abs=0.075)
    assert right.soft_comprehensiveness == pytest.approx(5 / 6, abs=0.075)
    wrong = perturbed(ask, {"model": vectors}, {"model": nothing}, {"model": -torch.eye(4)[3]})
    assert wrong.soft_sufficiency == pytest.approx(5 / 6, abs=0.075)
    assert wrong.soft_comprehensiveness == pytest.approx(1 / 6, abs=0.075)


def test_methods_that_find_the_deciding_token_are_faithful() -> None:
    ids, _, _ = texts(24, 5)
    found = attnscope.evaluate(trained(), [{"input_ids": row[None]} for row in ids], methods="relevance,raw_attention")
    assert [one.name for one in found.methods][-1] == "random"
    for name in ("relevance", "occlusion"):
        apart = found.difference(name, "random")
        assert apart.sure
        assert apart.mean > 0.2
    assert found.method("relevance").soft_gap.mean > found.method("random").soft_gap.mean + 0.2
    assert found.texts == 24
    assert found.accuracy is None
    assert found.tokens == 288
    assert {one.name for one in found.methods} == {"relevance", "raw_attention", "occlusion", "random"}


def test_sentences_name_differences_that_may_be_chance() -> None:
    found = sample_faithfulness()
    assert verdict(found).sentence.startswith("Undecided: Occlusion has the widest gap (0.6")
    assert verdict(found).sentence.endswith("; its lead over Relevance may be chance.")
    alone = replace(found, methods=(found.methods[0], *found.methods[2:]))
    assert verdict(alone).sentence.startswith("Occlusion is the most faithful here (gap 0.6")
    assert "Not significantly better than random numbers here: Rollout." in found.sentences()
    assert any(one.startswith("4 of 6 differences between methods are real") for one in found.sentences())
    assert [line[1] for line in method_rows(found)] == ["1-2", "1-2", "3-4", "3-4"]
    assert {line[:2] for line in difference_rows(found)} == {
        (better, worse) for better in ("Occlusion", "Relevance") for worse in ("Rollout", "Random")
    }
    assert "24 texts" in " ".join(found.sentences())
    few = sample_faithfulness(texts=8)
    assert "8 texts are too few to be sure of a single interval" in " ".join(few.sentences())
    assert verdict(few).sentence == "Undecided: 8 texts are too few to be sure of any difference: give 16 or more."
    assert difference_rows(few) == []
    cut = replace(found, documents=(0,) * 24, accuracy=Estimate(0.75, 0.5, 1.0))
    assert "All texts come from one document, so these results hold for other parts of it" in " ".join(cut.sentences())
    assert "The model names the true class of 75% (50% to 100%) of these texts." in cut.sentences()
    lost = replace(found, methods=found.methods[2:])
    assert verdict(lost).level == "warning"


def test_verdict_needs_a_method_better_than_random_numbers() -> None:
    """One of many methods is above 0 by chance, so its own interval is not enough."""
    found = sample_faithfulness()
    *_, rollout, floor = found.methods
    lucky = replace(rollout, gap=Estimate(0.05, 0.01, 0.09))
    assert lucky.gap.sure
    lost = verdict(replace(found, methods=(lucky, floor)))
    assert (lost.level, "no method is surely better than random numbers" in lost.sentence) == ("warning", True)
    assert verdict(replace(found, methods=(found.methods[0], floor))).level == "note"


@pytest.mark.parametrize("several", [2, 15, 16])
def test_few_documents_are_too_few_for_any_difference(several: int) -> None:
    """Texts of one document are alike, so many texts from fifteen documents count as fifteen."""
    found = replace(sample_faithfulness(48), documents=tuple(text % several for text in range(48)))
    assert any(difference.real for difference in found.comparisons()) is (several == 16)
    warning = f"Undecided: 48 texts of {several} documents are too few to be sure of any difference"
    assert verdict(found).sentence.startswith(warning) is (several < 16)
    assert not found.difference("occlusion", "random").sure
    assert sample_faithfulness(24).difference("occlusion", "random").sure


def test_a_method_judged_by_its_own_operation_is_never_the_best() -> None:
    found = sample_faithfulness()
    own = replace(found, methods=(replace(found.methods[0], own_test=True), *found.methods[1:]))
    assert own.best.name == "relevance"
    assert verdict(own).sentence.startswith("Relevance is the most faithful here (gap 0.6")
    assert any("judged by its own operation" in sentence for sentence in own.sentences())
    assert method_rows(own)[0][0] == "Occlusion (own test)"
    assert Faithfulness.from_json(json.loads(json.dumps(own.to_json()))) == own


def test_every_text_given_is_judged_once() -> None:
    given = [
        f"The {noun} saw the {other} " * 8 for noun in ("dog", "cat", "man") for other in ("sea", "sun", "sky", "ox")
    ]
    found = attnscope.evaluate("pocket", given, methods="rollout", max_tokens=12)
    assert found.documents == tuple(range(12))
    fewer = attnscope.evaluate("pocket", given, methods="rollout", max_tokens=12, samples=5)
    assert len(set(fewer.documents)) == fewer.texts == 5


def test_replacements_are_other_likely_tokens() -> None:
    """The model is certain of token 3 after every token: where 3 stands, another token is drawn. 5 is special."""
    logits = torch.full((4, 6), -3.0)
    logits[:, 3], logits[:, 5] = 9.0, 8.0
    ids = torch.tensor([1, 3, 2, 4])
    drawn = drawn_tokens(logits, ids, [5], 0)
    assert drawn.shape == (2, 4)
    assert bool((drawn[:, [0, 2, 3]] == 3).all())  # p = 1 - 3e-5 without token 5
    assert not bool((drawn == ids).any() | (drawn == 5).any())
    assert torch.equal(drawn, drawn_tokens(logits, ids, [5], 0))


def test_special_tokens_are_not_removed() -> None:
    """The answer is in token 0, which may not be removed: no order changes it."""
    vectors, nothing = torch.zeros(6, 1), torch.zeros(6, 1)
    vectors[0] = 1
    free = {"model": torch.tensor([False, *[True] * 5])}
    asked = []

    def ask(given: dict[str, Tensor]) -> Tensor:
        asked.append(given["model"])
        return given["model"][:, 0, 0]

    found = perturbed(ask, {"model": vectors}, {"model": nothing}, {"model": torch.arange(6.0)}, free=free)
    assert found.positive == found.negative == 1
    assert found.log_gap == 0
    assert bool((torch.cat(asked)[:, 0] == 1).all())


def test_log_gap_by_hand() -> None:
    """Each of ten tokens that is removed in the right order halves the answer once, at the first step."""
    vectors, nothing = torch.zeros(10, 1), torch.zeros(10, 1)
    vectors[3] = 1

    def ask(given: dict[str, Tensor]) -> Tensor:
        return torch.exp(given["model"][:, 3, 0] - 2)

    found = perturbed(ask, {"model": vectors}, {"model": nothing}, {"model": torch.eye(10)[3]})
    # The log is 1 higher with the token: for 9.5 of 10 steps in the wrong order, for 0.5 in the right one.
    assert found.log_gap == pytest.approx(0.9, abs=1e-6)


def test_the_judge_replaces_by_likely_tokens_unless_told_otherwise() -> None:
    given = ["The dog saw the cat in the", "A man went to the house of"]
    drawn = attnscope.evaluate("pocket", given, methods="rollout")
    assert drawn.baseline == DRAWN
    assert not any(method.own_test for method in drawn.methods)
    assert all(method.log_gap is not None for method in drawn.methods)
    neutral = attnscope.evaluate("pocket", given, methods="rollout", replacement="neutral")
    assert "mean of all vectors" in neutral.baseline
    assert [method.name for method in neutral.methods if method.own_test] == ["occlusion"]
    with pytest.raises(attnscope.RefusalError, match="replacement"):
        attnscope.evaluate("pocket", given, replacement="noise")


def test_a_copy_in_another_precision_is_told() -> None:
    ids, _, _ = texts(2, 5)
    batches = [{"input_ids": row[None]} for row in ids]
    double = deepcopy(trained()).double()
    found = attnscope.evaluate(double, batches, methods="rollout")
    assert found.dtype == "float32"
    told = "The model in memory was copied from float64 to float32: pass `dtype='auto'` to keep its precision."
    assert told in found.notes
    assert told in attnscope.explain(double, batches[0], methods="rollout").notes
    kept = attnscope.explain(double, batches[0], methods="rollout", dtype="auto")
    assert kept.dtype == "float64"
    assert told not in kept.notes


def test_equal_methods_seldom_differ_on_few_documents() -> None:
    """Two equal methods on three documents of eight texts each, with correlation 0.8 within a document. Drawn text by
    text, more than half of such experiments would find a real difference."""
    rng = np.random.default_rng(0)
    documents = tuple(text // 8 for text in range(24))
    base = sample_faithfulness()
    for _ in range(5):
        drawn = [0.8**0.5 * rng.normal(size=3)[list(documents)] + 0.2**0.5 * rng.normal(size=24) for _ in base.methods]
        methods = tuple(replace(one, gaps=tuple(row.tolist())) for one, row in zip(base.methods, drawn, strict=True))
        found = replace(base, methods=methods, documents=documents)
        assert not any(each.real for each in found.comparisons())


def test_difference_is_paired_by_text() -> None:
    found = sample_faithfulness()
    apart = found.difference("occlusion", "rollout")
    gaps = [a - b for a, b in zip(found.method("occlusion").gaps, found.method("rollout").gaps, strict=True)]
    assert apart.mean == pytest.approx(math.fsum(gaps) / len(gaps))
    assert Estimate(0.1, -0.1, 0.3).sure is False
    with pytest.raises(attnscope.RefusalError, match="was not evaluated"):
        found.method("nobody")


@pytest.mark.parametrize("verbose", [False, True])
def test_terminal_is_at_most_80_columns_wide(verbose: bool) -> None:
    file = StringIO()
    print_record(sample_faithfulness(), console=Console(width=80, file=file), verbose=verbose)
    assert max(map(len, file.getvalue().splitlines())) <= 80
    assert "Occlusion" in file.getvalue().split("most faithful first")[1]


def test_command_judges_a_corpus(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("The dog saw the cat. The cat saw the dog. " * 20)
    out = tmp_path / "out"
    words = ("explain", "pocket", corpus, "--evaluate", "--samples", "2", "--max-tokens", "8", "--method", "relevance")
    done = command(*words, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert {one["name"] for one in printed["methods"]} == {"relevance", "occlusion", "random"}
    assert sorted(path.name for path in out.iterdir()) == ["faithfulness.html", "faithfulness.json"]
    refused = command(*words, "--target", "x")
    assert refused.returncode == 2
    assert "omit --target, --against, --position" in refused.stderr
    missing = command("explain", "pocket", "no such text", "--evaluate")
    assert missing.returncode == 2
    assert "no such text" in missing.stderr
