"""Every kind of finding, on surveys with and without the planted effect."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.scan.survey.builder import SurveyBuilder
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.card import Alarm
from attnscope.core.errors import RefusalError
from attnscope.core.finding import Finding
from tests.commands.scan.survey.sample import CARDS, sample_provenance, sample_survey

SAMPLES = np.arange(2)


def planted(
    measure: str,
    means: Sequence[Any],
    *,
    site: str | None = None,
    where: dict[str, Any] | None = None,
    stack: str = "decoder",
    ledger: SurveyBuilder | None = None,
    tokens: int = 64,
) -> Survey:
    """Return a survey in which a measure has these means from block 0 on, in each of two sequences."""
    book = ledger or SurveyBuilder(CARDS)
    place = site or CARDS[measure].sites[0]
    for layer, mean in enumerate(means):
        values = np.array([mean, mean], dtype=np.float64)
        labels = {name: np.broadcast_to(np.asarray(label), values.shape) for name, label in (where or {}).items()}
        book.observe(measure, "value", stack, place, layer, values, labels, SAMPLES)
    return book.survey(sample_provenance(len(means), sequences=2, tokens=tokens))


def only(survey: Survey, thresholds: Thresholds | None = None) -> Finding:
    (finding,) = diagnose(survey, thresholds)
    return finding


def test_sample_survey_has_what_was_planted() -> None:
    findings = diagnose(sample_survey(layers=4, heads=3))
    assert [(f.severity, f.kind, f.layers) for f in findings] == [
        ("to_know", "massive_activation", (1,)),
        ("note", "massive_activation", (3,)),
        ("note", "sink", (2, 3)),
        ("note", "duplicate_heads", (3,)),
        ("note", "identity_heads", (0,)),
        ("note", "previous_token_heads", (0,)),
    ]
    for finding in findings:
        assert finding.sentence.endswith(".")
        assert finding.advice.endswith(".")
        assert finding.citation
        assert finding.threshold_name in Thresholds.__dataclass_fields__
        assert finding.details["measure"] in CARDS
        json.dumps(finding.to_json(), allow_nan=False)


def test_nothing_to_find_in_an_empty_survey() -> None:
    assert diagnose(Survey.empty({}, CARDS)) == ()


def test_tokens_that_became_one_are_wrong_and_said_once() -> None:
    finding = only(planted("relative_residual", [0.8, 0.4, 0.05, 0.004]))
    assert (finding.kind, finding.severity, finding.layers) == ("tokens_became_one", "wrong", (3,))
    assert (
        finding.sentence == "All tokens are practically equal after the last block: they differ by 0.004 of their norm."
    )
    assert (finding.value, finding.threshold, finding.threshold_name) == (0.004, 0.01, "collapse_complete")


def test_collapse_names_its_places_and_where_it_began() -> None:
    finding = only(planted("relative_residual", [0.8, 0.4, 0.05, 0.04]))
    assert (finding.kind, finding.layers) == ("collapse", (2, 3))
    assert finding.sentence == (
        "Tokens become alike entering block 2 and after the last: the relative residual is 0.04 after the last block,"
        " down from 0.8 entering block 0."
    )
    assert (finding.value, finding.threshold, finding.threshold_name) == (0.04, 0.1, "collapse_residual")


def test_collapse_is_to_know_before_tokens_become_one() -> None:
    assert only(planted("relative_residual", [0.8, 0.09, 0.5])).severity == "to_know"
    assert diagnose(planted("relative_residual", [0.8, 0.5, 0.31])) == ()


def test_collapse_by_a_fall_from_the_largest_residual() -> None:
    finding = only(planted("relative_residual", [0.9, 0.8, 0.08]), Thresholds(collapse_residual=0.05))
    assert finding.threshold_name == "collapse_fall"
    assert finding.value == pytest.approx(11.25)
    assert finding.layers == (2,)


def test_collapse_from_the_first_block_names_no_fall() -> None:
    assert "down from" not in only(planted("relative_residual", [0.001, 0.02])).sentence


def test_smoothing() -> None:
    finding = only(planted("token_cosine", [0.1, 0.5, 0.97, 0.99]))
    assert (finding.kind, finding.layers) == ("smoothing", (2, 3))
    assert "0.99 after the last block" in finding.sentence


def test_sinks_are_one_sentence_and_normal_until_most_heads_are() -> None:
    few = only(planted("sink_mass", [[0.1, 0.1, 0.1], [0.5, 0.1, 0.1]], site="self"))
    assert (few.severity, few.heads) == ("note", ((1, 0),))
    many = only(planted("sink_mass", [[0.1, 0.4], [0.5, 0.6], [0.4, 0.9]], site="self"))
    assert many.severity == "to_know"
    assert many.sentence == (
        "In 5 of 6 heads (blocks 0-2) more than 30% of attention goes to the first token; most in head 1 of block 2:"
        " 90%."
    )
    assert diagnose(planted("sink_mass", [[0.2, 0.29]], site="self")) == ()


def test_sinks_on_another_token() -> None:
    book = SurveyBuilder(CARDS)
    planted("sink_mass", [[0.0, 0.5, 0.1]], site="self", ledger=book)
    keys = {"key": [9, 0, 0]}
    survey = planted("most_received", [[0.7, 0.5, 0.4]], site="self", where=keys, ledger=book)
    first, other = diagnose(survey)
    assert (first.kind, first.heads) == ("sink", ((0, 1),))
    assert (other.kind, other.heads) == ("sink_elsewhere", ((0, 0),))
    assert other.sentence == (
        "In 1 of 3 heads (block 0) one key that is not the first token receives more than 30% of all attention;"
        " most in head 0 of block 0: 70% (key 9 in 100% of sequences)."
    )
    assert other.details == {"measure": "most_received", "site": "self", "keys": [9], "key": 9, "sample": 0}
    assert diagnose(planted("most_received", [[0.7]], site="self")) == ()


def test_thresholds_change_findings() -> None:
    survey = planted("sink_mass", [[0.35, 0.1]], site="self")
    assert only(survey).threshold == 0.3
    assert diagnose(survey, Thresholds(sink_mass=0.4)) == ()


def spikes(stream: Sequence[float], middle: Sequence[float] = ()) -> Survey:
    where = {"token": 0, "channel": 7}
    book = SurveyBuilder(CARDS)
    planted("spike", middle, site="middle", where=where, ledger=book)
    return planted("spike", stream, site="stream", where=where, ledger=book)


def test_massive_activation_is_located_to_the_half_block() -> None:
    up, down = diagnose(spikes(stream=[20, 25, 8000, 8100, 40], middle=[21, 27, 8050, 8060]))
    assert up.sentence == (
        "A massive activation appears in block 1: the MLP of block 1 raises the largest entry of the residual stream"
        " from 27 to 8,000 (channel 7, token 0)."
    )
    assert up.details["step"] == "up"
    assert (up.details["block"], up.details["write"]) == (1, "mlp")
    assert (up.details["channel"], up.details["token"]) == (7, 0)
    assert (up.severity, down.severity) == ("to_know", "note")
    assert (up.layers, down.layers) == ((1,), (3,))
    assert up.details["sample"] == 0
    assert (down.details["block"], down.details["step"]) == (3, "down")


def test_a_spike_written_by_attention() -> None:
    (up,) = diagnose(spikes(stream=[20, 900, 900], middle=[800, 900]))
    assert up.layers == (0,)
    assert up.details["write"] == "attention"


def test_a_climb_over_several_half_blocks_is_one_finding() -> None:
    (up,) = diagnose(spikes(stream=[50, 180, 600], middle=[90, 350]))
    assert (up.details["before"], up.details["after"]) == (50, 600)


def test_a_quiet_half_block_does_not_break_a_climb() -> None:
    (down,) = diagnose(spikes(stream=[9000, 9000, 4000, 1500], middle=[9000, 9000, 3990]))
    assert (down.details["before"], down.details["after"]) == (9000, 1500)
    assert down.details["step"] == "down"
    assert "blocks 1-2, by the largest factor the MLP of block 2, lower the largest entry" in down.sentence


def test_a_step_much_smaller_than_later_ones_is_not_reported() -> None:
    levels = [1.0, 30.0, 190.0, 700.0, 100.0, 23_000.0, 23_000.0]
    assert only(spikes(levels)).layers == (4,)
    assert [f.layers for f in diagnose(spikes(levels), Thresholds(spike_share=0.0))] == [(0,), (4,), (3,)]


def test_without_half_blocks_the_block_is_named() -> None:
    finding = only(spikes([10, 10, 5000, 5000]))
    assert "block 1 raises" in finding.sentence
    assert finding.details["write"] == "block"


def test_no_spike_where_activations_grow_slowly_or_stay_small() -> None:
    assert diagnose(spikes([50, 70, 100, 140, 200, 280])) == ()
    assert diagnose(spikes([1, 50, 51])) == ()
    assert len(diagnose(spikes([0, 500, 500]))) == 1


def test_a_spike_that_changes_place_gives_the_share_of_sequences() -> None:
    book = SurveyBuilder(CARDS)
    for layer, size in enumerate((10.0, 5000.0)):
        where = {"channel": np.array([7, 7, 7, 9])}
        book.observe("spike", "value", "decoder", "stream", layer, np.full(4, size), where, np.arange(4))
    assert "(channel 7 in 75% of sequences)" in only(book.survey({})).sentence


def test_uniform_heads_under_a_causal_mask() -> None:
    bound = math.lgamma(65) / 64
    finding = only(planted("entropy", [[bound, 2.0], [2.0, 0.9 * bound]], site="self"))
    assert (finding.kind, finding.heads, finding.severity) == ("uniform_heads", ((0, 0),), "note")
    assert finding.value == pytest.approx(1.0)
    assert finding.details["largest_entropy"] == pytest.approx(np.log(np.arange(1, 65)).mean())


def test_uniform_heads_without_a_mask() -> None:
    survey = planted("entropy", [[4.1, 4.1], [4.1, 2.0]], site="self", stack="encoder")
    survey.provenance["model"]["stacks"] = [{"name": "encoder", "causal": False}]  # tokens of the corpus
    assert only(survey).severity == "to_know"
    assert only(survey).details["largest_entropy"] == math.log(64)


def test_no_uniform_heads_if_the_length_is_unknown() -> None:
    survey = planted("entropy", [[4.5, 2.0]], site="self")  # above ln(64!)/64: another length
    assert diagnose(survey) == ()
    survey.provenance["model"]["stacks"][0]["tokens"] = 2 * 256  # the stack has its own count of tokens
    assert only(survey).kind == "uniform_heads"
    assert diagnose(planted("entropy", [[4.1, 2.0]], site="cross")) == ()
    survey.provenance.clear()
    assert diagnose(survey) == ()


def test_a_corpus_of_images_is_judged_by_the_tokens_of_its_stack() -> None:
    """Two images are two tokens of the corpus, and 2 x 197 of the encoder."""
    images = {"sequences": 2, "tokens": 2}
    patches = [{"name": "encoder", "causal": False, "tokens": 2 * 197}]
    flat = planted("entropy", [[5.25, 2.0]], site="self", stack="encoder")
    sharp = planted("entropy", [[0.1, 0.2]] * 3, site="self", stack="encoder")
    for survey, kind in ((flat, "uniform_heads"), (sharp, "entropy_collapse")):
        survey.provenance["corpus"].update(images)
        survey.provenance["model"]["stacks"] = patches
        assert only(survey).kind == kind
        survey.provenance["model"]["stacks"] = [{"name": "encoder", "causal": False}]
        assert diagnose(survey) == ()  # with one token per sequence there is only one key
    assert diagnose(sharp, Thresholds(entropy_floor=0.5)) == ()


def test_cross_attention_is_judged_by_the_length_of_the_other_stack() -> None:
    survey = planted("entropy", [[math.log(50), 2.0]], site="cross")
    survey.provenance["model"]["stacks"].append({"name": "encoder", "causal": False, "tokens": 2 * 50})
    assert only(survey).details["largest_entropy"] == math.log(50)
    survey.provenance["model"]["stacks"].append({"name": "vision", "causal": False, "tokens": 2 * 50})
    assert diagnose(survey) == ()  # it is unknown which of the two it reads


def test_uniform_attention_over_a_few_tokens_is_no_sink() -> None:
    """H_8 / 8 = 0.34: over eight tokens a uniform head passes 0.3."""
    book = SurveyBuilder(CARDS)
    rows = np.tril(np.ones((8, 8))) / np.arange(1, 9)[:, None]
    share = float(rows[:, 0].mean())
    assert share == pytest.approx(np.diag(rows).mean()) == pytest.approx(0.3397, abs=1e-4)
    for measure in ("sink_mass", "self_attention"):
        planted(measure, [[share, share]], site="self", ledger=book)
    survey = planted("most_received", [[share, 0.35]], site="self", where={"key": [0, 1]}, ledger=book, tokens=8)
    assert diagnose(survey) == ()
    assert diagnose(survey, Thresholds(identity_mass=0.3)) == ()
    survey.provenance.clear()  # without a length there is no baseline
    assert [f.kind for f in diagnose(survey)] == ["sink"]


def test_a_sink_over_a_few_tokens_is_found_above_the_raised_threshold() -> None:
    finding = only(planted("sink_mass", [[0.9, 0.5]], site="self", tokens=8))
    assert finding.heads == ((0, 0),)
    assert finding.threshold == pytest.approx(2 * 0.33973, abs=1e-4)
    assert finding.sentence == (
        "In 1 of 2 heads (block 0) more than 68% of attention goes to the first token; most in head 0 of block 0: 90%."
        " The bar is 68% because over 8 tokens uniform attention alone gives 34%."
    )
    own = only(planted("self_attention", [[0.9, 0.6]], site="self", tokens=8))
    assert own.heads == ((0, 0),)
    assert own.sentence.endswith("(up to 90%). The bar is 68% because over 8 tokens uniform attention alone gives 34%.")


@pytest.mark.parametrize(("tokens", "causal", "found"), [(25, True, 0), (26, True, 1), (6, False, 0), (7, False, 1)])
def test_the_threshold_is_raised_from_half_of_it_on(tokens: int, causal: bool, found: int) -> None:
    survey = planted("sink_mass", [[0.3001, 0.0]], site="self", tokens=tokens)
    survey.provenance["model"]["stacks"][0]["causal"] = causal
    assert len(diagnose(survey)) == found


def test_entropy_collapse() -> None:
    one = only(planted("entropy", [[2.0, 2.0, 2.0], [0.1, 0.2, 2.0], [2.0, 2.0, 0.1], [2.0, 2.0, 2.0]], site="self"))
    assert (one.kind, one.severity, one.layers) == ("entropy_collapse", "to_know", (1,))
    assert one.heads == ((1, 0), (1, 1))
    all_of_them = only(planted("entropy", [[0.1, 0.2]] * 3, site="self"))
    assert all_of_them.severity == "wrong"


def test_entropy_collapse_explained_by_sinks_is_not_wrong() -> None:
    book = SurveyBuilder(CARDS)
    planted("sink_mass", [[0.95, 0.95]] * 3, site="self", ledger=book)
    survey = planted("entropy", [[0.1, 0.2]] * 3, site="self", ledger=book)
    finding = next(f for f in diagnose(survey) if f.kind == "entropy_collapse")
    assert finding.severity == "to_know"
    assert "6 of them with a sink on the first token" in finding.sentence


@pytest.mark.parametrize(("first", "severity"), [(0.95, "note"), (0.6, "to_know"), (0.05, "to_know")])
def test_a_block_whose_heads_are_all_sinks_is_a_note(first: float, severity: str) -> None:
    """A head with 0.6 on the first token is a sink, but attends elsewhere in two rows of five."""
    planted("sink_mass", [[0.95, first], [0.1, 0.1], [0.1, 0.1]], site="self", ledger=(book := SurveyBuilder(CARDS)))
    survey = planted("entropy", [[0.1, 0.2], [2.0, 2.0], [2.0, 2.0]], site="self", ledger=book)
    finding = next(f for f in diagnose(survey) if f.kind == "entropy_collapse")
    assert finding.severity == severity


def test_entropy_is_not_judged_on_sequences_of_two_tokens() -> None:
    assert diagnose(planted("entropy", [[0.1, 0.2]] * 3, site="self", tokens=2)) == ()


def test_identity_and_previous_token_heads() -> None:
    own = only(planted("self_attention", [[0.1, 0.9], [0.6, 0.1]], site="self"))
    assert own.sentence == (
        "In 2 of 4 heads (blocks 0-1) tokens mostly attend to themselves: head 1 of block 0 and head 0 of block 1"
        " (up to 90%)."
    )
    before = only(planted("previous_token", [[0.1, 0.9]], site="self"))
    assert (before.kind, before.heads) == ("previous_token_heads", ((0, 1),))
    assert diagnose(planted("self_attention", [[0.9]], site="cross")) == ()


def test_duplicate_heads_name_their_twin() -> None:
    finding = only(planted("head_overlap", [[0.99, 0.4, 0.99]], site="self", where={"other": [2, 0, 0]}))
    assert "heads 0 and 2 of block 0 (overlap 0.99)" in finding.sentence
    assert finding.details["pairs"] == [[0, 0, 2]]
    assert finding.severity == "to_know"
    assert "most alike: head 0 of" in only(planted("head_overlap", [[0.99, 0.4]], site="self")).sentence
    higher = planted("head_overlap", [[0.98, 0.4, 0.99]], site="self", where={"other": [2, 0, 0]})
    assert "heads 0 and 2 of block 0 (overlap 0.99)" in only(higher).sentence  # the lower head first


def test_nonfinite_is_located_at_its_first_place() -> None:
    book = SurveyBuilder(CARDS)
    planted("token_cosine", [0.1, 0.2, np.nan], ledger=book)
    survey = planted("entropy", [[1.0, 1.0], [1.0, np.inf]], site="self", ledger=book)
    finding = only(survey)
    assert (finding.kind, finding.severity) == ("nonfinite", "wrong")
    assert finding.heads == ((1, 1),)
    assert finding.sentence == (
        "NaN or infinity first appears in the attention of block 1: in 2 of 2 sequences (entropy)."
    )


@pytest.mark.parametrize("site", ["stream", "middle"])
def test_nonfinite_in_the_stream(site: str) -> None:
    finding = only(planted("spike", [1.0, np.nan], site=site))
    assert finding.layers == (1,)
    assert "residual stream" in finding.sentence


def test_each_stack_has_its_own_findings() -> None:
    book = SurveyBuilder(CARDS)
    planted("sink_mass", [[0.5, 0.1, 0.1]], site="self", stack="encoder", ledger=book)
    planted("sink_mass", [[0.5, 0.1, 0.1]], site="self", stack="decoder", ledger=book)
    survey = planted("sink_mass", [[0.5, 0.1, 0.1]], site="cross", stack="decoder", ledger=book)
    tails = [f.sentence.split("(block 0)")[1].split(" more")[0] for f in diagnose(survey)]
    assert tails == [" of the decoder", " of the decoder's cross-attention", " of the encoder"]


def test_the_alarm_on_a_card_is_reported() -> None:
    ledger = SurveyBuilder(CARDS)
    weights = np.array([[-7.0, 0.0, 1.0]])
    ledger.observe("qk_spectrum", "mean", "decoder", "self", 3, weights)
    finding = only(ledger.survey({}))
    assert (finding.kind, finding.severity, finding.heads) == ("alarm", "note", ((3, 0),))
    assert finding.sentence == (
        "Query-key spectrum is below -5 in 1 of 3 heads (block 3) (down to -7): queries and keys repel."
    )


def test_alarms_of_stream_measures_name_layers() -> None:
    from dataclasses import replace

    cards = {"effective_rank": replace(CARDS["effective_rank"], alarm=Alarm("<", 2.0, "few directions are left."))}
    ledger = SurveyBuilder(cards)
    for layer, rank in enumerate((9.0, 1.5, 1.2)):
        ledger.observe("effective_rank", "value", "decoder", "stream", layer, np.array([rank]))
    finding = only(ledger.survey({}))
    assert finding.severity == "to_know"
    assert finding.sentence == (
        "Effective rank is below 2 entering block 1 and after the last (down to 1.2): few directions are left."
    )


def test_thresholds_from_words() -> None:
    chosen = Thresholds.parse(["sink_mass=0.4", " spike_size = 1e3 "])
    assert chosen == Thresholds(sink_mass=0.4, spike_size=1000.0)
    assert Thresholds.parse([]) == Thresholds()


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("sink_mas=0.4", "There is no threshold called 'sink_mas'. Did you mean 'sink_mass'?"),
        ("sink_mass", "needs a number, such as sink_mass=0.3"),
        ("sink_mass=much", "needs a number"),
        ("sink_mass=nan", "needs a number"),
        ("sink_mass=-1", "The threshold sink_mass cannot be -1.0: give a number from 0 to 1, such as 0.3."),
        ("sink_mass=1.5", "from 0 to 1"),
        ("most_heads=2", "from 0 to 1"),
        ("spike_size=inf", "The threshold spike_size cannot be inf: give a number of 0 or more, such as 100."),
        ("entropy_floor=-0.1", "of 0 or more, such as 0.3"),
        ("spike_step=0.5", "of 1 or more, such as 5"),
        ("norm_growth=-3", "of 0 or more, such as 10"),
    ],
)
def test_thresholds_refuse(setting: str, sentence: str) -> None:
    with pytest.raises(RefusalError) as caught:
        Thresholds.parse([setting])
    assert sentence in str(caught.value)


@pytest.mark.parametrize("value", [-1.0, 1.5, math.nan, math.inf])
def test_thresholds_refuse_in_python_too(value: float) -> None:
    with pytest.raises(RefusalError, match="The threshold token_cosine cannot be"):
        Thresholds(token_cosine=value)


@pytest.mark.parametrize(
    "setting", ["sink_mass=0", "sink_mass=1", "spike_size=0", "collapse_fall=1", "norm_growth=1e9"]
)
def test_the_ends_of_a_range_belong_to_it(setting: str) -> None:
    name, _, value = setting.partition("=")
    assert getattr(Thresholds.parse([setting]), name) == float(value)


def test_the_limit_of_norm_growth_has_a_name_and_can_be_changed() -> None:
    from dataclasses import replace

    card = replace(
        CARDS["norm_growth"], of_block=True, alarm=Alarm(">", 10.0, "one block makes tokens ten times longer")
    )
    ledger = SurveyBuilder({"norm_growth": card})
    for layer, growth in enumerate((1.1, 12.0, 1.2)):
        ledger.observe("norm_growth", "value", "decoder", "stream", layer, np.array([growth]))
    survey = ledger.survey({"model": {"weights": "random"}})  # not judged by the ranges of the atlas
    finding = only(survey)
    assert (finding.threshold_name, finding.threshold) == ("norm_growth", 10.0)
    assert finding.sentence.endswith("in block 0 (up to 12): one block makes tokens ten times longer.")
    assert diagnose(survey, Thresholds(norm_growth=20.0)) == ()
    changed = only(survey, Thresholds.parse(["norm_growth=5"]))
    assert changed.sentence == "Norm growth is above 5 in block 0 (up to 12)."


def test_limits_agree_with_the_cards_they_are_named_after() -> None:
    from attnscope.core.registry import findings, measures

    elsewhere = {measure for kind in findings().values() for measure in kind.reads}
    alarms = {n: m.card.alarm.threshold for n, m in measures().items() if m.card.alarm and n not in elsewhere}
    named = {name: limit for name, limit in vars(Thresholds()).items() if name in alarms}
    assert named == {name: alarms[name] for name in named}
    assert {"norm_growth", "head_contribution", "effective_rank", "stable_rank", "contraction"} <= named.keys()


def test_every_kind_of_finding_has_a_card_that_explains_it() -> None:
    from attnscope.core.registry import findings, measures

    kinds = findings()
    assert len({kind.order for kind in kinds.values()}) == len(kinds), "two kinds at one place have no order"
    for name, kind in kinds.items():
        assert kind.name == name
        assert kind.function.__module__ == f"attnscope.findings.{name}"
        assert set(kind.reads) <= set(measures())
        assert kind.summary.endswith(".")
        assert kind.citation
    assert list(kinds)[-1] == "alarm"


def test_findings_are_called_like_their_kind() -> None:
    from attnscope.core.registry import findings

    survey = sample_survey(layers=4, heads=3)
    for name, kind in findings().items():
        assert {finding.kind for finding in kind(survey, Thresholds())} <= {name}
