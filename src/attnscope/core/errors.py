"""The one error a person should ever see: a sentence that says what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class RefusalError(Exception):
    """Bad input or an impossible request. The command line prints its one sentence and exits with code 2."""

    def __init__(self, sentence: str) -> None:
        super().__init__(" ".join(sentence.split()))


def meant(word: str, known: Iterable[str]) -> str:
    """The tail of a refusal where nobody wants the whole list: ` Did you mean 'pocket'?`, or nothing."""
    close = get_close_matches(word, sorted(set(known)), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""


def nearest(word: str, known: Iterable[str]) -> str:
    """The tail of a refusal: ` Did you mean 'entropy'?`, or the whole list where nothing is close."""
    names = sorted(known)
    close = get_close_matches(word, names, n=1, cutoff=0.5)
    return f" Did you mean '{close[0]}'?" if close else f" Known: {', '.join(names)}."
