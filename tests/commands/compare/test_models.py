"""Models compared directly: they are scanned with the same settings, and their tensors are compared."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import attnscope
from attnscope.commands.compare.record import Comparison
from attnscope.commands.compare.run import is_survey
from attnscope.commands.compare.verdict import verdict
from attnscope.core.errors import RefusalError
from attnscope.hf.loading.load import Loaded, load

Fault = Callable[[Any], None]


@pytest.fixture(scope="module")
def pocket() -> Loaded:
    return load("pocket")


def row_of_an_mlp(model: Any) -> None:
    model.model.layers[3].mlp.down_proj.weight.data[17] *= 80


def queries_of_a_head(model: Any) -> None:
    model.model.layers[2].self_attn.q_proj.weight.data[32:64] *= -1


def row_of_an_output(model: Any) -> None:
    model.model.layers[1].self_attn.o_proj.weight.data[5] *= 80


def lost_mask(model: Any) -> None:
    for block in model.model.layers:
        block.self_attn.is_causal = False


def final_norm(model: Any) -> None:
    model.model.norm.weight.data *= 3


def in_16_bits(model: Any) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()


def planted(pocket: Loaded, fault: Fault) -> Comparison:
    broken = copy.deepcopy(pocket.model)
    fault(broken)
    given: dict[str, Any] = {"tokenizer": pocket.tokenizer, "samples": 8, "max_tokens": 64}
    return attnscope.compare(pocket.model, broken, **given)


@pytest.mark.parametrize(
    ("fault", "place", "words"),
    [
        (
            row_of_an_mlp,
            (3, "mlp", None),
            "the MLP of block 3 writes 3.9x larger; model.layers.3.mlp.down_proj.weight differs there (row 17 ×80)",
        ),
        (queries_of_a_head, (2, "attention", 1), "head 1 of block 2 attends elsewhere: attention entropy"),
        (
            row_of_an_output,
            (1, "attention", None),
            "model.layers.1.self_attn.o_proj.weight differs there (row 5 ×80)",
        ),
        (
            lost_mask,
            (0, "attention", None),
            "sees later tokens. All 56 tensors are equal: the configuration or the code",
        ),
        (
            final_norm,
            (None, "output", None),
            "after the last one, in the final norm or the output layer; model.norm.weight",
        ),
    ],
)
def test_planted_faults_are_named(pocket: Loaded, fault: Fault, place: tuple[Any, ...], words: str) -> None:
    found = planted(pocket, fault)
    assert found.parting is not None
    assert (found.parting.layer, found.parting.half, found.parting.head) == place
    told = verdict(found)
    assert words in told.sentence
    if fault is queries_of_a_head:  # this head hardly matters to the loss
        assert told.sentence.startswith("The loss is the same within chance: ")
        assert not found.worse()
        return
    lead = "the model sees later tokens, from block 0 on." if fault is lost_mask else "the loss rises by "
    assert told.sentence.startswith(f"Worse: {lead}")
    assert told.level == "critical"
    assert found.worse()


def test_an_untouched_copy_is_the_same(pocket: Loaded) -> None:
    found = planted(pocket, lambda _: None)
    told = verdict(found)
    assert told.level == "calm"
    assert told.sentence.startswith("The loss is the same to the last digit")
    assert told.sentence.endswith("Every number is the same. All 56 tensors are equal.")
    assert found.changes == ()


def test_rounded_weights_are_counted_and_not_listed(pocket: Loaded) -> None:
    found = planted(pocket, in_16_bits)
    (weights,) = found.weights
    assert weights.tensors == ()
    assert weights.rounded > 40
    assert "differ by rounding to 16 bits only" in verdict(found).sentence


def test_weights_stay_in_the_file(pocket: Loaded, tmp_path: Path) -> None:
    found = planted(pocket, row_of_an_mlp)
    path = found.save(tmp_path / "comparison.json")
    read = attnscope.load(path)
    assert read == found
    assert read.sentences() == found.sentences()
    (tensor,) = found.weights[0].tensors
    assert (tensor.name, tensor.layer, tensor.part) == ("model.layers.3.mlp.down_proj.weight", 3, "mlp")


def test_missing_and_extra_tensors(pocket: Loaded) -> None:
    from attnscope.commands.compare.models import weights_change

    other: Any = copy.deepcopy(pocket.model)
    other.model.norm.register_parameter("bias", torch.nn.Parameter(torch.zeros(2)))
    (extra,) = weights_change(pocket.model, other).tensors
    assert (extra.name, extra.happened) == ("model.norm.bias", "extra")
    (missing,) = weights_change(other, pocket.model).tensors
    assert missing.happened == "missing"


def test_a_survey_and_a_model_are_mixed(pocket: Loaded) -> None:
    survey = attnscope.scan("pocket", samples=4, max_tokens=64, measures="entropy,spike")
    found = attnscope.compare(survey, "pocket")
    assert found.second.provenance["corpus"] == survey.provenance["corpus"]
    assert found.changes == ()
    assert found.weights == ()
    own = attnscope.scan(
        "pocket", ["A text of the caller, which is long enough for sixteen tokens or so."], max_tokens=8
    )
    with pytest.raises(RefusalError, match="which is not here under that name: name it with `corpus=`"):
        attnscope.compare(own, pocket)


def test_surveys_and_models_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "scan").mkdir()
    attnscope.scan("pocket", samples=2, max_tokens=16, measures="entropy").save(tmp_path / "scan" / "survey.json")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    assert is_survey(tmp_path / "scan")
    assert is_survey(tmp_path / "scan" / "survey.json")
    assert is_survey("nothing.json")
    assert not is_survey("pocket")
    assert not is_survey(model)
    assert not is_survey(model / "config.json")
    assert not is_survey("org/model")
    with pytest.raises(RefusalError, match="two surveys or models"):
        attnscope.compare("pocket")
