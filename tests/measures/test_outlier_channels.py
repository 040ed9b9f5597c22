import pytest
import torch

from attnscope.measures.outlier_channels import RANKS, outlier_channels


def planted() -> torch.Tensor:
    """Return two streams of 12 channels: the first has three channels above 100, the second has none."""
    stream = torch.ones(2, 5, 12)
    stream[0, 3, 4], stream[0, 1, 4], stream[0, 1, 2], stream[0, 0, 5] = -900.0, 800.0, 700.0, -101.0
    stream[1, 0, 0] = 100.0
    return stream


def check(parts) -> None:
    assert parts["value"].value.tolist() == [3.0, 0.0]
    assert parts["median"].value[0].item() == 1.0
    assert parts["median"].counted.tolist() == [True, False]
    for part, size, channel, token in (("first", 900.0, 4, 3), ("second", 700.0, 2, 1), ("third", 101.0, 5, 0)):
        found = parts[part]
        assert found.counted.tolist() == [True, False], part
        assert (found.value[0].item(), found.where["channel"][0].item(), found.where["token"][0].item()) == (
            size,
            channel,
            token,
        )
    assert not parts["fourth"].counted.any()


def test_every_large_channel_is_found_with_its_token(ask, whole):
    check(ask(outlier_channels, whole(planted())))


def test_padding_is_invisible(ask, padded_stream):
    check(ask(outlier_channels, padded_stream(planted())))


def test_more_than_eight_channels_are_counted(ask, whole):
    parts = ask(outlier_channels, whole(200 * torch.ones(1, 4, 12)))
    assert parts["value"].value.item() == 12
    assert all(parts[rank].counted.all() for rank in RANKS)


def test_narrow_streams_have_fewer_ranks(ask, whole):
    parts = ask(outlier_channels, whole(200 * torch.ones(1, 4, 3)))
    assert [bool(parts[rank].counted.all()) for rank in RANKS] == [True] * 3 + [False] * 5


def test_a_broken_channel_hides_no_other(ask, whole):
    stream = planted()[:1]
    stream[0, 2, 7] = torch.nan
    parts = ask(outlier_channels, whole(stream))
    assert parts["value"].value.isnan().all()
    assert parts["first"].where["channel"].item() == 4
    assert parts["first"].value.item() == 900.0


def test_the_median_of_some_tokens_is_that_of_the_stream(ask, whole):
    stream = torch.randn(1, 300, 64, generator=torch.Generator().manual_seed(0))
    stream[0, 0, 5] = 1e4
    found = ask(outlier_channels, whole(stream))["median"].value.item()
    assert found == pytest.approx(stream.abs().median().item(), rel=0.05)
