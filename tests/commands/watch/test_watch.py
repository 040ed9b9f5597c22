"""What a watch does besides looks: it clips, locates NaN, stops, resumes, and refuses bad input."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import attnscope
from attnscope.commands.timeline.read import read_run
from attnscope.commands.watch.forward_capture import first_rows
from attnscope.commands.watch.run_folder import RunLog
from attnscope.core.errors import RefusalError
from attnscope.hf.installed import largest_logits
from tests.commands.watch.training import batch, gpt2, llama, numbers_of, train


@pytest.fixture(scope="module")
def shared() -> nn.Module:
    return gpt2(dropout=0.0)


# QK-Clip


@pytest.mark.parametrize("make", [lambda: gpt2(dropout=0.0), lambda: llama(dropout=0.0)], ids=["fused", "shared keys"])
def test_qk_clip_limits_the_largest_logit_and_keeps_other_heads_bit_equal(make, tmp_path: Path) -> None:
    before = make()
    seen = largest_logits(before, [batch(0)])
    heads = sorted((float(one), layer, head) for layer, row in seen.items() for head, one in enumerate(row))
    threshold = (heads[-1][0] + heads[-2][0]) / 2  # one head is above it
    layer, head = heads[-1][1:]
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    _one_step(model, optimizer, tmp_path / "run", threshold)
    after = largest_logits(model, [batch(0)])
    # The head's logits shrink by threshold / largest; float32 rounds products of 8 numbers by less than 1e-5 of them.
    assert float(after[layer][head]) == pytest.approx(threshold, rel=1e-5)
    for other, row in after.items():
        for place, one in enumerate(row):
            if other <= layer and (other, place) != (layer, head):  # later layers read what this one writes
                assert float(one) == float(seen[other][place])
    changed = {
        n for (n, a), b in zip(model.named_parameters(), before.parameters(), strict=True) if not torch.equal(a, b)
    }
    assert changed
    assert all(f".{layer}." in name for name in changed)


def _one_step(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, threshold: float) -> None:
    with attnscope.watch(model, folder, qk_clip=threshold) as watch:
        loss = model(**batch(0)).loss
        loss.backward()
        optimizer.step()
        watch.step(loss=loss)
        assert len(watch.clipped) == 1


def test_qk_clip_that_never_clips_changes_nothing_with_dropout(tmp_path: Path) -> None:
    alone = train(gpt2(), steps=3)
    train(gpt2(), lambda model: attnscope.watch(model, tmp_path / "run", qk_clip=1e9), steps=3).assert_equal(alone)


# NaN and infinity


def test_nan_is_located_in_the_forward_pass_and_stops_the_run(tmp_path: Path) -> None:
    model = gpt2(dropout=0.0)
    poison = False
    model.transformer.h[1].mlp.register_forward_hook(lambda module, args, output: output * np.inf if poison else output)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    steps = 0
    with attnscope.watch(model, tmp_path / "run", every=100, stop_on="critical") as watch:
        for step in range(4):
            poison = step == 2
            optimizer.zero_grad()
            loss = model(**batch(step)).loss
            loss.backward()
            watch.step(loss=loss)
            steps += 1
    assert steps == 2  # the third step raised, and the context ended the loop quietly
    assert watch.stopped is not None
    assert watch.stopped.rule == "nonfinite"
    assert "the forward pass first gives NaN or infinity in transformer.h.1.mlp (block 1)" in watch.stopped.sentence
    assert read_run(tmp_path / "run").looks[-1].step == 3


def test_a_nonfinite_gradient_is_located(tmp_path: Path) -> None:
    model = gpt2(dropout=0.0)
    with attnscope.watch(model, tmp_path / "run", every=1) as watch:
        for step in range(2):
            model.zero_grad()
            loss = model(**batch(step)).loss
            loss.backward()
            if step == 1:
                model.transformer.h[1].attn.c_attn.weight.grad[0, 0] = torch.inf
            watch.step(loss=loss)
    (alarm,) = [one for one in watch.alarms if one.rule == "nonfinite"]
    assert alarm.severity == "warning"
    assert "the gradient first becomes NaN or infinite at transformer.h.1.attn.c_attn (block 1)" in alarm.sentence


@pytest.mark.parametrize("outside", [False, True], ids=["the model's loss", "a loss outside"])
def test_the_module_is_named_though_the_optimiser_has_spread_nan_over_all_weights(tmp_path: Path, outside) -> None:
    model = gpt2(dropout=0.0)
    poison = False
    model.transformer.h[1].mlp.register_forward_hook(lambda module, args, output: output * np.inf if poison else output)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with attnscope.watch(model, tmp_path / "run", every=100) as watch:
        for step in range(4):
            poison = step == 2
            given = batch(step)
            if outside:
                logits = model(input_ids=given["input_ids"]).logits
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), given["labels"].flatten())
            else:
                loss = model(**given).loss
            loss.backward()
            optimizer.step()
            watch.step(loss=None if outside else loss)
            optimizer.zero_grad()
    assert sum(not bool(p.isfinite().all()) for p in model.parameters()) > 10
    alarm = next(one for one in watch.alarms if one.rule == "nonfinite")
    assert alarm.step == 3  # at once, although the loss was not passed
    assert "the forward pass first gives NaN or infinity in transformer.h.1.mlp (block 1)" in alarm.sentence


def test_nonfinite_gradient_and_loss_are_distinguished_from_nonfinite_weights(tmp_path: Path) -> None:
    for side, words in (
        ("gradient", "the gradient first becomes NaN or infinite at transformer.h.1.attn.c_attn (block 1)"),
        ("loss", "the output of the model is finite, but the loss is not"),
        ("late", "modules are not finite, so the origin is lost"),
    ):
        model = gpt2(dropout=0.0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with attnscope.watch(model, tmp_path / side, every=3 if side == "late" else 1) as watch:
            for step in range(3):
                loss = model(**batch(step)).loss * (float("nan") if side == "loss" and step == 1 else 1.0)
                loss.backward()
                if side != "loss" and step == 1:
                    for name in ("attn.c_attn", "ln_1"):
                        model.get_parameter(f"transformer.h.1.{name}.weight").grad.fill_(torch.nan)
                optimizer.step()
                watch.step(loss=loss)
                optimizer.zero_grad()
        alarm = next(one for one in watch.alarms if one.rule == "nonfinite")
        assert words in alarm.sentence


# the initial model


def test_the_first_update_is_compared_with_the_initial_look(tmp_path: Path) -> None:
    model = gpt2(dropout=0.0)
    as_it_came = tmp_path / "as it came"
    with attnscope.watch(gpt2(dropout=0.0), as_it_came, rows=2) as watch:
        watch.step(batch={"input_ids": batch(0)["input_ids"]})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with attnscope.watch(model, tmp_path / "run", every=2) as watch:
        for step in range(4):
            loss = model(**batch(step)).loss
            loss.backward()
            optimizer.step()
            if step == 0:
                with torch.no_grad():
                    for block in model.transformer.h:
                        block.attn.c_attn.weight[:, :48] *= 400
            watch.step(loss=loss)
            optimizer.zero_grad()
    looks = read_run(tmp_path / "run").looks
    assert [look.step for look in looks] == [0, 1, 2, 4]
    assert watch.looks == 4
    (alone,) = read_run(as_it_came).looks
    assert np.array_equal(numbers_of(looks[0], "entropy"), numbers_of(alone, "entropy"))
    assert looks[0].loss is None
    assert looks[0].find("gradient_norm") is None
    assert ("entropy_collapse", "critical", 1) in [(alarm.rule, alarm.severity, alarm.since) for alarm in watch.alarms]


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_heads_whose_part_of_the_output_projection_is_zero_are_seen(tmp_path: Path, heads: int) -> None:
    model = gpt2(dropout=0.0)  # 3 heads of 8
    with attnscope.watch(model, tmp_path / "run", every=1) as watch:
        for step in range(2):
            loss = model(**batch(step)).loss
            loss.backward()
            with torch.no_grad():
                model.transformer.h[1].attn.c_proj.weight[: 8 * heads] *= step == 0
            watch.step(loss=loss)
            model.zero_grad()
    assert not [one for one in watch.alarms if one.rule == "nonfinite"]
    (alarm,) = [one for one in watch.alarms if one.rule == "inactive_heads_appear"]
    assert alarm.heads == tuple((1, head) for head in range(heads))
    assert alarm.severity == ("note" if heads == 1 else "warning")


def test_a_weight_that_stays_zero_is_no_nan(tmp_path: Path) -> None:
    model = gpt2(dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with attnscope.watch(model, tmp_path / "run", every=1) as watch:
        for step in range(4):
            loss = model(**batch(step)).loss
            loss.backward()
            optimizer.step()
            if step:
                torch.nn.init.zeros_(model.transformer.h[1].attn.c_proj.weight)
            watch.step(loss=loss)
            optimizer.zero_grad()
    assert numbers_of(read_run(tmp_path / "run").looks[-1], "update_ratio", "output")[1] == 0.0
    assert not [one for one in watch.alarms if one.rule == "nonfinite"]


class NeedsLabels(nn.Module):
    """Always computes its loss, so it needs labels."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = gpt2(dropout=0.0)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        assert labels is not None
        logits = self.inner(input_ids).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("probed", [False, True])
