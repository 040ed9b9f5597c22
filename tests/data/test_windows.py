"""Documents are cut into windows without loss or repetition, and repeated random tokens."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.data import windows as module
from attnscope.data.corpus import Corpus, cut_text
from attnscope.data.read import repeated
from attnscope.data.sequences import repeated_windows
from attnscope.data.windows import Windows, random_windows, windows

BOS, EOS, SPECIAL = 1, 2, 3


class Letters:
    """One token per character that is not a space, with a BOS before and an EOS after; types 0 0 ... 2."""

    def __init__(self, before: int = 1, after: int = 1, types: bool = False) -> None:
        self.before, self.after, self.types = [BOS] * before, [EOS] * after, types

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, Any]:
        ids = [SPECIAL + ord(letter) for letter in text if not letter.isspace()]
        kinds = [0] * len(ids)
        if add_special_tokens:
            ids = [*self.before, *ids, *self.after]
            kinds = [0] * (len(ids) - len(self.after)) + [2] * len(self.after)
        return {"input_ids": ids, **({"token_type_ids": kinds} if self.types else {})}


def corpus(*documents: str) -> Corpus:
    return Corpus.of("test", documents)


def text_of(made: Windows, document: int, before: int = 1, after: int = 1) -> str:
    parts = [w.ids[before : len(w.ids) - after] for w in made.sequences if w.document == document]
    return "".join(chr(token - SPECIAL) for part in parts for token in part)


def refusal(*args: Any, **options: Any) -> str:
    with pytest.raises(RefusalError) as caught:
        windows(*args, **options)
    return str(caught.value)


letters = st.text(st.characters(codec="ascii", categories=["L", "Zs"]), min_size=1, max_size=60)


@given(st.lists(letters, min_size=1, max_size=6), st.integers(4, 20), st.integers(0, 2), st.integers(0, 1))
def test_no_token_is_lost_or_doubled(documents: list[str], limit: int, before: int, after: int) -> None:
    texts = ["xyz", *documents]
    expected = ["".join(text.split()) for text in Corpus.of("t", texts).documents]
    room = limit - before - after
    if room < 2:
        return
    made = windows(Corpus.of("t", [*texts, "w" * limit]), Letters(before, after), max_tokens=limit)
    for number, text in enumerate(expected):
        # Only a last part of one token may be missing, since it is not a sequence.
        assert text_of(made, number, before, after) == (text[:-1] if len(text) % room == 1 else text)
    assert [w.document for w in made.sequences] == sorted(w.document for w in made.sequences)
    assert all(len(w.ids) <= limit for w in made.sequences)
    assert all(w.ids[:before] == (BOS,) * before for w in made.sequences)
    assert all(w.ids[len(w.ids) - after :] == (EOS,) * after for w in made.sequences)


@given(letters, st.integers(1, 40))
def test_pieces_of_a_text_join_to_the_text(text: str, length: int) -> None:
    pieces = list(cut_text(text, length))
    assert "".join(pieces) == text
    assert all(len(piece) <= length for piece in pieces)


def test_pieces_end_at_a_line_or_word() -> None:
    assert list(cut_text("aa bb\ncc dd ee", 8)) == ["aa bb\n", "cc dd ee"]
    assert list(cut_text("aa bb cc dd", 8)) == ["aa bb ", "cc dd"]
    assert list(cut_text("abcdefghij", 8)) == ["abcdefgh", "ij"]


def test_long_documents_are_read_in_stretches_without_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STRETCH", 100)
    monkeypatch.setattr(module, "_STRETCH_PER_TOKEN", 1)
    text = " ".join("abcdefghij"[: 2 + i % 7] for i in range(400))
    assert text_of(windows(corpus(text), Letters(), max_tokens=32), 0) == text.replace(" ", "")


def test_by_hand() -> None:
    made = windows(corpus("abcdef", "xyz"), Letters(), max_tokens=6)
    assert [w.ids[1:-1] for w in made.sequences] == [(100, 101, 102, 103), (104, 105), (123, 124, 125)]
    assert [(w.document, w.start) for w in made.sequences] == [(0, 0), (0, 4), (1, 0)]
    assert (len(made), made.tokens, made.max_tokens, made.name) == (3, 15, 6, "test")


def test_token_types_of_the_special_tokens() -> None:
    made = windows(corpus("abcde"), Letters(types=True), max_tokens=5)
    assert [w.types for w in made.sequences] == [(0, 0, 0, 0, 2), (0, 0, 0, 2)]


def test_default_length_is_256_or_the_models_positions() -> None:
    text = corpus("a" * 600)
    assert [len(w.ids) for w in windows(text, Letters()).sequences] == [256, 256, 94]
    assert max(len(w.ids) for w in windows(text, Letters(), positions=40).sequences) == 40
    assert windows(corpus("abc"), Letters()).tokens == 5


@given(st.integers(0, 5), st.integers(1, 30))
def test_samples_are_drawn_by_seed_from_all_windows(seed: int, samples: int) -> None:
    text = corpus(*("".join(chr(97 + (i * j) % 26) for j in range(30)) for i in range(20)))
    everything = windows(text, Letters(), max_tokens=12)
    drawn = windows(text, Letters(), max_tokens=12, samples=samples, seed=seed)
    assert drawn == windows(text, Letters(), max_tokens=12, samples=samples, seed=seed)
    assert len(drawn) == min(samples, len(everything))
    places = [(w.document, w.start) for w in drawn.sequences]
    assert places == sorted(set(places))
    assert set(drawn.sequences) <= set(everything.sequences)


def test_samples_reach_beyond_the_beginning_and_change_with_the_seed() -> None:
    text = corpus(*("ab" * 20 for _ in range(200)))
    one, two = (windows(text, Letters(), samples=8, seed=seed) for seed in (0, 1))
    assert max(w.document for w in one.sequences) > 100
    assert [w.document for w in one.sequences] != [w.document for w in two.sequences]


def test_a_few_samples_of_one_long_document_come_from_several_places() -> None:
    text = "".join(chr(97 + i // 70_000) for i in range(26 * 70_000))  # a new letter every 70,000 characters
    made = windows(corpus(text), Letters(), samples=16)
    assert len({w.ids[100] for w in made.sequences}) >= 5


def test_a_few_samples_do_not_tokenize_everything() -> None:
    calls: list[str] = []

    class Counting(Letters):
        def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, Any]:
            calls.append(text)
            return super().__call__(text, add_special_tokens)

    windows(corpus(*("abcd" for _ in range(5000))), Counting(), samples=4)
    assert len(calls) < 30


@pytest.mark.parametrize("samples", [6, 20, 33])
def test_spread_samples_come_from_all_documents_alike(samples: int) -> None:
    """Documents of very different length: without `spread`, most windows are of the two long ones."""
    texts = [letter * (4000 if letter in "ab" else 60) for letter in "abcdefghijklmnopqrst"]
    made = windows(corpus(*texts), Letters(), max_tokens=12, samples=samples, spread=True)
    counts = Counter(window.document for window in made.sequences)
    assert len(made.sequences) == samples
    assert len(counts) == min(samples, len(texts))
    assert max(counts.values()) - min(counts.values()) <= 1
    assert made == windows(corpus(*texts), Letters(), max_tokens=12, samples=samples, spread=True)
    plain = Counter(w.document for w in windows(corpus(*texts), Letters(), max_tokens=12, samples=samples).sequences)
    assert len(plain) < len(counts)


def test_all_windows_when_fewer_than_samples() -> None:
    assert len(windows(corpus("abcd", "efgh"), Letters(), samples=50)) == 2


def test_refuses_a_corpus_without_a_window() -> None:
    assert "gives no sequence of 2 tokens or more (1 in all)" in refusal(corpus("a"), Letters())
    silent = refusal(corpus("abc"), lambda text, add_special_tokens=True: {"input_ids": []})
    assert "(0 in all)" in silent


def test_refuses_a_corpus_shorter_than_one_window() -> None:
    sentence = refusal(corpus("abc", "de"), Letters(), max_tokens=32)
    assert "has 7 tokens, fewer than one window of 32" in sentence
    assert "`max_tokens=7` or less" in sentence
    assert len(windows(corpus("abc", "de"), Letters(), max_tokens=7)) == 2
    assert [len(one.ids) for one in windows(corpus("abc", "de"), Letters(), max_tokens=32, short=True).sequences] == [
        5,
        4,
    ]


def test_refuses_more_tokens_than_positions() -> None:
    sentence = refusal(corpus("a" * 99), Letters(), max_tokens=65, positions=64)
    assert "longer than the 64 positions" in sentence
    assert "`max_tokens=64` or less" in sentence


def test_refuses_windows_without_room_and_empty_requests() -> None:
    assert "ask for at least 4" in refusal(corpus("abc"), Letters(), max_tokens=3)
    assert "`max_tokens=2` or more" in refusal(corpus("abc"), Letters(), max_tokens=1)
    assert "`samples=` cannot be 0: pass 1 or more" in refusal(corpus("abc"), Letters(), samples=0)


def test_refuses_a_tokenizer_of_another_model() -> None:
    assert "gives token 102, and this model knows 50 tokens" in refusal(corpus("abc"), Letters(), vocab_size=50)


def test_refuses_a_tokenizer_that_rewrites_text() -> None:
    def odd(text: str, add_special_tokens: bool = True) -> dict[str, Any]:
        return {"input_ids": [9, 8, 7] if add_special_tokens else [1, 2]}

    assert "give ready batches" in refusal(corpus("abc"), odd)


def test_random_windows() -> None:
    made = random_windows(50, max_tokens=10, samples=4, seed=7, first=1)
    assert made == random_windows(50, max_tokens=10, samples=4, seed=7, first=1)
    assert made.sha256 != random_windows(50, max_tokens=10, samples=4, seed=8, first=1).sha256
    assert made.name == "random tokens (seed 7)"
    assert all(len(w.ids) == 10 and w.ids[0] == 1 and max(w.ids) < 50 for w in made.sequences)
    with pytest.raises(RefusalError, match="positions"):
        random_windows(50, max_tokens=10, positions=8)
    with pytest.raises(RefusalError, match="does not read tokens"):
        random_windows(0)


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


def test_small_vocabulary_is_drawn_with_replacement():
    (window,) = repeated_windows(range(3), max_tokens=20, samples=1).sequences
    assert window.ids[:10] == window.ids[10:]


@pytest.mark.parametrize(("vocabulary", "tokens"), [(range(50), 4), (range(1), 20)])
def test_too_few_positions_for_repeated_tokens_are_refused(vocabulary, tokens):
    with pytest.raises(RefusalError, match="pass `max_tokens=5` or more"):
        repeated_windows(vocabulary, max_tokens=tokens, samples=1, first=0)


def test_file_named_repeated_takes_precedence(tmp_path, monkeypatch):
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
