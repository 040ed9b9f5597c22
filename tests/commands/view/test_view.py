"""`view` equals eager attention for all kinds of attention, and refuses wrong maps."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import attnscope
from attnscope.commands.scan.survey.survey import Survey
from attnscope.commands.view.choosing import Choice, chosen
from attnscope.commands.view.maps import layer_maps, row_blocks
from attnscope.commands.view.record import STEPS, View
from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.loading.classes import with_plain_experts
from attnscope.hf.tapping.tap import tap
from attnscope.matrix.dense import dense_pattern
from attnscope.matrix.scores import Scores
from tests.hf.families import FAMILIES
from tests.specimens import byte_tokenizer, tiny_llama, tiny_t5

BY_NAME = {family.name: family for family in FAMILIES}
TEXT = "Which head looks where?"
# What eager attention hands out, and the part of a view that it is.
ATTENTIONS = {
    "model": "attentions",
    "encoder": "encoder_attentions",
    "decoder": "decoder_attentions",
    "decoder cross": "cross_attentions",
}


def allowed(weights: np.ndarray) -> np.ndarray:
    """Half a step of 1/255 of the row's largest weight. Both sides are computed in float64; what is kept is float32,
    whose rounding is 2^-24 of a weight below 1: of the scale, of the step, and of its product with the code."""
    bound: np.ndarray = weights.max(-1, keepdims=True) / (2 * STEPS) + 2.0**-22
    return bound


def given(name: str, tokens: int = 11) -> dict[str, Any]:
    ids = torch.arange(3, 3 + tokens)[None] * 5 % 61
    return {"input_ids": ids, "decoder_input_ids": ids[:, :6]} if name == "T5" else {"input_ids": ids}


# Grouped heads, a sliding window, soft-capped logits, learned sinks, and position bias with cross-attention.
@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama", "Mistral", "Gemma2", "gpt_oss", "T5"])
def test_maps_equal_eager_attention(name: str) -> None:
    model: Any = BY_NAME[name].model()
    with_plain_experts(model)  # fused ones know no float64
    model.double()
    view = attnscope.view(model, given(name))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        eager = model(**given(name), output_attentions=True)
    compared = 0
    for part in view.parts:
        for layer, weights in enumerate(getattr(eager, ATTENTIONS[part.name])):
            own = weights[0].numpy()
            for head, expected in enumerate(own):
                assert (np.abs(view.attention(layer, head, part.name) - expected) <= allowed(expected)).all()
                compared += 1
            mean = view.attention(layer, part=part.name)
            assert (np.abs(mean - own.mean(0)) <= allowed(own).mean(0)).all()  # a mean of errors
    assert compared == len(view.heads) > 0
    assert 0 < view.error <= 1 / (2 * STEPS) + 2.0**-22


def look(text: Any = TEXT, **options: Any) -> View:
    return attnscope.view(tiny_llama(), text, tokenizer=byte_tokenizer(), **options)


@pytest.fixture(scope="module")
def view() -> View:
    return look()


def test_row_blocks_add_up_to_the_whole_pattern() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, heads, 300, 8, generator=generator).double() for heads in (4, 2))
    scores = Scores(query, key, 0.5, causal=True, window=90)
    blocks = list(row_blocks(scores))
    assert len(blocks) > 1
    made = np.zeros((4, 300, 300))
    for head, row, block in blocks:
        made[head : head + len(block), row : row + block.shape[1]] = block
    # float64: sums of 90 terms below 1, and exponentials of logits below 20
    assert np.abs(made - dense_pattern(scores)[0].numpy()).max() < 1e-12
    assert (made[dense_pattern(scores)[0].numpy() == 0] == 0).all()


def test_shares_are_means_over_rows(view: View) -> None:
    weights = view.attention(1, 2)
    head = next(one for one in view.heads if (one.layer, one.head) == (1, 2))
    rows = len(weights)
    # every weight is within 1/510 of the one that the share was taken of
    assert head.first == pytest.approx(weights[:, 0].mean(), abs=1 / (2 * STEPS))
    assert head.own == pytest.approx(np.trace(weights) / rows, abs=1 / (2 * STEPS))
    assert head.previous == pytest.approx(np.trace(weights, -1) / rows, abs=1 / (2 * STEPS))
    assert head.entropy is not None
    assert 0 < head.entropy < np.log(rows)


def test_tokens_equal_the_input_and_causal_maps_are_triangular(view: View) -> None:
    assert view.inputs[0].tokens == ("<bos>", *TEXT)
    assert view.part().causal
    assert not np.triu(view.attention(0, 0), 1).any()
    assert view.table().shape == (12, 8)
    assert "packed" not in str(view.to_json())


def test_one_number_opens_the_page_and_several_restrict_it() -> None:
    assert chosen(2, range(3), "block") == chosen("2", range(3), "block") == Choice(2, (0, 1, 2))
    assert chosen("1-2,0", range(4), "block") == Choice(1, (0, 1, 2))
    assert chosen(None, range(3), "block") == Choice(None, (0, 1, 2))
    few = look(block="0,2", head=[1, 3])
    assert {(one.layer, one.head) for one in few.heads} == {(0, 1), (0, 3), (2, 1), (2, 3)}
    assert few.opened.layer == 0
    assert few.opened.head == 1
    assert "Only blocks 0, 2 were kept." in few.notes


@pytest.mark.parametrize("asked", [{}, {"block": 1}, {"head": 2}, {"block": 2, "head": 0}])
def test_the_page_opens_at_the_head_of_its_first_sentence(asked: dict[str, int]) -> None:
    view = look(**asked)
    fitting = [one for one in view.heads if asked.items() <= {"block": one.layer, "head": one.head}.items()]
    opened = max(fitting, key=lambda one: one.first)
    assert (view.opened.layer, view.opened.head) == (opened.layer, opened.head)
    assert f"head {opened.head} of block {opened.layer}" in view.sentences()[0]


def test_an_encoder_decoder_has_three_parts() -> None:
    view = attnscope.view(tiny_t5(), ("source text", "target"), tokenizer=byte_tokenizer())
    assert [part.name for part in view.parts] == ["encoder", "decoder", "decoder cross"]
    cross = view.part("decoder cross")
    assert (cross.queries, cross.keys, cross.causal) == ("decoder", "encoder", False)
    assert view.attention(1, 0, "decoder cross").shape == (len(view.tokens("decoder")), len(view.tokens("encoder")))


def test_round_trip_and_refusal_of_a_damaged_map(view: View, tmp_path: Any) -> None:
    assert attnscope.load(view.save(tmp_path / "view.json")) == view
    document = view.document()
    document["parts"][0]["heads"][3]["packed"] = "AAAA"
    (tmp_path / "view.json").write_text(json.dumps(document))
    with pytest.raises(RefusalError, match=r"parts\[0\]\.heads\[3\]\.packed"):
        attnscope.load(tmp_path / "view.json")


def test_view_of_a_finding_has_the_tokens_of_the_survey() -> None:
    survey = attnscope.scan("pocket", samples=8, max_tokens=64, measures="sink_mass")
    assert Survey.from_json(survey.to_json()) == survey
    assert survey.sequences.keys() == survey.excerpts.keys() != set()
    finding = next(one for one in attnscope.diagnose(survey) if one.details.get("sample") in survey.sequences)
    view = attnscope.view("pocket", survey=survey)
    sample = finding.details["sample"]
    assert view.inputs[0].tokens == survey.excerpts[sample]
    assert view.provenance["bos"]["why"] == survey.provenance["bos"]["why"] == "the tokenizer adds it"
    assert (view.opened.layer, view.opened.head) == finding.heads[0]
    assert view.notes == (f"Sample {sample} of a survey, token for token. {finding.sentence}",)
    with pytest.raises(RefusalError, match=f"no sample {sample + 1}: choose with `sample=` one of {sample}"):
        attnscope.view("pocket", survey=survey, sample=sample + 1)
    with pytest.raises(RefusalError, match="has no sequences"):
        attnscope.view("pocket", survey=replace(survey, sequences={}))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"block": 9}, "There is no block 9 with attention: choose from 0-2"),
        ({"head": "0-9"}, "There is no head 4"),
        ({"block": "three"}, "'three' does not name a block"),
        ({"block": "3-1"}, "ends before it begins"),
        ({"max_mb": 0.001}, r"about 0.0018 MB \(3 blocks x 4 heads x 24 tokens\)"),
        ({"text": None}, "Give a text to view"),
        ({"text": {"input_ids": torch.tensor([[3]])}}, "a single token"),
        ({"survey": "nowhere.json"}, "cannot be viewed together"),
    ],
)
def test_bad_options_of_a_view_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RefusalError, match=complaint):
        look(**options)


def test_maps_that_contradict_the_model_are_refused() -> None:
    frames: list[Any] = []
    model = tiny_llama()
    batch = {"input_ids": torch.arange(8)[None]}
    structure = anatomy(model, batch)
    with torch.no_grad(), tap(model, structure, frames.append):
        model(**batch)
    frame = next(candidate for candidate in frames if hasattr(candidate, "scores"))
    assert layer_maps(frame, causal=True, heads=[0]).disagreement < 1e-5
    with pytest.raises(RefusalError, match="would be wrong"):
        layer_maps(replace(frame, mixed=frame.mixed * 1.01), causal=True, heads=[0])
    both_ways = replace(frame.scores, causal=False, lse=None)
    weights = torch.from_numpy(next(row_blocks(both_ways))[2])
    mixed = (weights @ frame.value[0].repeat_interleave(2, 0)).transpose(0, 1)[None]
    with pytest.raises(RefusalError, match="looks ahead"):
        layer_maps(replace(frame, scores=both_ways, mixed=mixed), causal=True, heads=[0])
    with pytest.raises(RefusalError, match="NaN or infinite"):
        layer_maps(replace(frame, value=frame.value * float("nan")), causal=True, heads=[0])