def test_a_model_that_does_not_run_without_labels_has_them(tmp_path: Path, probed: bool) -> None:
    model = NeedsLabels().train()
    probe = batch(9) if probed else None
    with attnscope.watch(model, tmp_path / "run", every=1, probe=probe) as watch:
        for step in range(2):
            loss = model(**batch(step))
            loss.backward()
            watch.step(loss=loss)
    assert [look.step for look in read_run(tmp_path / "run").looks] == [0, 1, 2]
    assert (numbers_of(read_run(tmp_path / "run").looks[-1], "entropy") > 0).all()


# other ways to train


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch.compile triggers this warning
def test_a_compiled_model_is_seen_through_the_module_inside(tmp_path: Path) -> None:
    alone = gpt2(dropout=0.0)
    plain = train(alone, called=torch.compile(alone, backend="eager"), steps=3)
    model = gpt2(dropout=0.0)
    compiled = torch.compile(model, backend="eager")
    watched = train(model, lambda one: attnscope.watch(one, tmp_path / "run", every=1), called=compiled, steps=3)
    watched.assert_equal(plain)
    assert [look.step for look in read_run(tmp_path / "run").looks] == [0, 1, 2, 3]
    with pytest.raises(RefusalError, match="qk_clip has seen no training forward"):
        train(model, lambda one: attnscope.watch(one, tmp_path / "clip", qk_clip=100), called=compiled, steps=2)
    model.compile(backend="eager")
    with pytest.raises(RefusalError, match="compiled in place"), attnscope.watch(model, tmp_path / "other"):
        pass
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attnscope.watch(model, tmp_path / "probed", every=1, probe={"input_ids": batch(9)["input_ids"]}) as watch:
        loss = model(**batch(0)).loss
        loss.backward()
        watch.before_update()
        optimizer.step()
        optimizer.zero_grad()
        watch.step(loss=loss)
    _, look = read_run(tmp_path / "probed").looks
    assert look.loss == pytest.approx(loss.item(), rel=1e-5)
    assert (numbers_of(look, "gradient_norm", "key") > 0).all()
    assert (numbers_of(look, "update_ratio", "key") > 0).all()


