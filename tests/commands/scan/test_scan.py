"""End to end from a model and a corpus to a survey, compared with dense attention."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnscope
from attnscope.commands.scan import plan as provenance_module
from attnscope.commands.scan import plan as subject_module
from attnscope.commands.scan.run import scan
from attnscope.commands.scan.survey.builder import SurveyBuilder
from attnscope.commands.scan.survey.survey import Survey
from attnscope.core.errors import RefusalError
from attnscope.data.batches import Batch
from attnscope.hf.tapping.tap import tap
from attnscope.hf.tapping.verify import verify
from tests.interrupting import hearing_signals
from tests.specimens import TEXT, byte_tokenizer, tiny_llama, tiny_t5


def _same(a: Survey, b: Survey) -> bool:
    return a.cards == b.cards and a.cells == b.cells


def _scan(**options: Any) -> Survey:
    return scan(tiny_llama(), [TEXT], tokenizer=byte_tokenizer(), **{"max_tokens": 24, "samples": 6, **options})


def test_numbers_equal_those_of_dense_maps() -> None:
    """Compare with textbook formulas on the eager maps of the same model and sequences."""
    model = tiny_llama()
    ids = torch.randint(0, 257, (3, 20), generator=torch.Generator().manual_seed(1))
    survey = scan(model, [{"input_ids": ids}], measures=["entropy", "sink_mass", "mean_distance", "span", "spike"])
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(ids, output_attentions=True, output_hidden_states=True)
    maps = torch.stack(out.attentions).double()  # layer batch head query key
    entropy = -torch.xlogy(maps, maps).sum(-1).mean(dim=(1, 3))
    np.testing.assert_allclose(survey.values("entropy"), entropy, atol=2e-6)
    np.testing.assert_allclose(survey.values("sink_mass"), maps[..., 0].mean(dim=(1, 3)), atol=1e-6)
    place = torch.arange(20.0, dtype=torch.float64)
    distance = (maps * (place[:, None] - place)).sum(-1).mean(dim=(1, 3))
    np.testing.assert_allclose(survey.values("mean_distance"), distance, rtol=2e-6)
    away = place[:, None] - place
    inside = torch.stack([maps[..., 1:][..., away[:, 1:] == d].sum(-1) for d in range(20)], -1).cumsum(-1)
    most = (inside < 0.95 * inside[..., -1:]).sum(-1).double().mean(1)  # no key but the first is a sink
    np.testing.assert_allclose(survey.values("span", "most"), most)
    largest = [h.abs().amax(dim=(1, 2)).mean() for h in out.hidden_states[:-1]]  # the last one is after the norm
    np.testing.assert_allclose(survey.values("spike", site="stream")[:3], largest, rtol=1e-6)


def test_every_layer_and_head_is_there() -> None:
    survey = _scan(measures="all")
    assert survey.values("entropy").shape == (3, 4)
    assert survey.values("relative_residual").shape == (4,)
    assert survey.values("spike", site="middle").shape == (3,)
    assert survey.values("qk_spectrum", "eta").shape == (3, 4)
    assert all(np.isfinite(cell.moments.mean).all() for cell in survey.cells.values())
    assert survey.provenance["corpus"]["sequences"] == 6
    assert survey.provenance["corpus"]["tokens"] == 6 * 24
    assert survey.provenance["verify"]["passed"] is True


def test_only_the_named_measures_are_taken() -> None:
    assert set(_scan(measures="entropy, spike").cards) == {"entropy", "spike"}


def test_batch_size_and_order_do_not_change_the_numbers() -> None:
    """Other batches and padding give the same numbers up to rounding, and exactly the same counts."""
    texts = [TEXT[i : i + 10 + 3 * i] for i in range(8)]
    one = scan(tiny_llama(), texts, tokenizer=byte_tokenizer(), batch_size=1)
    many = scan(tiny_llama(), texts, tokenizer=byte_tokenizer(), batch_size=8)
    assert one.cells.keys() == many.cells.keys()
    for key, cell in one.cells.items():
        np.testing.assert_array_equal(cell.moments.count, many.cells[key].moments.count)
        np.testing.assert_allclose(cell.moments.mean, many.cells[key].moments.mean, rtol=2e-4, atol=2e-6)


def test_the_same_scan_twice_is_the_same_survey() -> None:
    assert _same(_scan(), _scan())


def test_the_model_is_left_as_it_was() -> None:
    model = tiny_llama().train()
    before = {name: id(module.forward.__func__) for name, module in model.named_modules()}
    ids = torch.randint(0, 257, (2, 9), generator=torch.Generator().manual_seed(2))
    scan(model, [{"input_ids": ids}])
    assert model.training
    assert all(module.training for module in model.modules())
    assert before == {name: id(module.forward.__func__) for name, module in model.named_modules()}
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


class _Stopped(KeyboardInterrupt):
    pass


def test_resume_after_ctrl_c_equals_unbroken_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C in the third batch, two batches are kept and the third leaves no partial result."""
    whole = _scan(batch_size=1)
    kept = tmp_path / "partial.json"
    seen: list[int] = []

    def interrupting(model: Any, found: Any, receive: Any) -> Any:
        seen.append(0)

        def stop(frame: Any) -> None:
            receive(frame)
            if len(seen) == 3 and frame.layer == 1:
                raise _Stopped

        return tap(model, found, stop if len(seen) == 3 else receive)

    monkeypatch.setattr(subject_module, "tap", interrupting)
    with pytest.raises(KeyboardInterrupt):
        _scan(batch_size=1, checkpoint=kept)
    assert Survey.load(kept).provenance["corpus"]["sequences"] == 2
    monkeypatch.setattr(subject_module, "tap", tap)
    resumed = _scan(batch_size=1, checkpoint=kept, resume=True)
    assert _same(whole, resumed)
    assert "resume" not in resumed.provenance
    assert resumed.provenance["corpus"] == whole.provenance["corpus"]


