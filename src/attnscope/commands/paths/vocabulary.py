"""Words for lengths, single paths and the target of a decomposition, the same on the page and in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attnscope.commands.paths.chart_rows import exactly, head_name, visible
from attnscope.commands.paths.record import Chain, PathReport
from attnscope.core.words import numeral


def at_most(length: int) -> str:
    return "no head at all" if length == 0 else f"at most {exactly(length)}"


def share(part: float) -> str:
    """`65%` of a whole; what is there is never nothing, and what is missing is never everything."""
    if 0 < part < 0.005:
        return "less than 1%"
    if -0.005 < part < 0:
        return f"{numeral(100 * part, 2)}%"
    if 0.995 <= part < 1:
        return "more than 99%"
    return f"{100 * part:.0f}%"


def chance(probability: float) -> str:
    """`23%`, `0.31%`: small probabilities are those that people compare."""
    return f"{numeral(100 * probability, 2)}%" if probability < 0.01 else share(probability)


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def count_words(amount: int) -> str:
    return f"{amount:,}" if amount < 10**6 else numeral(float(amount))


def quoted(word: str | None, bare: bool = False) -> str:
    """A token in quotes, because it can begin with a space; a class is `bare`. A dash where nothing is said."""
    return "–" if word is None else visible(word) if bare else f"'{visible(word)}'"


def number_or_dash(value: float | None) -> str:
    return "–" if value is None else numeral(value)


def all_known(values: Iterable[float | None]) -> list[float]:
    """All of the numbers, or none of them where one does not exist."""
    given = list(values)
    known = [value for value in given if value is not None]
    return known if len(known) == len(given) else []


def from_on(true: Sequence[bool]) -> int | None:
    """The first place from which on all are true."""
    first = len(true)
    while first > 0 and true[first - 1]:
        first -= 1
    return first if first < len(true) else None


def chain_words(chain: Chain) -> str:
    """`' do' (token 14) → block 4 head 1 → output`; a path begins at every token, and this names the one that most
    of it comes from: `of_token` is what that token alone sends."""
    steps = [f"{quoted(chain.token)} (token {chain.position})"]
    steps += [head_name(block, head) for block, head in chain.heads]
    return " → ".join([*steps, "output"])


def target_is(report: PathReport) -> str:
    """The beginning of a sentence that says how large the target is."""
    size = numeral(report.value)
    if report.goal is None:
        return f"The target, {visible(report.target)}, is {size}"
    if report.goal.kind == "residual_norm":
        return f"What tells tokens apart has norm {size} (the last stream less its mean token)"
    return f"The {visible(report.target)} is {size}"


def of_all_tokens(report: PathReport) -> bool:
    """Whether the target is a norm over the whole text: it is then asked for at no token, and has no probability."""
    return report.lengths[-1].up_to.target_probability is None


def target_word(report: PathReport) -> str:
    """`' Rome'` in quotes, the word or class whose probability is `target_probability`. Files from before there were
    goals have the whole sentence instead."""
    if report.goal is None:
        return visible(report.target)
    return "the target" if report.goal.word is None else quoted(report.goal.word)


def probability_words(report: PathReport) -> str:
    """What p(target) is, and that of which of the two where the target is a difference."""
    if report.goal is not None and report.goal.kind == "difference":
        return f"p(target) is the probability of {target_word(report)}, the first of the two"
    return f"p(target) is the probability of {target_word(report)}"


def other_than_said(report: PathReport) -> bool:
    """Whether the target is another word or class than the one the whole model finds most likely."""
    own = report.lengths[-1].up_to
    if own.target_probability is None or own.probability is None:
        return False
    return own.target_probability < own.probability
