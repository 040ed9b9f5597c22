"""Sigma-reparametrisation: spectral norms that are one number each."""

import pytest
import torch

from attnscope.core.errors import RefusalError
from attnscope.papers.models.nano import Config, Nano
from attnscope.papers.trials.remedied_stacks import with_unit_spectral_norm
from attnscope.variants.sigma_reparam import sigma_reparam
from tests.variants.calls import noise


def test_the_largest_singular_value_is_the_gain() -> None:
    weights = {"query_weight": noise(0, 6, 4), "key_weight": noise(1, 6, 4), "key_bias": noise(2, 6)}
    found = sigma_reparam(weights, query_weight_gain=torch.tensor(2.5))
    assert float(torch.linalg.svdvals(found["query_weight"])[0]) == pytest.approx(2.5)
    assert found["key_weight"] is weights["key_weight"]
    assert found["key_bias"] is weights["key_bias"]
    assert set(sigma_reparam.start(weights)) == {"query_weight_gain", "key_weight_gain"}


def test_scaling_a_matrix_changes_nothing_once_it_has_a_gain() -> None:
    gain = {"weight_gain": torch.tensor(1.5, dtype=torch.float64)}
    small, large = (sigma_reparam({"weight": factor * noise(0, 6, 4)}, **gain)["weight"] for factor in (1.0, 50.0))
    torch.testing.assert_close(small, large)


def test_gain_of_a_missing_matrix_is_refused() -> None:
    with pytest.raises(RefusalError, match="value_weight_gain"):
        sigma_reparam({"query_weight": noise(0, 6, 4)}, value_weight_gain=torch.ones(()))


def test_every_linear_map_of_a_model() -> None:
    model = Nano(Config(vocab_size=20, width=8, heads=2, layers=2, initial=0.6), seed=0).double()
    with_unit_spectral_norm(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            assert float(torch.linalg.matrix_norm(module.weight.detach(), ord=2)) == pytest.approx(1)