def test_gradient_checkpointing_is_left_alone(tmp_path: Path) -> None:
    def checkpointed() -> nn.Module:
        model = gpt2()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return model

    alone = train(checkpointed(), steps=3)
    train(checkpointed(), lambda model: attnscope.watch(model, tmp_path / "run", every=1), steps=3).assert_equal(alone)


def test_a_probe_is_the_same_at_every_look(tmp_path: Path, shared: nn.Module) -> None:
    probe = {"input_ids": batch(99)["input_ids"]}
    optimizer = torch.optim.SGD(shared.parameters(), lr=0.0)
    train(
        shared, lambda one: attnscope.watch(one, tmp_path / "run", every=1, probe=probe), steps=3, optimizer=optimizer
    )
    looks = read_run(tmp_path / "run").looks
    entropies = [numbers_of(look, "entropy") for look in looks]
    assert len(looks) == 4
    assert all(np.array_equal(one, entropies[0]) for one in entropies)


def test_a_run_is_resumed_and_no_step_is_doubled(tmp_path: Path, shared: nn.Module) -> None:
    folder = tmp_path / "run"
    train(shared, lambda one: attnscope.watch(one, folder, every=2), steps=5)
    with pytest.raises(RefusalError, match="already holds a run"):
        train(shared, lambda one: attnscope.watch(one, folder, every=2), steps=1)
    train(shared, lambda one: attnscope.watch(one, folder, every=2, resume_from=3), steps=4, first=3)
    assert [look.step for look in read_run(folder).looks] == [0, 1, 2, 4, 6]
    with pytest.raises(RefusalError, match="another model"):
        train(llama(), lambda one: attnscope.watch(one, folder, resume_from=3), steps=1)


# bad input


