import torch

from attnscope.measures.spike import spike


def _planted() -> torch.Tensor:
    stream = torch.ones(2, 5, 6)
    stream[0, 3, 4], stream[0, 1, 4], stream[0, 1, 2], stream[0, 0, 5] = -900.0, 800.0, 70.0, -60.0
    stream[1, 0, 0], stream[1, 2, 1], stream[1, 4, 5] = 30.0, 20.0, 10.0
    return stream


def _check(parts) -> None:
    assert parts["value"].value.tolist() == [900.0, 30.0]
    assert parts["value"].where["token"].tolist() == [3, 0]
    assert parts["value"].where["channel"].tolist() == [4, 0]
    assert parts["second"].value.tolist() == [70.0, 20.0]  # the second channel, not the second entry
    assert parts["second"].where["channel"].tolist() == [2, 1]
    assert parts["third"].value.tolist() == [60.0, 10.0]
    assert parts["third"].where["channel"].tolist() == [5, 5]


def test_a_planted_spike_is_found_with_its_place(ask, whole):
    _check(ask(spike, whole(_planted())))


def test_tokens_are_counted_from_the_first_real_one(ask, padded_stream):
    _check(ask(spike, padded_stream(_planted())))


def test_bound_and_invariance(ask, whole, noise):
    parts = ask(spike, whole(noise))
    value, second, third = (parts[part].value for part in ("value", "second", "third"))
    assert ((value >= second) & (second >= third)).all()
    assert (value <= noise.norm(dim=(1, 2))).all()
    torch.testing.assert_close(ask(spike, whole(-noise))["value"].value, value)


def test_rmsnorm_output_is_bounded_by_the_root_of_the_width(ask, whole, noise):
    normed = torch.nn.functional.rms_norm(noise * 1e3, (6,))
    assert (ask(spike, whole(normed))["value"].value <= 6**0.5 + 1e-9).all()
