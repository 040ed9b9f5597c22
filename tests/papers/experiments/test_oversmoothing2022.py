"""`oversmoothing2022`, small enough to run in every test; contraction, the bound on a block, and fusions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attnscope.core.experiment import UnsavedSession
from attnscope.matrix.residual import residual_frobenius
from attnscope.matrix.similarity import token_cosine
from attnscope.papers.experiments.oversmoothing2022 import oversmoothing2022
from attnscope.papers.models.nano import Config, Nano
from attnscope.papers.trials.smoothing import (
    Fused,
    contraction_of,
    contraction_ratios,
    encoder,
    fused,
    identical_tokens,
    smoothed,
    streams_of,
)
from attnscope.papers.trials.trained_alike import Training

TINY = replace(
    oversmoothing2022.presets["quick"],
    draws=4,
    tokens=6,
    width=8,
    heads=2,
    layers=2,
    sequences=1,
    gains=(0.5, 1.0),
    trained_layers=1,
    trained_width=8,
    data=(12, 4),
    training=Training(steps=2, batch=4),
    model=None,
)
NOT_RUN = {claim.name for claim in oversmoothing2022.claims if claim.name.endswith("model") or "_model_" in claim.name}


def test_every_gain_has_a_curve_and_a_missing_model_has_none() -> None:
    found = oversmoothing2022.run(TINY, (0,), UnsavedSession())
    random, trained, _ = found.figures
    assert len({row.series for row in random.rows}) == len(TINY.gains)
    assert {row.series for row in trained.rows} == {f"encoder, {kind}" for kind in ("plain", "concat", "max", "gate")}


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_contraction_is_the_root_of_the_top_eigenvalue() -> None:
    pattern = noise(7, 7).softmax(-1)
    centre = torch.eye(7, dtype=torch.float64) - 1 / 7
    top = torch.linalg.eigvalsh(pattern.mT @ centre @ pattern)[-1]
    assert float(contraction_of(pattern)) == pytest.approx(float(top) ** 0.5, rel=1e-12)
    assert float(contraction_of(torch.full((5, 5), 0.2, dtype=torch.float64))) == pytest.approx(0, abs=1e-15)


def test_nothing_passes_the_bound_and_one_direction_reaches_it() -> None:
    ratios = contraction_ratios(8, 4, 20, 0)
    assert ratios["largest"] <= 1 + 1e-12
    assert ratios["attained"] == pytest.approx(1.0, abs=1e-9)


def test_identical_tokens_have_no_residual() -> None:
    """A mean of n equal numbers is off by n roundings at most."""
    zero, one = identical_tokens(16, 8, 0)
    assert zero <= 16 * 2**-53
    assert one <= 16 * 2**-52


@pytest.mark.parametrize("gain", [0.3, 3.0])
def test_blocks_stay_below_their_bound(gain: float) -> None:
    for alone in (False, True):
        rows = smoothed(encoder(3, 8, 2, gain, 0, alone=alone), noise(2, 6, 8))
        assert [row["depth"] for row in rows] == [0, 1, 2, 3]
        assert all(0 < row["of_bound"] <= 1 for row in rows[1:])


def test_tokens_that_attend_to_themselves_are_not_mixed() -> None:
    """Changing one token changes it alone; with attention it changes the others too."""
    tokens = noise(1, 5, 8)
    other = tokens.clone()
    other[:, 2] += 1.0
    for alone in (True, False):
        model = encoder(2, 8, 2, 1.0, 0, alone=alone)
        before, after = (streams_of(model, {"vectors": one})[-1, 0] for one in (tokens, other))
        changed = (before != after).any(-1)
        assert changed.tolist() == ([False, False, True, False, False] if alone else [True] * 5)


def test_layer_norm_divides_the_residual_by_its_least_deviation_at_most() -> None:
    """The pairwise inequality that the bound rests on, where rows differ in size by a factor of a hundred."""
    rows = noise(1, 9, 6) * torch.logspace(-1, 1, 9, dtype=torch.float64)[None, :, None]
    rows = rows - rows.mean(-1, keepdim=True)
    normed = rows / rows.std(-1, unbiased=False, keepdim=True)
    bound = residual_frobenius(rows) / rows.std(-1, unbiased=False).min()
    assert float(residual_frobenius(normed) / bound) <= 1


def test_fusions_by_hand() -> None:
    streams = noise(4, 2, 5, 6)
    found = fused(streams)
    assert found["last"] == pytest.approx(float(token_cosine(streams[-1]).mean()))
    assert found["max"] == pytest.approx(float(token_cosine(streams[1:].amax(0)).mean()))
    assert found["gate"] == pytest.approx(float(token_cosine(streams[1:].mean(0)).mean()))


def test_an_encoder_fused_by_concat_begins_as_the_plain_one() -> None:
    config = Config(inputs=3, out=2, width=8, heads=2, layers=2, norm="post", positions="none")
    vectors = noise(2, 5, 3).float()
    plain, concat, largest = Nano(config, 0), Fused(config, 0, "concat"), Fused(config, 0, "max")
    torch.testing.assert_close(concat(vectors=vectors), plain(vectors=vectors))
    streams = streams_of(plain, {"vectors": vectors})
    torch.testing.assert_close(largest(vectors=vectors), plain.output(streams[1:].amax(0)))
    assert {name for name, _ in concat.named_parameters()} - {name for name, _ in plain.named_parameters()} == {
        "fusing.mixing"
    }