def test_bad_input_is_refused_in_a_sentence(tmp_path: Path, shared: nn.Module) -> None:
    plain = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)).train()
    with pytest.raises(RefusalError, match="attention"), attnscope.watch(plain, tmp_path / "a"):
        plain(torch.ones(2, 3))
    with (
        pytest.raises(RefusalError, match=r"watch\.step\(\) was never called"),
        attnscope.watch(shared, tmp_path / "b"),
    ):
        shared(**batch(0))
    with (
        pytest.raises(RefusalError, match="does not run on a probe batch"),
        attnscope.watch(shared, tmp_path / "c", probe={"input_ids": torch.ones(2, 500, dtype=torch.long)}),
    ):
        pass
    with pytest.raises(RefusalError, match="maps argument names"):
        attnscope.watch(shared, tmp_path / "d", probe={"input_ids": [1, 2]})
    shared.zero_grad()
    with (
        pytest.raises(RefusalError, match="gradient_norm reads gradients"),
        attnscope.watch(shared, tmp_path / "e", measures=["gradient_norm", "entropy"]) as watch,
    ):
        watch.step(batch={"input_ids": batch(0)["input_ids"]})
    wrong: Any
    for wrong in (0, 2.5, True):
        with pytest.raises(RefusalError, match="every=1 or more"):
            attnscope.watch.for_trainer(tmp_path / "f", every=wrong)
    for wrong in (0, -1, float("nan"), float("inf"), True):
        with pytest.raises(RefusalError, match=r"qk_clip=.* give a number above 0"):
            attnscope.watch(shared, tmp_path / "f", qk_clip=wrong)
    watch_untyped: Any = attnscope.watch
    with pytest.raises(TypeError, match="'evry'"):
        watch_untyped(shared, tmp_path / "f", evry=3)
    with pytest.raises(RefusalError, match=r"A watch has no setting 'stopon'\. Did you mean 'stop_on'\?"):
        watch_untyped.for_trainer(tmp_path / "f", stopon="critical")
    with pytest.raises(RefusalError, match="rows=1 or more"):
        watch_untyped.for_trainer(tmp_path / "f", rows=1.5)
    with pytest.raises(RefusalError, match="resume_from=0 or more"):
        watch_untyped.for_trainer(tmp_path / "f", resume_from=0.5)
    with pytest.raises(RefusalError, match="no measure or set called 'entropie'"):
        attnscope.watch(shared, tmp_path / "f", measures="entropie")
    with pytest.raises(RefusalError, match=r"attnscope\.watch"):
        attnscope.scan(shared, [batch(0)], measures=["gradient_norm"])


def test_a_full_disk_ends_the_record_and_not_the_training(
    tmp_path: Path, shared: nn.Module, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = RunLog.append

    def full(log: RunLog, look) -> None:
        if look.step == 2:
            with monkeypatch.context() as patch:
                patch.setattr(os, "write", _no_space)
                append(log, look)
        append(log, look)

    monkeypatch.setattr(RunLog, "append", full)
    with caplog.at_level(logging.ERROR, "attnscope.watch"):
        train(shared, lambda one: attnscope.watch(one, tmp_path / "run", every=1), steps=4)
    assert [look.step for look in read_run(tmp_path / "run").looks] == [0, 1]
    assert "The training goes on" in caplog.text


def _no_space(*given: object) -> int:
    raise OSError(28, "No space left on device")


def test_an_alarm_is_logged_and_passed_to_on_alarm(
    tmp_path: Path, shared: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    heard = []

    def told(alarm) -> None:
        heard.append(alarm)
        raise ValueError("a mistake of the listener")

    rings = {"max_logit_growth.floor": 0, "max_logit_growth.growth": 0}
    with caplog.at_level(logging.WARNING, "attnscope.watch"):
        train(
            shared,
            lambda one: attnscope.watch(one, tmp_path / "run", every=1, thresholds=rings, on_alarm=told),
            steps=3,
        )
    assert [alarm.rule for alarm in heard] == ["max_logit_growth"]
    assert heard[0].sentence in caplog.text
    assert read_run(tmp_path / "run").looks[1].alarms == tuple(heard)


def test_a_slice_keeps_what_is_not_a_row_of_the_batch() -> None:
    given = {"ids": torch.ones(4, 3), "table": torch.ones(7, 3), "word": "x"}
    cut = first_rows(given, 2, sequence_first=False)
    assert cut["ids"].shape == (2, 3)
    assert cut["table"].shape == (7, 3)
    assert cut["word"] == "x"
    assert first_rows({"x": torch.ones(9, 4, 2)}, 3, sequence_first=True)["x"].shape == (9, 3, 2)