def test_resuming_with_other_options_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "partial.json"
    told: list[int] = []

    def stop_after_two(stage: str, done: int, total: int, tokens: int) -> None:
        told.append(done)
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _scan(batch_size=1, checkpoint=kept, progress=stop_after_two)
    with pytest.raises(RefusalError, match=r"another max tokens:"):
        _scan(batch_size=1, checkpoint=kept, resume=True, max_tokens=9)
    with pytest.raises(RefusalError, match=r"another seed:"):
        _scan(batch_size=1, checkpoint=kept, resume=True, seed=5)


def test_out_of_memory_halves_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of more than two sequences fail half-way with an allocator's error."""
    whole = _scan(batch_size=2)
    sizes: list[int] = []

    def small_machine(model: Any, survey: Any, receive: Any) -> Any:
        def fail(frame: Any) -> None:
            receive(frame)
            batch = (frame.stream if hasattr(frame, "stream") else frame.mixed).shape[0]
            sizes.append(batch)
            if batch > 2 and frame.layer == 2:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")

        return tap(model, survey, fail)

    monkeypatch.setattr(subject_module, "tap", small_machine)
    halved = _scan(batch_size=4)
    assert max(sizes) == 4
    assert halved.cells.keys() == whole.cells.keys()
    for key, cell in whole.cells.items():
        np.testing.assert_array_equal(cell.moments.count, halved.cells[key].moments.count)
        np.testing.assert_allclose(cell.moments.mean, halved.cells[key].moments.mean, rtol=2e-4, atol=2e-6)


