"""Words for lengths, single paths and the target of a decomposition, the same on the page and in a terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attnscope.charts.numerals import numeral
from attnscope.charts.path_panels import exactly, visible

Data = Mapping[str, Any]

# "logit of ' Rome'", "logit of 'good' minus that of 'bad'"; then where it is asked, if anywhere.
LOGIT = re.compile(r"logit of '(?P<word>.+?)'(?: minus that of '(?P<other>.+)')?(?: (?:after|at) .*)?", re.DOTALL)


def at_most(length: int) -> str:
    return "no head at all" if length == 0 else f"at most {exactly(length)}"


def signed(value: float) -> str:
    return f"+{numeral(value)}" if value > 0 else numeral(value)


def count_words(amount: int) -> str:
    return f"{amount:,}" if amount < 10**6 else numeral(float(amount))


def from_on(true: Sequence[bool]) -> int | None:
    """The first place from which on all are true."""
    first = len(true)
    while first > 0 and true[first - 1]:
        first -= 1
    return first if first < len(true) else None


def chain_words(chain: Data) -> str:
    """`' do' (token 14) → layer 4 head 1 → output`; a path begins at every token, and this names the one that most
    of it comes from: `of_token` is what that token alone carries."""
    steps = [f"'{visible(chain['token'])}' (token {chain['position']})"]
    steps += [f"layer {layer} head {head}" for layer, head in chain["heads"]]
    return " → ".join([*steps, "output"])


def target_is(data: Data) -> str:
    """The beginning of a sentence that says how large the target is."""
    size = numeral(data["value"])
    if data["target"] == "what tells tokens apart":
        return f"What tells tokens apart has norm {size} (the last stream less its mean token)"
    return f"The {visible(data['target'])} is {size}"


def of_all_tokens(data: Data) -> bool:
    """Whether the target is a norm over the whole text: it is then asked for at no token, and has no probability."""
    return data["lengths"][-1]["up_to"]["target_probability"] is None


def target_word(data: Data) -> str:
    """`' Rome'` in quotes, the word or class whose probability is `target_probability`."""
    found = LOGIT.fullmatch(data["target"])
    return "the target" if found is None else f"'{visible(found['word'])}'"


def probability_words(data: Data) -> str:
    """What p(target) is, and that of which of the two where the target is a difference."""
    found = LOGIT.fullmatch(data["target"])
    if found is not None and found["other"] is not None:
        return f"p(target) is the probability of {target_word(data)}, the first of the two"
    return f"p(target) is the probability of {target_word(data)}"


def other_than_said(data: Data) -> bool:
    """Whether the target is another word or class than the one the whole model finds most likely."""
    own = data["lengths"][-1]["up_to"]
    return own["target_probability"] is not None and own["target_probability"] < own["probability"]
