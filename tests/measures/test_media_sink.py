import pytest
import torch

from attnscope.measures.media_sink import media_sink
from attnscope.measures.most_received import most_received

MEDIA = torch.tensor([[False, True, True, True, False, False, False, False]])


def test_by_hand(ask, statistics, uniform, first_column):
    for pattern, media, text in ((uniform, 1 / 8, 1 / 8), (first_column, 0.0, 1.0), (first_column.roll(2, -1), 1.0, 0)):
        parts = ask(media_sink, {**statistics(pattern), "media": MEDIA})
        assert (parts["media"].value.item(), parts["text"].value.item()) == pytest.approx((media, text))
    assert parts["media"].where["key"].item() == 2


def test_the_larger_of_the_two_is_the_most_received(ask, statistics, random_pattern):
    fields = {**statistics(random_pattern(0, 1, 6, 8, 8)), "media": MEDIA}
    parts, whole = ask(media_sink, fields), most_received(**{n: fields[n] for n in most_received.reads})["value"]
    torch.testing.assert_close(torch.maximum(parts["media"].value, parts["text"].value), whole.value)
    from_media = parts["media"].value > parts["text"].value
    keys = torch.where(from_media, parts["media"].where["key"], parts["text"].where["key"])
    assert torch.equal(keys, whole.where["key"])
    assert torch.equal(MEDIA[0][whole.where["key"]], from_media)