def test_one_sequence_too_large_for_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(model: Any, found: Any, receive: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(subject_module, "tap", no_memory)
    with pytest.raises(RefusalError, match="`max_tokens=`"):
        _scan(batch_size=1)


@pytest.mark.parametrize("call", [1, 30, 100, 170])
def test_ctrl_c_is_deferred_while_a_batch_is_added(call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real SIGINT while a batch is added: the batch is added as a whole, then the scan stops."""
    whole = _scan(batch_size=2)
    honest, calls = SurveyBuilder.observe, []

    def interrupted(self: SurveyBuilder, *words: Any) -> None:
        calls.append(0)
        if len(calls) == call:
            signal.raise_signal(signal.SIGINT)
        honest(self, *words)

    monkeypatch.setattr(SurveyBuilder, "observe", interrupted)
    kept = tmp_path / "partial.json"
    with hearing_signals(), pytest.raises(KeyboardInterrupt):
        _scan(batch_size=2, checkpoint=kept)
    monkeypatch.setattr(SurveyBuilder, "observe", honest)
    assert _same(whole, _scan(batch_size=2, checkpoint=kept, resume=True))


def test_a_layer_that_attends_twice_counts_a_sequence_once() -> None:
    from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

    torch.manual_seed(0)
    config = DiffLlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    ids = torch.randint(0, 64, (3, 10), generator=torch.Generator().manual_seed(1))
    survey = scan(DiffLlamaForCausalLM(config).eval(), [{"input_ids": ids}])
    assert {int(np.max(cell.moments.count)) for key, cell in survey.cells.items() if key.measure == "entropy"} == {3}


def test_a_decoder_that_reads_one_token_is_not_measured() -> None:
    ids = torch.randint(0, 257, (2, 9), generator=torch.Generator().manual_seed(2))
    survey = scan(tiny_t5(), [{"input_ids": ids, "decoder_input_ids": torch.zeros(2, 1, dtype=torch.long)}])
    assert {key.stack for key in survey.cells if survey.cards[key.measure].scope != "weights"} == {"encoder"}


def test_tokens_are_counted_for_each_stack() -> None:
    ids = torch.randint(0, 257, (2, 9), generator=torch.Generator().manual_seed(2))
    survey = scan(tiny_t5(), [{"input_ids": ids, "decoder_input_ids": ids[:, :4]}])
    assert {s["name"]: s["tokens"] for s in survey.provenance["model"]["stacks"]} == {"encoder": 18, "decoder": 8}


def test_padded_batches_are_verified_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def listening(model: Any, inputs: Any, found: Any) -> Any:
        seen.append("attention_mask" in inputs)
        return verify(model, inputs, found)

    monkeypatch.setattr(provenance_module, "verify", listening)
    scan(tiny_llama(), [TEXT[:60], TEXT[:30], TEXT[:20]], tokenizer=byte_tokenizer())
    assert seen == [False, True]


def test_shards_merge_to_the_whole() -> None:
    """The merged surveys of two halves of a corpus equal the survey of all of it, bit for bit."""
    model, ids = tiny_llama(), torch.randint(0, 257, (4, 12), generator=torch.Generator().manual_seed(3))
    parts = [{"input_ids": ids[i : i + 1]} for i in range(4)]
    left, right = scan(model, parts[:2]), scan(model, parts[2:])
    whole = scan(model, parts)
    merged = left | right
    assert merged.cells.keys() == whole.cells.keys()
    for key, cell in whole.cells.items():
        assert cell.moments == merged.cells[key].moments
        assert cell.sketch == merged.cells[key].sketch
    assert merged.provenance["corpus"]["sequences"] == 4


def test_an_encoder_decoder_shows_both_stacks_and_cross_attention() -> None:
    survey = scan(tiny_t5(), [TEXT], tokenizer=byte_tokenizer(), max_tokens=16, samples=3)
    assert set(survey.stacks) == {"encoder", "decoder"}
    assert survey.values("entropy", stack="decoder", site="cross").shape == (2, 4)
    assert survey.values("entropy", stack="encoder").shape == (2, 4)


def test_a_model_without_a_tokenizer_reads_random_tokens() -> None:
    survey = scan(tiny_llama(), samples=3, max_tokens=8)
    assert survey.provenance["corpus"]["name"] == "random tokens (seed 0)"
    with pytest.raises(RefusalError, match="no tokenizer"):
        scan(tiny_llama(), [TEXT])


def test_nan_is_located_not_averaged() -> None:
    model = tiny_llama()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.fill_(float("nan"))
    ids = torch.randint(0, 257, (2, 9), generator=torch.Generator().manual_seed(2))
    survey = scan(model, [{"input_ids": ids}])
    findings = attnscope.diagnose(survey)
    weights, place = (f for f in findings if f.kind == "nonfinite")
    assert weights.details["weights"] == ["model.layers.1.mlp.down_proj.weight"]
    assert weights.severity == place.severity == "wrong"
    assert 2 in place.layers


def test_files_of_a_folder_are_counted_in_provenance(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT[:100])
    (tmp_path / "b.txt").write_text(TEXT[:80])
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0")
    options: dict[str, Any] = {"tokenizer": byte_tokenizer(), "measures": "entropy", "max_tokens": 16, "samples": 2}
    corpus = scan(tiny_llama(), tmp_path, **options).provenance["corpus"]
    assert (corpus["files_read"], corpus["files_skipped"]) == (2, 1)
    for other in (tmp_path / "a.txt", [TEXT]):
        assert not {"files_read", "files_skipped"} & scan(tiny_llama(), other, **options).provenance["corpus"].keys()


def test_the_python_twins_are_at_the_top() -> None:
    assert attnscope.scan is scan
    assert {"scan", "report", "compare", "catalog", "diagnose", "Survey"} <= set(dir(attnscope))
    with pytest.raises(AttributeError):
        attnscope.nothing_of_that_name  # noqa: B018


def test_a_batch_can_be_shortened_for_verification() -> None:
    ids = torch.arange(12).reshape(2, 6)
    batch = Batch({"input_ids": ids}, torch.ones(2, 6, dtype=torch.bool), (0, 1), 12)
    short = batch.shortened(4)
    assert short.inputs["input_ids"].shape == (2, 4)
    assert short.tokens == 8
    assert batch.shortened(6) is batch


def test_a_bare_batch_and_a_generator_of_batches_are_taken() -> None:
    ids = torch.randint(0, 257, (2, 9), generator=torch.Generator().manual_seed(2))
    one = scan(tiny_llama(), {"input_ids": ids})
    assert _same(one, scan(tiny_llama(), ({"input_ids": part} for part in [ids])))


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ({"input_ids": torch.full((2, 9), 999)}, "does not run on the first batch"),
        ({"nonsense": torch.zeros(2, 9)}, "does not run on the first batch"),
        (
            {"input_ids": torch.ones(2, 4).long(), "attention_mask": torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0]])},
            "that is only padding",
        ),
    ],
)
def test_batches_that_do_not_run_are_refused_in_a_sentence(batch: dict[str, torch.Tensor], says: str) -> None:
    with pytest.raises(RefusalError, match=says):
        scan(tiny_llama(), [batch])


def test_special_tokens_outside_the_vocabulary_are_left_out() -> None:
    """A small configuration keeps the BOS id of the full model; a tokenizer may pad with a token the model lacks."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, n_positions=64, vocab_size=257)
    assert config.bos_token_id > 257
    model = GPT2LMHeadModel(config).eval()
    assert scan(model, samples=2, max_tokens=8).values("entropy").shape == (1, 2)
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    assert tokenizer.pad_token_id >= 257
    assert scan(model, [TEXT[:40], TEXT[:20]], tokenizer=tokenizer).values("entropy").shape == (1, 2)
