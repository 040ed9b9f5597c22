"""A corpus in two halves that share no text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnscope.core.errors import RefusalError
from attnscope.data.corpus import LONGEST, Corpus, split
from attnscope.data.read import read

WORDS = st.text(alphabet="abcdefgh ", min_size=1, max_size=400).filter(str.strip)


@given(st.lists(WORDS, min_size=1, max_size=30))
def test_no_held_out_piece_is_trained_on(documents: list[str]) -> None:
    corpus = Corpus.of("made up", documents)
    try:
        both = split(corpus)
    except RefusalError:
        return
    ours, theirs = ({" ".join(text.split()) for text in half.documents} for half in (both.training, both.held_out))
    assert not ours & theirs
    assert split(corpus) == both
    everything = "".join("".join(corpus.documents).split())
    assert all("".join(text.split()) in everything for text in (*both.training.documents, *both.held_out.documents))


def test_a_book_is_split_all_over_and_loses_nothing() -> None:
    book = read()
    both = split(book)
    kept = sum(half.characters for half in (both.training, both.held_out))
    assert kept >= 0.99 * book.characters
    assert both.held_out.characters == pytest.approx(0.2 * book.characters, rel=0.15)
    places = [book.documents[0].index(text) / book.characters for text in both.held_out.documents]
    assert min(places) < 0.25
    assert max(places) > 0.75
    assert max(map(len, both.held_out.documents)) <= LONGEST
    assert "1 document" in both.note  # stretches count as texts, and a note says so


def test_repeated_texts_are_not_held_out() -> None:
    both = split(Corpus.of("repeats", ["the same"] * 9 + ["another text"]))
    assert both.held_out.documents == ("another text",)


def test_pairs_stay_pairs() -> None:
    both = split(Corpus.of("pairs", [(f"source {n}", f"target {n}") for n in range(10)]))
    assert both.held_out.documents == ("source 1", "source 4", "source 6", "source 9")
    assert both.held_out.targets == ("target 1", "target 4", "target 6", "target 9")


@pytest.mark.parametrize(
    ("documents", "sentence"), [(["short"], "too small to hold text out"), (["same text"] * 20, "repeats itself")]
)
def test_too_little_text_is_refused(documents: list[str], sentence: str) -> None:
    with pytest.raises(RefusalError, match=sentence):
        split(Corpus.of("little", documents))


@given(st.integers(4, 60))
def test_the_halves_share_no_document(documents: int) -> None:
    """No document is in both halves, however long, and ten documents give at least four held-out texts."""
    long = [f"{number} " * 9000 for number in range(documents)]
    both = split(Corpus.of("long", long))
    assert both.note == ""
    assert set(both.training.documents) | set(both.held_out.documents) == set(long)
    assert len(both.training.documents) + len(both.held_out.documents) == documents
    held = len(both.held_out.documents)
    assert 2 <= held <= documents / 2
    assert held >= min(4, documents // 2)
    assert held <= max(4, documents / 5)


def test_each_article_of_a_file_is_a_document() -> None:
    """Headings of sections do not split an article."""
    articles = [f" = Article {n} = \n \n Words of {n} . \n = = Section = = \n More of {n} . \n" for n in range(10)]
    both = split(Corpus.of("wiki", ["".join(articles)]))
    assert both.held_out.documents == tuple(articles[n] for n in (1, 4, 6, 9))
    assert len(both.training.documents) == 6
    assert both.note == ""
