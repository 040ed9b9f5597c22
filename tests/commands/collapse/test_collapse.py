"""collapse on small models: curves, bounds, notes and refusals."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertConfig, BertModel, Dinov2Config, Dinov2Model, EsmConfig, EsmModel, MPNetConfig, MPNetModel

from attnscope.commands.collapse import run as collapse_module
from attnscope.commands.collapse import running as measured_module
from attnscope.commands.collapse.bound_tables import end_to_end
from attnscope.commands.collapse.bounding import Bounding, known_weights
from attnscope.commands.collapse.record import Collapse
from attnscope.commands.collapse.run import collapse
from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.anatomy.mlp_bound import mlp_bounds
from attnscope.hf.anatomy.precision import coarse_modules, widened
from attnscope.hf.editing.surgery import CUTS, cut
from attnscope.hf.loading.load import load
from attnscope.hf.tapping.padding import attention_inputs
from attnscope.hf.tapping.tap import tap
from attnscope.matrix.residual import relative_residual
from attnscope.papers.models.nano import Config, Nano
from tests.specimens import TEXT, byte_tokenizer, save_specimen, tiny_llama

SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48}


def bert(seed: int = 0) -> BertModel:
    torch.manual_seed(seed)
    return BertModel(BertConfig(**SIZES, max_position_embeddings=40)).eval()


def nano(seed: int = 0, **changes: Any) -> Nano:
    made: dict[str, Any] = {
        "vocab_size": 30,
        "width": 16,
        "heads": 2,
        "layers": 4,
        "norm": "none",
        "mlp": 24,
        "initial": 0.12,
    }
    return Nano(Config(**{**made, **changes}), seed=seed)


def ids(rows: int = 4, tokens: int = 12, vocabulary: int = 30) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(0, vocabulary, (rows, tokens), generator=torch.Generator().manual_seed(5))}


@pytest.fixture(scope="module")
def of_bert() -> Collapse:
    return collapse(bert(), [ids(6, 16, 60)], bound_samples=2)


def test_attention_alone_collapses_and_skips_prevent_it(of_bert: Collapse) -> None:
    assert list(of_bert.curves) == list(CUTS)
    assert {len(curve.mean) for curve in of_bert.curves.values()} == {5}
    assert of_bert.curves["san"].mean[-1] < 1e-13
    assert of_bert.curves["san+mlp"].mean[-1] < 1e-13
    assert min(of_bert.curves["san+skip"].mean) > 0.3
    assert min(of_bert.curves["whole"].mean) > 0.3
    assert of_bert.curves["san"].n == (6,) * 5
    for curve in of_bert.curves.values():  # every variant starts from the same embedding
        assert curve.mean[0] == of_bert.curves["whole"].mean[0]
        assert all(low <= high for low, high in zip(curve.low, curve.high, strict=True))
    assert of_bert.order == pytest.approx(3, abs=0.3)
    assert of_bert.weights == "as given"  # a model in memory may hold anything: this one was never trained
    assert of_bert.norm_placement == "post"


def test_weights_are_described_by_their_origin(of_bert: Collapse, tmp_path: Path) -> None:
    assert of_bert.weights_words == "weights as given"
    assert "norm post, weights as given" in Path(of_bert.write_page(tmp_path / "page.html")).read_text("utf-8")
    few: dict[str, Any] = {"variants": "whole", "samples": 2, "max_tokens": 8, "bounds": False}
    trained = collapse(save_specimen(tmp_path / "m"), **few)
    assert (trained.weights, trained.weights_words) == ("trained", "trained weights")
    drawn = collapse(tmp_path / "m", random_init=True, **few)
    assert (drawn.weights, drawn.weights_words) == ("random", "random weights")
    assert collapse(load(tmp_path / "m", random_init=True), **few).weights == "random"
    assert collapse(lambda seed: tiny_llama(seed), **few).weights == "random"


def test_whole_is_the_models_own_residual() -> None:
    model, batch = bert().double(), ids(3, 10, 60)
    with torch.no_grad():
        states = model(**batch, output_hidden_states=True).hidden_states
    found = collapse(model, [batch], variants="whole", bounds=False)
    expected = [float(relative_residual(state).mean()) for state in states]
    np.testing.assert_allclose(found.curves["whole"].mean, expected, rtol=1e-12)


def test_callers_model_is_unchanged() -> None:
    model = bert().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    collapse(model, [ids(2, 8, 60)], variants="san", bounds=False)
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert next(model.parameters()).dtype == torch.float32


def test_bounds_hold_and_apply_on_stacks_without_norms() -> None:
    found = collapse(lambda seed: nano(seed), [ids()], seeds=(0, 1, 2))
    assert all(row.violations == 0 for rows in (found.bounds, found.skip_bounds) for row in rows)
    assert {end.name for end in found.ends} == {"contraction", "cubic", "theorem 2.3", "corollary 3.2"}
    for end in found.ends:
        assert end.applies, end
        for bound, truth in zip(end.bound, end.truth, strict=True):
            assert truth <= bound + 1e-9 or truth < -14  # at the floor the truth is rounding
    alone = {end.name: end for end in found.ends if end.variant == "san"}
    for a, c in zip(alone["contraction"].bound, alone["cubic"].bound, strict=True):
        assert a <= c + 1e-9
    assert len(found.curves["san"].by_seed) == 3
    assert found.curves["san"].n[0] == 12
    assert found.order == pytest.approx(3, abs=0.25)


STACK = nano(layers=3, mlp=None).double()
BATCH = ids(2, 7)
with torch.no_grad():
    FOUND = anatomy(STACK, BATCH)


@settings(max_examples=60)  # each reads three layers of two sequences
@given(seed=st.integers(0, 10**6), size=st.sampled_from([0.05, 0.15, 0.3, 0.6, 1.2]), skip=st.booleans())
def test_random_stacks_violate_no_bound_of_a_layer_or_of_all(seed: int, size: float, skip: bool) -> None:
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in STACK.parameters():
            parameter.copy_(size * torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
        seen = Bounding(FOUND.stacks[0], known_weights(STACK, FOUND, FOUND.stacks[0]))
        with (
            cut(STACK, FOUND, CUTS["san+skip" if skip else "san"]),
            attention_inputs(STACK, FOUND, seen.took),
            tap(STACK, FOUND, seen.receive),
        ):
            STACK(**BATCH)
    assert len(seen.readings) == 6
    assert not seen.reasons
    assert sum(reading.violations for reading in seen.readings) == 0
    assert not any(reading.skip_violated for reading in seen.readings)
    for end in () if skip else end_to_end(seen, "san"):
        rounding = max(reading.rounding for reading in seen.readings)
        for bound, truth in zip(end.bound, end.truth, strict=True):
            assert not end.applies or 10**truth <= 10 ** min(bound, 300) * (1 + 1e-9) + rounding


def test_condition_of_the_theorem_is_checked() -> None:
    found = collapse(nano(initial=0.9, mlp=None), [ids()], variants="san")
    assert found.bounds[0].condition_met == 0
    end = next(end for end in found.ends if end.name == "theorem 2.3")
    assert not end.applies
    assert "1.256" in end.why_not
    assert end.bound[-1] > 10 > end.truth[-1]  # astronomically large, and printed


def test_note_that_bounds_ignore_norms(of_bert: Collapse) -> None:
    assert of_bert.ends
    assert all(not end.applies and "norms" in end.why_not for end in of_bert.ends)
    assert all(row.cubic is not None and row.violations == 0 for row in of_bert.bounds)


def test_masks_and_rotations_are_found_by_arithmetic() -> None:
    masked = collapse(nano(causal=True), [ids()], variants="san")
    assert any("a mask hides keys" in note for note in masked.notes)
    assert all(row.cubic is None and row.contraction >= row.after - 1e-12 for row in masked.bounds)
    torch.manual_seed(0)
    sizes = {**SIZES, "pad_token_id": 1, "initializer_range": 0.3, "max_position_embeddings": 40}
    for model in (
        EsmModel(EsmConfig(**sizes, position_embedding_type="rotary")),
        MPNetModel(MPNetConfig(**sizes)),  # a bias that depends on the distance
    ):
        found = collapse(model.eval(), [{"input_ids": ids(2, 9)["input_ids"] + 4}], variants="san")
        assert any("rotated" in note for note in found.notes), type(model)
        assert all(row.cubic is None and row.violations == 0 for row in found.bounds)


def test_casts_to_float32_are_found_and_skipped() -> None:
    found = collapse(tiny_llama(), [ids(2, 9)], variants="san", bounds=False)
    assert found.floor == torch.finfo(torch.float64).eps
    assert any("LlamaRMSNorm" in note and "skipped" in note for note in found.notes)
    assert coarse_modules(bert().double(), ids(1, 8)) == ()
    model = tiny_llama().double()
    assert coarse_modules(model, ids(1, 8)) == ("LlamaRMSNorm",)
    with widened():
        assert coarse_modules(model, ids(1, 8)) == ()
    assert torch.ones(1, dtype=torch.float64).float().dtype == torch.float32


def test_note_on_float32_rounding() -> None:
    found = collapse(bert(), [ids(2, 9, 60)], variants="san", dtype="auto", bounds=False)
    assert found.floor == torch.finfo(torch.float32).eps
    assert any("float32" in note for note in found.notes)
    assert 1e-9 < found.curves["san"].mean[-1] < 1e-5


def test_lipschitz_constants_hold_and_gates_have_none() -> None:
    model = bert().double()
    found = anatomy(model)
    constants = mlp_bounds(model, found, found.stacks[0], ids(1, 8))
    assert isinstance(constants, dict)
    layer = model.encoder.layer[2]
    x, y = torch.randn(2, 50, 32, dtype=torch.float64)
    with torch.no_grad():
        change = layer.output.dense(layer.intermediate(x)) - layer.output.dense(layer.intermediate(y))
    assert bool((change.norm(dim=1) <= constants[2].spectral * (x - y).norm(dim=1)).all())
    assert bool((change.abs().sum(1) <= constants[2].inf * (x - y).abs().sum(1)).all())
    gated = tiny_llama()
    found = anatomy(gated)
    assert "gated" in str(mlp_bounds(gated, found, found.stacks[0], ids(1, 8)))


def test_padding_does_not_change_numbers() -> None:
    short, long = ids(1, 7, 60)["input_ids"], ids(1, 12, 60)["input_ids"]
    padded = torch.cat([torch.nn.functional.pad(short, (0, 5), value=59), long])
    mask = torch.tensor([[1] * 7 + [0] * 5, [1] * 12])
    together = collapse(bert(), [{"input_ids": padded, "attention_mask": mask}], bound_samples=2)
    apart = collapse(bert(), [{"input_ids": short}, {"input_ids": long}])
    for name in ("san+skip", "whole"):
        np.testing.assert_allclose(together.curves[name].mean, apart.curves[name].mean, rtol=1e-10)
    assert together.curves["san"].mean[1] == pytest.approx(apart.curves["san"].mean[1], rel=1e-8)
    assert all(row.violations == 0 and row.sequences == 2 for row in together.bounds)


def test_single_tokens_are_skipped_or_refused() -> None:
    one = {"input_ids": torch.tensor([[3]])}
    found = collapse(bert(), [ids(2, 8, 60), one], variants="whole", bounds=False)
    assert found.curves["whole"].n[0] == 2
    assert any("1 sequence of a single token" in note for note in found.notes)
    with pytest.raises(RefusalError, match="single token"):
        collapse(bert(), [one], variants="whole", bounds=False)


def test_text_and_random_tokens() -> None:
    found = collapse(tiny_llama(), [TEXT], tokenizer=byte_tokenizer(), samples=3, max_tokens=20, variants="whole,san")
    assert found.tokens == 20
    assert list(found.curves) == ["whole", "san"]
    with pytest.raises(RefusalError, match="64 positions"):
        collapse(tiny_llama(), [TEXT], tokenizer=byte_tokenizer(), max_tokens=100)
    assert collapse(tiny_llama(), samples=2, variants="whole", bounds=False).tokens == 64  # the default gives way


@pytest.mark.parametrize("norm", ["frobenius", "1"])
def test_other_norms(norm: str) -> None:
    found = collapse(bert(), [ids(2, 8, 60)], norm=norm, bounds=False)
    assert found.curves["san"].mean[-1] < 1e-12
    assert found.curves["whole"].mean[-1] > 0.1


def test_memory_running_out_halves_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = bert().double()
    whole = collapse(model, [ids(4, 8, 60)], variants="whole", bounds=False)
    forward = BertModel.forward
    large: list[int] = []

    def starved(self: BertModel, input_ids: torch.Tensor, **more: object) -> object:
        if len(large) < 1 and len(input_ids) > 2 and armed:
            large.append(len(input_ids))
            raise torch.OutOfMemoryError("out of memory")
        return forward(self, input_ids, **more)

    armed = False
    run = measured_module._run

    def arm(*args: Any) -> Any:
        nonlocal armed
        armed = True
        return run(*args)

    monkeypatch.setattr(BertModel, "forward", starved)
    monkeypatch.setattr(measured_module, "_run", arm)
    again = collapse(model, [ids(4, 8, 60)], variants="whole", bounds=False)
    assert large == [4]
    np.testing.assert_allclose(again.curves["whole"].mean, whole.curves["whole"].mean, rtol=1e-12)


def test_bounds_that_do_not_fit_are_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def starved(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    monkeypatch.setattr(collapse_module, "bounded", starved)
    with pytest.raises(RefusalError, match="`bounds=False`"):
        collapse(bert(), [ids(2, 8, 60)], variants="san")
    monkeypatch.setattr(collapse_module, "bounded", lambda *_: int("none"))
    with pytest.raises(ValueError, match="none"):  # any other failure is not explained away
        collapse(bert(), [ids(2, 8, 60)], variants="san")


def test_nan_weights_and_infinite_inputs_are_refused() -> None:
    model = bert()
    model.encoder.layer[1].output.dense.weight.data[0, 0] = torch.nan
    with pytest.raises(RefusalError, match=r"encoder\.layer\.1\.output\.dense\.weight"):
        collapse(model, [ids(2, 8, 60)], variants="whole", bounds=False)
    reader = Nano(Config(inputs=3, out=2, width=8, heads=2, layers=2), seed=0)
    sound = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))
    broken = torch.full((1, 6, 3), torch.inf)
    with pytest.raises(RefusalError, match="from depth 0 on"):
        collapse(reader, [{"vectors": sound.double()}, {"vectors": broken.double()}], variants="whole", bounds=False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"variants": "sann"}, "`variants=` cannot be 'sann'"),
        ({"norm": "2"}, "`norm=` cannot be '2'"),
        ({"seeds": ()}, "at least one"),
        ({"seeds": (0, 1)}, "Weights that are not drawn"),
        ({"random_init": True}, "function from seed"),
        ({"stack": "decoder"}, "no stack 'decoder'"),
        ({"dtype": "float65"}, "`dtype=` cannot be 'float65'"),
    ],
)
def test_refusals(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RefusalError, match=words):
        collapse(bert(), [ids(1, 8, 60)], **changes)


def test_seeds_may_be_counted() -> None:
    found = collapse(lambda seed: bert(seed), [ids(2, 8, 60)], seeds=2, variants="whole", bounds=False)
    assert len(found.curves["whole"].by_seed) == 2


def test_short_texts_are_sequences_of_their_own() -> None:
    found = collapse(tiny_llama(), ["a dog", "the cat sat"], tokenizer=byte_tokenizer(), variants="whole", bounds=False)
    assert found.curves["whole"].n == (2,) * 4
    assert found.tokens == len(byte_tokenizer()("the cat sat")["input_ids"])


class Chance(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5, training=True)


def test_a_model_that_is_random_in_evaluation_is_refused() -> None:
    model = bert()
    model.encoder.layer[1].intermediate.intermediate_act_fn = Chance()
    with pytest.raises(RefusalError, match="changes from run to run"):
        collapse(model, [ids(1, 8, 60)])


def test_quantised_weights_are_refused_by_name() -> None:
    model = bert()
    packed = type("Linear", (torch.nn.Identity,), {"__module__": "torch.ao.nn.quantized.dynamic.modules.linear"})
    model.encoder.layer[1].attention.output.dense = packed()
    with pytest.raises(RefusalError, match=r"encoder\.layer\.1\.attention\.output\.dense of BertModel is quantised"):
        collapse(model, [ids(1, 8, 60)])


def test_eight_bit_weights_are_refused_and_integer_buffers_are_not() -> None:
    model = bert()
    model.register_buffer("table", torch.zeros(3, 3, dtype=torch.int64))
    assert collapse(model, [ids(1, 8, 60)], variants="whole", bounds=False).curves
    narrow = model.encoder.layer[0].output.dense
    narrow.weight = torch.nn.Parameter(narrow.weight.to(torch.float8_e4m3fn), requires_grad=False)
    with pytest.raises(RefusalError, match=r"layer\.0\.output\.dense of BertModel is quantised"):
        collapse(model, [ids(1, 8, 60)])


def test_a_batch_the_model_cannot_read_is_refused() -> None:
    with pytest.raises(RefusalError, match="does not run on batch 1"):
        collapse(bert(), [ids(1, 41, 60)])  # 40 positions


def test_saved_and_loaded(of_bert: Collapse, tmp_path: Path) -> None:
    again = Collapse.load(of_bert.save(tmp_path / "collapse.json"))
    assert again.to_json() == of_bert.to_json()
    assert again.curves["san"] == of_bert.curves["san"]
    assert math.isnan(Collapse.from_json({**of_bert.to_json(), "order": None}).order)
    (tmp_path / "other.json").write_text('{"format": "x"}')
    for name in ("other.json", "nothing.json"):
        with pytest.raises(RefusalError):
            Collapse.load(tmp_path / name)


def test_scaled_writes_have_no_skip_bound() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 12, "patch_size": 4}
    images = [{"pixel_values": torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))}]
    for scale, speaks in ((1.0, True), (1e-3, False)):
        model = Dinov2Model(Dinov2Config(**sizes, layerscale_value=scale)).eval()
        found = collapse(model, images)
        assert len(found.skip_bounds) == (2 if speaks else 0)
        assert any("changed before it is added" in note for note in found.notes) != speaks
        assert len(found.bounds) == 2  # attention alone is judged by what it writes


def test_html_is_escaped_and_repr_is_short(of_bert: Collapse) -> None:
    words = Collapse.from_json({**of_bert.to_json(), "model": "<script>x"})._repr_html_()
    assert "<script>" not in words
    assert "&lt;script&gt;x" in words
    assert len(repr(of_bert)) < 300
    assert "san+skip" in repr(of_bert)
    assert of_bert.sentences()[0].startswith(
        "Attention alone collapses: after block 2 only rounding is left (below 1e-1"
    )
