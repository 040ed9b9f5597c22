"""Sandwich norm: every write has one length."""

import torch

from attnscope.core.variant import Size
from attnscope.variants.sandwich_norm import sandwich_norm
from tests.variants.calls import noise


def test_every_write_has_the_length_that_the_gain_says() -> None:
    write = noise(0, 2, 5, 8) * torch.logspace(-1, 4, 5, dtype=torch.float64)[:, None]
    found = sandwich_norm(write, gain=torch.full((8,), 3.0))
    torch.testing.assert_close(
        found.square().mean(-1).sqrt(), torch.full((2, 5), 3.0, dtype=torch.float64), rtol=1e-3, atol=0
    )


def test_no_coordinate_exceeds_the_root_of_the_width() -> None:
    """What bounds a spike (arXiv:2603.05498): |x_i| / rms(x) <= sqrt(d), with equality for one channel alone."""
    spike = torch.zeros(1, 1, 8, dtype=torch.float64)
    spike[..., 3] = 1e6
    gain = sandwich_norm.start(Size(2, 4, 8))["gain"]
    torch.testing.assert_close(sandwich_norm(spike, gain=gain).amax(), torch.tensor(8.0, dtype=torch.float64).sqrt())
    assert float(sandwich_norm(100 * noise(0, 2, 5, 8), gain=gain).abs().max()) <= 8**0.5
