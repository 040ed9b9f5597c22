"""A trial measures losses and interventions; each number is compared with a slow and obvious computation."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attnscope
from attnscope.commands.scan.survey.trial import Trial
from attnscope.commands.scan.trial import run
from attnscope.commands.scan.trial.parts import one_scaled, places_of, slopes
from attnscope.commands.scan.trial.run import should_be_causal, trial_of
from attnscope.commands.scan.trial.weights import edge_ratio, grid_bits
from attnscope.commands.scan.trial.windows import (
    NOTHING,
    Question,
    predicted,
    questions,
    run_losses,
    unigram_loss,
    window_losses,
    windows_of,
)
from attnscope.core.errors import RefusalError
from attnscope.data.batches import Batch, Batches
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.loading.load import Loaded, batches_for, load
from attnscope.hf.loading.options import Sampling

BLOCK = 3


@pytest.fixture(scope="module")
def pocket() -> Loaded:
    return load("pocket")


@pytest.fixture(scope="module")
def prepared(pocket: Loaded) -> Batches:
    return batches_for(pocket, None, Sampling(samples=24, max_tokens=48))


@pytest.fixture(scope="module")
def healthy(pocket: Loaded, prepared: Batches) -> Trial:
    return tried(pocket, prepared)


def tried(loaded: Loaded, prepared: Batches) -> Trial:
    return trial_of(loaded, anatomy(loaded.model, prepared.batches[0].inputs), prepared)


def damaged(pocket: Loaded, change: Any) -> Loaded:
    model = copy.deepcopy(pocket.model)
    with torch.no_grad():
        change(model)
    return replace(pocket, model=model)


def test_loss_equals_that_of_the_model_itself(pocket: Loaded, prepared: Batches, healthy: Trial) -> None:
    windows = windows_of(prepared)
    model: Any = pocket.model
    total = tokens = 0.0
    for batch in windows:
        for row in range(len(batch)):
            ids = batch.inputs["input_ids"][row : row + 1]
            with torch.no_grad():
                total += float(model(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)
            tokens += ids.shape[1] - 1
    assert sum(healthy.counts) == tokens
    assert healthy.mean_loss == pytest.approx(total / tokens, rel=1e-5)


def test_what_is_refused_is_left_out_with_a_note(
    pocket: Loaded, prepared: Batches, healthy: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise RefusalError("This attention got other positions: leave them out.")

    monkeypatch.setattr(run, "order_effect", refuse)
    trial = tried(pocket, prepared)
    assert math.isnan(trial.order)
    assert trial.notes == ("Not tried: positions (This attention got other positions: leave them out).",)
    assert trial.loss == healthy.loss


def test_bits_per_byte_count_the_bytes_of_the_text(pocket: Loaded, prepared: Batches, healthy: Trial) -> None:
    texts = [pocket.tokenizer.decode(row[1:]) for b in windows_of(prepared) for row in b.inputs["input_ids"]]  # type: ignore[union-attr]
    size = sum(len(text.encode()) for text in texts)
    assert healthy.bits_per_byte == pytest.approx(
        healthy.mean_loss * sum(healthy.counts) / size / math.log(2), rel=1e-6
    )


def test_unigram_loss_of_a_case_solved_by_hand() -> None:
    """Window 1 is predicted from the tokens 5 5 7 of window 0: N = 3, T = 2: 5 has 2/5, an unknown token 2/5/8."""
    batches = [Batch({"input_ids": torch.tensor([[5, 5, 7], [5, 9, 9]])}, None, (0, 1), 6)]
    asked = [Question(batches[0].inputs, torch.tensor([[NOTHING] * 3, [5, 9, NOTHING]]))]
    expected = (-math.log(2 / 5) - math.log(2 / 5 / 8)) / 2
    assert unigram_loss(asked, batches, 10) == pytest.approx(expected)


def test_slopes_equal_finite_differences_in_float64(pocket: Loaded, prepared: Batches) -> None:
    loaded = replace(pocket, model=copy.deepcopy(pocket.model).double())
    found = anatomy(loaded.model, prepared.batches[0].inputs)
    _, asked = questions(loaded, windows_of(prepared, 4), causal=True)
    places = places_of(found)
    exact = slopes(loaded.model, places, (), asked, {})
    assert exact is not None
    step = 3e-3  # norms compute in float32: rounding gives 1e-7 / step, and the curvature of third order step^2
    for number, place in enumerate(places):
        ends = []
        for factor in (1 - step, 1 + step):
            with one_scaled(loaded.model, place, factor), torch.no_grad():
                ends.append(_mean_loss(loaded, asked))
        assert exact.places[number] == pytest.approx((ends[1] - ends[0]) / (2 * step), abs=1e-4)


def _mean_loss(loaded: Loaded, asked: Any) -> float:
    """Return the mean loss in float64."""
    total = count = 0.0
    for question in asked:
        logits = loaded.model(**question.inputs).logits.double()
        chosen = question.targets != NOTHING
        total -= float(logits.log_softmax(-1)[chosen].gather(1, question.targets[chosen][:, None]).sum())
        count += int(chosen.sum())
    return total / count


def test_a_factor_of_one_changes_nothing(pocket: Loaded, prepared: Batches) -> None:
    found = anatomy(pocket.model, prepared.batches[0].inputs)
    _, asked = questions(pocket, windows_of(prepared, 4), causal=True)
    with torch.no_grad():
        usual = run_losses(pocket.model, asked, {})
        for place in places_of(found):
            with one_scaled(pocket.model, place, 1.0):
                assert run_losses(pocket.model, asked, {}) == usual


def test_a_healthy_model_passes_every_test(healthy: Trial) -> None:
    assert healthy.notes == ()
    assert healthy.mean_loss < healthy.unigram
    assert [each.moved for each in healthy.exposures] == [0.0]
    assert healthy.order > 0.1
    assert len(healthy.parts) == 12
    assert all(part.write > 0.01 for part in healthy.parts)


def test_slopes_of_one_window_set_are_confirmed_on_another(healthy: Trial) -> None:
    assert healthy.tried_from == 8
    assert all(len(r.loss) in (8, 16) for part in healthy.parts for r in part.rescaled)


def test_a_lost_mask_is_seen_and_located(pocket: Loaded, prepared: Batches) -> None:
    def lose(model: Any) -> None:
        model.model.layers[BLOCK].self_attn.is_causal = False

    (exposure,) = tried(damaged(pocket, lose), prepared).exposures
    assert exposure.layer == BLOCK
    assert exposure.moved > 100 * exposure.rounding


def test_a_model_that_is_not_deterministic_is_not_said_to_see_the_future(pocket: Loaded, prepared: Batches) -> None:
    other = copy.deepcopy(pocket.model)
    noisy = anatomy(other, prepared.batches[0].inputs).stacks[0].blocks[BLOCK].path
    other.get_submodule(noisy).register_forward_hook(lambda module, args, out: _with_dropout(out))
    trial = tried(replace(pocket, model=other), prepared)
    assert trial.exposures == ()
    assert any("two runs on the same tokens differ" in note for note in trial.notes)


def _with_dropout(output: Any) -> Any:
    parts = output if isinstance(output, tuple) else (output,)
    dropped = (torch.nn.functional.dropout(parts[0], 0.1, training=True), *parts[1:])
    return dropped if isinstance(output, tuple) else dropped[0]


def test_rotations_of_frequency_zero_are_no_positions(pocket: Loaded, prepared: Batches) -> None:
    trial = tried(damaged(pocket, lambda model: model.model.rotary_emb.inv_freq.zero_()), prepared)
    assert trial.order <= trial.order_rounding


@pytest.mark.parametrize(("half", "path"), [("mlp", "mlp.down_proj"), ("attention", "self_attn.o_proj")])
def test_a_half_that_writes_zeros_is_silent(pocket: Loaded, prepared: Batches, half: str, path: str) -> None:
    trial = tried(damaged(pocket, lambda model: model.model.layers[BLOCK].get_submodule(path).weight.zero_()), prepared)
    assert [(part.layer, part.half) for part in trial.parts if part.write == 0] == [(BLOCK, half)]
    assert len(trial.parts) == 12


def test_a_loud_head_is_found_by_its_slope(pocket: Loaded, prepared: Batches) -> None:
    def shout(model: Any) -> None:
        weight = model.model.layers[BLOCK].self_attn.v_proj.weight
        weight[: weight.shape[0] // model.config.num_key_value_heads] *= 30

    trial = tried(damaged(pocket, shout), prepared)
    steepest = max(trial.parts, key=lambda part: part.slope)
    assert (steepest.layer, steepest.half) == (BLOCK, "attention")
    best = trial.best(steepest)
    assert best is not None
    assert trial.cost(best) < -1
    (head,) = trial.heads
    assert (head.layer, head.head) == (BLOCK, 0)


def test_models_without_a_token_head_have_no_loss_but_parts(pocket: Loaded, prepared: Batches) -> None:
    body: Any = pocket.model
    trial = tried(replace(pocket, model=body.model), prepared)
    assert trial.task is None
    assert math.isnan(trial.mean_loss)
    assert len(trial.parts) == 12


def test_bidirectional_models_are_not_called_exposed(pocket: Loaded, prepared: Batches) -> None:
    model = copy.deepcopy(pocket.model)
    model.config.is_causal = False  # type: ignore[union-attr]
    assert not should_be_causal(replace(pocket, model=model), anatomy(model, prepared.batches[0].inputs))


@given(rows=st.integers(64, 200), columns=st.integers(64, 200), seed=st.integers(0, 99), size=st.floats(1e-3, 1e3))
def test_random_matrices_have_a_ratio_near_one(rows: int, columns: int, seed: int, size: float) -> None:
    matrix = size * torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    assert 0.85 < edge_ratio(matrix) < 1.06


def test_one_strong_direction_is_far_above_random() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(96, 128) + torch.outer(torch.randn(96), torch.randn(128))
    assert edge_ratio(matrix) > 2


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_grids_have_their_number_of_bits(bits: int) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(64, 128)
    step = 2 * matrix.abs().max() / (2**bits - 1)
    coarse = ((matrix / step - 0.5).round() + 0.5) * step
    assert grid_bits(coarse) <= bits
    assert grid_bits(matrix) == 5
    assert grid_bits(matrix.bfloat16().float()) > 4


def test_losses_ignore_tokens_without_a_target() -> None:
    logits = torch.zeros(1, 3, 4)
    assert window_losses(logits, torch.tensor([[1, NOTHING, 2]])).tolist() == pytest.approx([math.log(4)])


def test_a_trial_survives_its_file(tmp_path: Path) -> None:
    survey = attnscope.scan("pocket", samples=16, max_tokens=32, measures="entropy")
    again = attnscope.Survey.load(survey.save(tmp_path / "survey.json"))
    assert again.trial == survey.trial
    assert survey.trial is not None
    assert attnscope.scan("pocket", samples=4, max_tokens=16, measures="entropy", trial=False).trial is None


def test_states_are_not_taken_for_logits() -> None:
    """A body without a head gives states of width 256, which could be logits over a vocabulary of 30 tokens."""
    from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

    targets, wide = torch.tensor([[1, 2, 3]]), torch.zeros(1, 3, 256)
    assert predicted(BaseModelOutput(last_hidden_state=wide), targets) is None
    assert predicted(CausalLMOutput(logits=wide), targets) is wide
    assert predicted((wide, None), targets) is wide


def test_a_masked_row_too_short_for_a_seventh_token_hides_its_middle_one(pocket: Loaded) -> None:
    begin, mask, pad = 0, 1, 2
    ids = torch.tensor([[begin, 7, 8, pad, pad, pad, pad, pad], [begin, 7, 8, 9, 10, 11, 12, 13], [begin] + [pad] * 7])
    batch = Batch({"input_ids": ids}, ids != pad, (0, 1, 2), 12)
    marks: Any = SimpleNamespace(mask_token_id=mask, all_special_ids=(begin, mask, pad))
    masked = replace(pocket, kind="masked", tokenizer=marks)
    task, (question,) = questions(masked, [batch], causal=False)
    assert task == "masked token"
    assert question.counts == (1, 1, 0)
    assert question.inputs["input_ids"][0].tolist() == [begin, mask, 8, *[pad] * 5]
    assert question.targets[0].tolist() == [NOTHING, 7, *[NOTHING] * 6]
