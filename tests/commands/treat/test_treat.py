"""Treatments of a small model: arms only differ by the remedy, and the model is restored."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import attnscope
from attnscope.commands.treat.arms import batch_of_step
from attnscope.commands.treat.record import Treatment
from attnscope.commands.treat.run import treat
from attnscope.core.errors import RefusalError
from attnscope.hf.loading.load import Loaded
from tests.commands.treat.patients import HEADS, LAYERS, WIDTH, patient

SMALL: dict[str, Any] = {"steps": 3, "samples": 6, "max_tokens": 24, "batch_size": 2}
UNTRAINED = {name: value for name, value in SMALL.items() if name != "steps"}


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return patient()


@pytest.fixture(scope="module")
def gated(loaded: Loaded) -> Treatment:
    before = {name: one.clone() for name, one in loaded.model.state_dict().items()}
    found = treat(loaded, remedy="gated_output", **SMALL)
    after = loaded.model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], one) for name, one in before.items())
    assert not any(one.requires_grad for one in loaded.model.parameters())
    return found


def test_both_arms_start_from_the_model_and_read_the_same(gated: Treatment) -> None:
    assert list(gated.arms) == ["before", "control", "treated"]
    # The start keeps the function: gates of exactly 1, so the first loss is that of the control, to float32 rounding.
    assert gated.start == pytest.approx(gated.arms["before"].loss, abs=1e-5)
    assert gated.arms["treated"].curve[0] == pytest.approx(gated.arms["control"].curve[0], abs=1e-5)
    assert gated.arms["treated"].curve[-1] != gated.arms["control"].curve[-1]
    assert len(gated.arms["control"].curve) == 3
    assert gated.training is not None
    assert gated.training.added == LAYERS * (WIDTH * WIDTH + WIDTH)


def test_treat_is_deterministic(gated: Treatment, loaded: Loaded) -> None:
    again = treat(loaded, remedy="gated_output", **SMALL)
    assert {name: arm.losses for name, arm in again.arms.items()} == {
        name: arm.losses for name, arm in gated.arms.items()
    }


def test_resume_after_an_interruption_equals_unbroken_run(gated: Treatment, loaded: Loaded, tmp_path: Path) -> None:
    class Stop(Exception):  # noqa: N818
        pass

    def stopping(stage: str, done: int, total: int) -> None:
        if stage.startswith("training with") and done == 2:
            raise Stop

    with pytest.raises(Stop):
        treat(loaded, remedy="gated_output", checkpoint=tmp_path / "kept", progress=stopping, **SMALL)
    assert not any("attnscope" in name for name in loaded.model.state_dict())
    resumed = treat(loaded, remedy="gated_output", checkpoint=tmp_path / "kept", resume=True, **SMALL)
    assert resumed.arms["treated"].curve == gated.arms["treated"].curve
    assert resumed.arms["treated"].losses == gated.arms["treated"].losses
    assert math.isfinite(resumed.arms["control"].seconds)  # all of its steps were timed before the interruption
    with pytest.raises(RefusalError, match="another training run"):
        treat(loaded, remedy="gated_output", checkpoint=tmp_path / "kept", resume=True, **{**SMALL, "steps": 4})


def test_auto_chooses_by_the_table_and_says_why(loaded: Loaded) -> None:
    found = treat(loaded, remedy="auto", training=False, **UNTRAINED)
    assert not found.remedy.asked
    assert found.remedy.name in {"temperature", "prune"}  # random weights look almost everywhere alike
    assert "uniform" in found.remedy.why
    assert found.training is None


def test_a_clip_above_all_logits_changes_nothing_and_one_below_does(loaded: Loaded) -> None:
    still = treat(loaded, remedy="qk_clip", **UNTRAINED)
    assert still.arms["treated"].losses == still.arms["before"].losses
    assert any("0 heads have one above" in note for note in still.notes)
    moved = treat(loaded, remedy="qk_clip", settings={"threshold": 1.0}, **UNTRAINED)
    assert moved.loss.mean != 0


def test_a_temperature_is_chosen_on_training_text(loaded: Loaded) -> None:
    found = treat(loaded, remedy="temperature", blocks=(0,), **UNTRAINED)
    assert found.remedy.layers == (0,)
    assert 0.5 <= found.remedy.settings["temperature"] <= 2.0
    told = next(note for note in found.notes if "temperatures" in note)
    assert f"{found.remedy.settings['temperature']:g} has the lowest loss on training text" in told
    hot = treat(loaded, remedy="temperature", settings={"temperature": 50.0}, blocks=(0, 1), **UNTRAINED)
    uniform = hot.surveys["treated"].values("entropy").mean()
    assert uniform > hot.surveys["before"].values("entropy").mean()  # attention that looks everywhere alike


def test_bos_is_compared_on_the_same_tokens(loaded: Loaded) -> None:
    found = treat(loaded, remedy="bos", bos="no", **UNTRAINED)
    assert found.surveys["treated"].provenance["bos"]["begins"]
    assert not found.surveys["before"].provenance["bos"]["begins"]
    with pytest.raises(RefusalError, match="begin with BOS already"):
        treat(loaded, remedy="bos", bos="yes", **UNTRAINED)


def test_ready_batches_with_a_custom_loss(loaded: Loaded) -> None:
    ids = torch.randint(3, 200, (10, 2, 12), generator=torch.Generator().manual_seed(0))

    def loss(model: torch.nn.Module, inputs: Any) -> torch.Tensor:
        return model(**inputs).logits.float().square().mean(dim=(1, 2))

    given = [{"input_ids": one} for one in ids]
    found = treat(loaded, given, remedy="gated_output", loss=loss, steps=2, batch_size=2)
    assert len(found.arms["before"].losses) == 4
    assert found.arms["control"].loss < found.arms["before"].loss  # two steps down


def test_steps_read_every_batch_once_before_any_twice() -> None:
    from attnscope.data.batches import Batches

    ready = Batches.of([{"input_ids": torch.full((1, 4), n)} for n in range(5)])
    seen = [int(batch_of_step(ready, 7, step).inputs["input_ids"][0, 0]) for step in range(10)]
    assert sorted(seen[:5]) == sorted(seen[5:]) == list(range(5))
    assert seen[:5] != seen[5:]


def refused_first(asked: Any, *_: Any) -> None:
    """Replace the first expensive step: a refusal must come before it."""
    raise AssertionError(f"{asked} was measured")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"remedy": "gated_outptu"}, "Did you mean 'gated_output'"),
        ({"steps": 0}, "needs 1 step or more, not 0"),
        ({"rate": -1.0}, "A learning rate cannot be -1: give a number above 0"),
        ({"rate": math.nan}, "A learning rate cannot be nan"),
        ({"remedy": "prune", "heads": 99}, f"{LAYERS * HEADS} heads: 99 cannot be removed"),
        ({"remedy": "prune", "heads": 2, "keep_loss": 0.1}, "give one"),
        ({"remedy": "prune", "settings": {"bye": 1}}, "Did you mean 'by'"),
        ({"remedy": "prune", "settings": {"by": "contributoin"}}, "Did you mean 'contribution'"),
        ({"remedy": "prune", "settings": {"prompts": 0}}, "cannot be valued on 0 prompts"),
        ({"remedy": "prune", "steps": 3}, "Prune trains nothing, so `steps=` has no effect"),
        ({"remedy": "prune", "blocks": (0,)}, "`blocks=` has no effect"),
        ({"remedy": "bos", "settings": {"how": 1}}, "bos has no setting 'how'"),
        ({"remedy": "qk_clip", "rate": 1e-3}, "Qk_clip trains nothing, so `rate=` has no effect"),
        ({"remedy": "qk_clip", "blocks": (99,)}, "not in block 99"),
        ({"remedy": "gated_output", "training": False, "steps": 3}, "`training=False`, so `steps=` has no effect"),
        ({"remedy": "temperature", "resume": True}, "leave `resume=` out"),
        ({"remedy": "gated_output", "heads": 2}, "`heads=` is an option of pruning, not of gated_output"),
        ({"remedy": "gated_output", "keep_loss": 0.1}, "`keep_loss=` is an option of pruning"),
        ({"remedy": "gated_output", "blocks": (99,)}, "not in block 99"),
        ({"remedy": "gated_output", "settings": {"gian": 1.0}}, "Did you mean 'gain'"),
        ({"remedy": "temperature", "settings": {"temperature": 0}}, "A temperature cannot be 0"),
        ({"remedy": "mixed_heads"}, "mixed_heads does not give every token a weight"),
        ({"remedy": "compressed"}, "compressed does not give every token a weight"),
    ],
)
def test_bad_input_is_refused_in_one_sentence_before_any_work(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr("attnscope.commands.treat.run.halves", refused_first)
    with pytest.raises(RefusalError, match=words) as said:
        treat(loaded, **{**UNTRAINED, **change})
    assert "\n" not in str(said.value)


def test_a_corpus_that_is_too_small_is_refused(loaded: Loaded) -> None:
    with pytest.raises(RefusalError, match="too small"):
        treat(loaded, ["One short text."], **SMALL)


def test_a_window_shorter_than_the_text_is_measured(loaded: Loaded) -> None:
    """Its inner call has fewer keys than tokens; the pattern over all tokens is measured."""
    found = treat(loaded, remedy="local", settings={"window": 4}, training=False, **UNTRAINED)
    assert found.surveys["treated"].provenance["verify"]["passed"]
    ids = torch.randint(3, 200, (1, 20), generator=torch.Generator().manual_seed(0))
    with attnscope.installed(loaded, "local", window=4):
        survey = attnscope.scan(loaded, [{"input_ids": ids}], measures=["mean_distance", "sink_mass"])
    # No token looks farther than 4 away, and the first token is out of sight from token 5 on: of 20 rows five see it.
    assert float(survey.values("mean_distance").max()) <= 4
    assert 0 < float(survey.values("sink_mass").max()) <= 5 / 20


def test_nan_loss_is_refused_with_its_module_and_model_is_restored(loaded: Loaded) -> None:
    before = {name: one.clone() for name, one in loaded.model.state_dict().items()}
    with pytest.raises(RefusalError, match=r"not a number in step 2 \(first in model\.layers\.0\.") as said:
        treat(loaded, remedy="gated_output", rate=1e25, **SMALL)
    assert "\n" not in str(said.value)
    assert all(torch.equal(loaded.model.state_dict()[name], one) for name, one in before.items())


def test_a_full_disk_while_training_is_one_sentence(
    loaded: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any, **__: Any) -> None:
        raise RefusalError("kept cannot be written (No space left on device).")

    monkeypatch.setattr("attnscope.commands.treat.train.write_atomically", no_room)
    with pytest.raises(RefusalError, match="No space left"):
        treat(loaded, remedy="gated_output", checkpoint=tmp_path / "kept", **SMALL)
    assert not any("attnscope" in name for name in loaded.model.state_dict())


def test_buffers_of_a_variant_are_saved_in_the_checkpoint(loaded: Loaded, tmp_path: Path) -> None:
    """sigma_reparam follows its largest singular value by a power iteration at every step: part of the state."""

    def stopping(stage: str, done: int, total: int) -> None:
        if stage.startswith("training with") and done == 2:
            raise KeyboardInterrupt

    whole = treat(loaded, remedy="sigma_reparam", **SMALL)
    with pytest.raises(KeyboardInterrupt):
        treat(loaded, remedy="sigma_reparam", checkpoint=tmp_path / "kept", progress=stopping, **SMALL)
    resumed = treat(loaded, remedy="sigma_reparam", checkpoint=tmp_path / "kept", resume=True, **SMALL)
    assert resumed.arms["treated"].losses == whole.arms["treated"].losses


def test_a_treated_model_is_saved_and_a_pruned_one_is_an_ordinary_model(loaded: Loaded, tmp_path: Path) -> None:
    import transformers as hf

    from attnscope.hf.loading.load import load

    treat(loaded, remedy="gated_output", save=tmp_path / "gated", **SMALL)
    assert load(tmp_path / "gated").provenance["treated"]["variant"] == "gated_output"
    pruned = treat(loaded, remedy="prune", heads=1, save=tmp_path / "pruned", settings={"prompts": 1}, **UNTRAINED)
    weights = hf.LlamaForCausalLM.from_pretrained(tmp_path / "pruned").state_dict()
    block, head = pruned.removed[0]
    rows = weights[f"model.layers.{block}.self_attn.o_proj.weight"].unflatten(1, (HEADS, -1))
    assert float(rows[:, head].abs().max()) == 0
    assert float(rows[:, 1 - head].abs().max()) > 0


def test_a_pruned_model_that_was_treated_before_keeps_its_attention(loaded: Loaded, tmp_path: Path) -> None:
    from attnscope.hf.loading.load import load

    ids = torch.arange(3, 15)[None]
    with attnscope.installed(loaded.model, "gated_output") as treated:
        with torch.no_grad():
            for parameter in treated.parameters().values():
                parameter.normal_(generator=torch.Generator().manual_seed(parameter.ndim))
        treatment = treat(loaded, remedy="prune", heads=1, save=tmp_path / "both", settings={"prompts": 1}, **UNTRAINED)
        block, head = treatment.removed[0]
        weight = loaded.model.get_parameter(f"model.layers.{block}.self_attn.o_proj.weight")
        kept = weight.detach().clone()
        with torch.no_grad():
            weight.unflatten(1, (HEADS, -1))[:, head] = 0
            wanted = loaded.model(ids).logits
            weight.copy_(kept)
    saved = load(tmp_path / "both")
    assert saved.provenance["treated"]["variant"] == "gated_output"
    with torch.no_grad():
        assert torch.equal(saved.model(ids).logits, wanted)


def test_the_twin_is_exported() -> None:
    assert attnscope.treat is treat
