"""Maps of the operator against T written out: exact, from probes, and refusals."""

from typing import Any

import pytest
import torch

from attnscope.core.errors import RefusalError
from attnscope.core.progress import silent
from attnscope.pathways import affine as affine_module
from attnscope.pathways.affine import Affine
from attnscope.pathways.operator_maps import collapsed
from tests.pathways.test_operator import KINDS, ROUNDING, small


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at_once", [7, 1000])
def test_maps_equal_the_matrix_for_any_number_of_passes_at_once(
    kind: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    op, dense = small()
    monkeypatch.setattr(affine_module, "MAX_NUMBERS", at_once * 8 * op.input.numel())
    assert op.affine.at_once == at_once
    mapped = op.map(kind)
    apart = dense.reshape(5, 8, 5, 8).transpose(1, 2)  # row, token, out, width
    unit = op.output / op.output.norm(dim=-1, keepdim=True)
    wanted = {
        "norm": torch.linalg.matrix_norm(apart),
        "input": torch.einsum("ijow,jw->ijo", apart, op.input).norm(dim=-1),
        "output": torch.einsum("io,ijow->ijw", unit, apart).norm(dim=-1),
        "contribution": torch.einsum("io,ijow,jw->ij", unit, apart, op.input),
    }[kind]
    torch.testing.assert_close(torch.tensor(mapped.values, dtype=torch.float64), wanted, atol=ROUNDING, rtol=0)
    assert mapped.exact
    assert mapped.products == (40 if kind == "norm" else 5)
    assert (mapped.constants is not None) == (kind == "contribution")
    if mapped.constants is not None:
        sums = [sum(row) + constant for row, constant in zip(mapped.values, mapped.constants, strict=True)]
        assert sums == pytest.approx(op.output.norm(dim=-1).tolist(), abs=ROUNDING)
        assert list(mapped.totals or ()) == pytest.approx(sums, abs=ROUNDING)


def test_a_contribution_is_the_same_by_passes_back() -> None:
    """Here the map is computed token by token; with fewer rows than tokens it would be computed row by row."""
    op, _ = small()
    unit = op.output / op.output.norm(dim=-1, keepdim=True)
    alone = torch.eye(5, dtype=torch.float64)[:, :, None] * unit
    values = torch.tensor(op.map("contribution").values, dtype=torch.float64)
    torch.testing.assert_close(values, ((op.T @ alone) * op.input).sum(-1), atol=ROUNDING, rtol=0)


def test_probes_are_within_their_stated_error_of_the_norm() -> None:
    op, _ = small()
    exact = torch.tensor(op.map("norm", exact=True).values)
    found = op.map("norm", probes=64, seed=3)
    assert not found.exact
    assert found.products == 64 * 5
    assert found.provenance["seed"] == 3
    scores = (torch.tensor(found.values) - exact) / torch.tensor(found.errors)
    # 25 scores of about unit spread (those of a token share their signs): a root mean square of 1 to within 0.5, and
    # none beyond 4. The draw is fixed and the same on every processor.
    assert 0.5 < float(scores.square().mean().sqrt()) < 1.5
    assert float(scores.abs().max()) < 4
    assert op.map("norm", probes=64, seed=3).values == found.values
    assert op.map("norm", probes=64, seed=4).values != found.values


class LowRank(Affine):
    """A map from one token to 40 rows, each of which reads it along a single direction of its own: rank one."""

    weights = torch.randn(40, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    enters = torch.zeros(1, 24, dtype=torch.float64)
    leaves = torch.zeros(40, 1, dtype=torch.float64)
    at_once = 1000

    def __init__(self) -> None:
        pass

    def times(self, vectors: torch.Tensor) -> torch.Tensor:
        return (vectors[:, 0] @ self.weights.mT)[:, :, None]


def test_errors_of_probes_are_even_on_the_logarithm_also_for_low_ranks() -> None:
    """40 rows, 30 seeds, 16 probes: misses over errors have a mean within 0.3 of 0 and a root mean square below 1.3.
    The error of the root, se / (2 sqrt m), gave -0.33 and 1.35 on such rows. A warning stands below 32 probes."""
    exact = LowRank.weights.norm(dim=-1)
    scores = []
    for seed in range(30):
        estimate = collapsed(LowRank(), "norm", 16, False, seed, silent)
        assert estimate.errors is not None
        size = estimate.values[:, 0]
        scores.append((size / exact).log() * size / estimate.errors[:, 0])
    missed = torch.stack(scores)
    assert abs(float(missed.mean())) < 0.3
    assert 0.8 < float(missed.square().mean().sqrt()) < 1.3
    op, _ = small()
    assert any("16 probes are few" in note for note in op.map("norm", probes=16).notes)
    assert not any("are few" in note for note in op.map("norm", probes=32).notes)


def test_norm_is_estimated_if_it_takes_too_many_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    op, _ = small()
    monkeypatch.setattr("attnscope.pathways.operator_maps.EXACT_PRODUCTS", 39)
    assert op.map("norm").probes == 32
    assert op.map("norm", exact=True).exact


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"kind": "nrom"}, "no map called 'nrom'"),
        ({"kind": "input", "probes": 4}, "leave probes and exact out"),
        ({"kind": "norm", "probes": 4, "exact": True}, "takes no probes"),
        ({"kind": "norm", "probes": 1}, "two probes or more"),
    ],
)
def test_bad_options_of_a_map_are_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(RefusalError, match=said):
        small()[0].map(**asked)
