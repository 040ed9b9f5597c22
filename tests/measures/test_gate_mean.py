import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import attnscope
from attnscope.measures.gate_mean import gate_mean

IDS = torch.arange(24).reshape(2, 12)


def test_by_hand(ask):
    gate = torch.tensor([[[[0.5, 1.0], [0.0, 0.0]], [[0.25, 0.25], [1.0, 1.0]]]], dtype=torch.float64)
    mixed = torch.zeros(1, 2, 4, 3)  # two heads to each gated value
    real = torch.ones(1, 2, dtype=torch.bool)
    assert ask(gate_mean, {"gate": gate, "mixed": mixed, "query_mask": real}).tolist() == [[0.5, 0.5, 0.5, 0.5]]
    real[0, 1] = False
    assert ask(gate_mean, {"gate": gate, "mixed": mixed, "query_mask": real}).tolist() == [[0.75, 0.75, 0.0, 0.0]]


@pytest.fixture(scope="module")
def model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=2, n_head=2)).eval()


@pytest.mark.parametrize("variant", ["gated_output", "gated_value"])
def test_installed_gates_are_seen(model, variant):
    with attnscope.installed(model, variant, blocks=[1]):
        open_ = attnscope.scan(model, [{"input_ids": IDS}], measures="gate_mean,entropy").values("gate_mean")
        gates = [(name, p) for name, p in model.named_parameters() if name.endswith(("gate_weight", "gate_bias"))]
        assert len(gates) == 2
        with torch.no_grad():
            for name, parameter in gates:
                if name.endswith("gate_bias"):
                    parameter.view(2, -1)[1] = -20.0  # the gate of the second head is closed
        shut = attnscope.scan(model, [{"input_ids": IDS}], measures="gate_mean").values("gate_mean")
    assert np.isnan(open_[0]).all(), "block 0 has no gate"
    assert open_[1].tolist() == pytest.approx([1.0, 1.0]), "they begin open: gain 2, sigmoid(0)"
    assert shut[1].tolist() == pytest.approx([1.0, 0.0], abs=1e-6)


def test_absent_without_gates(model):
    survey = attnscope.scan(model, [{"input_ids": IDS}])
    assert "gate_mean" not in survey.cards
    asked = attnscope.scan(model, [{"input_ids": IDS}], measures="entropy,gate_mean")
    assert asked.provenance["not_measured"] == {"gate_mean": "gate not found"}
