import pytest
import torch

from attnscope.measures.media_attention import media_attention

MEDIA = torch.tensor([[False, True, True, True, False, False, False, False]])


def test_by_hand(ask, statistics, pattern_scores, identity, uniform, uniform_causal, first_column):
    after = sum(3 / n for n in (5, 6, 7, 8)) / 5  # words behind the picture see 3 of 5 to 8 keys, the one before none
    for pattern, from_text, from_media, even in (
        (identity, 0.0, 1.0, 0.0),
        (uniform, 3 / 8, 3 / 8, 3 / 8),
        (uniform_causal, after, (1 / 2 + 2 / 3 + 3 / 4) / 3, after),
        (first_column, 0.0, 0.0, 0.0),
    ):
        parts = ask(media_attention, {**statistics(pattern), "scores": pattern_scores(pattern), "media": MEDIA})
        found = [parts[part].value.item() for part in media_attention.card.parts]
        assert found == pytest.approx([from_text, from_media, even], abs=1e-12)


def test_rows_of_text_and_of_media_make_up_the_whole(ask, statistics, pattern_scores, random_pattern):
    pattern = random_pattern(0, 2, 3, 8, 8, causal=True)
    media = torch.cat([MEDIA, MEDIA.roll(2, 1)])
    parts = ask(media_attention, {**statistics(pattern), "scores": pattern_scores(pattern), "media": media})
    words = (5 * parts["from_text"].value + 3 * parts["from_media"].value) / 8
    direct = (pattern * media[:, None, None, :]).sum(-1).mean(-1)
    torch.testing.assert_close(words, direct)
