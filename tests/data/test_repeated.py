import pytest

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.data.read import repeated
from attnscope.data.sequences import repeated_windows


def test_random_tokens_twice_over():
    found = repeated_windows(range(10, 90), max_tokens=20, samples=5, seed=3, first=1)
    for window in found.sequences:
        assert len(window.ids) == 19
        once, again = window.ids[1:10], window.ids[10:]
        assert window.ids[0] == 1
        assert once == again
        assert len(set(once)) == 9, "the first half repeats nothing"
        assert all(10 <= token < 90 for token in once)
    assert found == repeated_windows(range(10, 90), max_tokens=20, samples=5, seed=3, first=1)
    assert found.sha256 != repeated_windows(range(10, 90), max_tokens=20, samples=5, seed=4, first=1).sha256


def test_a_small_vocabulary_repeats_itself():
    (window,) = repeated_windows(range(3), max_tokens=20, samples=1).sequences
    assert window.ids[:10] == window.ids[10:]


@pytest.mark.parametrize(("vocabulary", "tokens"), [(range(50), 4), (range(1), 20)])
def test_too_little_room(vocabulary, tokens):
    with pytest.raises(RefusalError, match="pass `max_tokens=5` or more"):
        repeated_windows(vocabulary, max_tokens=tokens, samples=1, first=0)


def test_a_file_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert repeated("repeated") is not None
    assert repeated("other") is None
    (tmp_path / "repeated").write_text("a text")
    assert repeated("repeated") is None


def test_scan_of_repeated_tokens_measures_induction():
    survey = attnscope.scan("pocket", "repeated", measures="self_attention", samples=2, max_tokens=24)
    assert set(survey.cards) == {"self_attention", "induction"}
    assert survey.provenance["corpus"]["name"] == "random tokens, twice over (seed 0)"
    assert survey.values("induction").shape == (6, 4)
