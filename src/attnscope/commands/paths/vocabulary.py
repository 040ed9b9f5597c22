"""Words for numbers, lengths, single paths and the target, for charts, page and terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attnscope.commands.paths.record import Chain, PathReport
from attnscope.core.words import numeral

FEW_LENGTHS = 13  # up to this many lengths (those of twelve blocks) are all shown
NEGLIGIBLE = 1e-3  # values below this share of the largest value are not visible in a chart
LEAST_CHANCE = 1e-5  # smaller probabilities are called "under" it
SHARE = 0.01  # lengths with a smaller share of the differences between tokens are not shown


def seen_lengths(report: PathReport) -> int:
    """Return how many lengths to show: all if they are few, else up to the last that is visible in a chart.

    Paths through all 30 blocks of a model, for example, contribute 1e-26.
    """
    if len(report.lengths) <= FEW_LENGTHS:
        return len(report.lengths)
    values = [max(abs(row.stream), abs(row.constants)) for row in report.lengths]
    distances = [row.up_to.distance for row in report.lengths]
    last_value = _last(values, NEGLIGIBLE * max(values, default=0.0))
    settled = next((k for k, _ in enumerate(distances) if all(d < 1e-3 for d in distances[k:])), len(distances) - 1)
    last_share = _last([abs(row.residual_share or 0.0) for row in report.lengths], SHARE)
    return min(len(values), max(last_value, settled, last_share, 1) + 1)


def _last(values: Sequence[float], threshold: float) -> int:
    return max((k for k, value in enumerate(values) if value > threshold), default=0)


def head_name(block: int, head: int) -> str:
    return f"block {block} head {head}"


def signed(value: float) -> str:
    return f"+{numeral(value)}" if value > 0 else numeral(value)


def exactly(length: int) -> str:
    return "no head" if length == 0 else "one head" if length == 1 else f"{length} heads"


def visible(word: str) -> str:
    """Return a word on one line; characters that cannot be printed become escapes, such as \\n."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in word)


def at_most(length: int) -> str:
    return "no head at all" if length == 0 else f"at most {exactly(length)}"


def share(part: float) -> str:
    """Return `65%`. A small positive part is never rounded to 0%, and a part below one never to 100%."""
    if 0 < part < 0.005:
        return "less than 1%"
    if -0.005 < part < 0:
        return f"{numeral(100 * part, 2)}%"
    if 0.995 <= part < 1:
        return "more than 99%"
    return f"{100 * part:.0f}%"


def chance(probability: float) -> str:
    """Return `23%`, `0.31%` with two digits for small probabilities, or `under 0.001%`."""
    if 0 < probability < LEAST_CHANCE:
        return f"under {100 * LEAST_CHANCE:g}%"
    return f"{numeral(100 * probability, 2)}%" if probability < 0.01 else share(probability)


def count_words(amount: int) -> str:
    return f"{amount:,}" if amount < 10**6 else numeral(float(amount))


def quoted(word: str | None, bare: bool = False) -> str:
    """Return a token in quotes (it may begin with a space), a class without quotes (`bare`), or a dash for None."""
    return "–" if word is None else visible(word) if bare else f"'{visible(word)}'"


def number_or_dash(value: float | None) -> str:
    return "–" if value is None else numeral(value)


def all_known(values: Iterable[float | None]) -> list[float]:
    """Return all numbers, or an empty list if one is missing."""
    numbers = list(values)
    known = [value for value in numbers if value is not None]
    return known if len(known) == len(numbers) else []


def from_on(true: Sequence[bool]) -> int | None:
    """Return the first index from which all values are true, or None."""
    first = len(true)
    while first > 0 and true[first - 1]:
        first -= 1
    return first if first < len(true) else None


def chain_words(chain: Chain) -> str:
    """Return `' do' (token 14) → block 4 head 1 → output`, with the token that contributes most along the path."""
    steps = [f"{quoted(chain.token)} (token {chain.position})"]
    steps += [head_name(block, head) for block, head in chain.heads]
    return " → ".join([*steps, "output"])


def target_is(report: PathReport) -> str:
    """Return the beginning of a sentence: `The logit of ' Rome' is 12.3`."""
    size = numeral(report.value)
    if report.goal is None:
        return f"The target, {visible(report.target)}, is {size}"
    if report.goal.kind == "residual_norm":
        return f"The norm of the differences between tokens (the last stream minus its mean token) is {size}"
    return f"The {visible(report.target)} is {size}"


def of_all_tokens(report: PathReport) -> bool:
    """Return whether the target is a norm over the whole text, which has no position and no probability."""
    return report.lengths[-1].up_to.target_probability is None


def target_word(report: PathReport) -> str:
    """Return the quoted word or class of the target; for old files without `goal`, its name in words."""
    if report.goal is None:
        return visible(report.target)
    return "the target" if report.goal.word is None else quoted(report.goal.word)


def probability_words(report: PathReport) -> str:
    """Explain p(target)."""
    if report.goal is not None and report.goal.kind == "difference":
        return f"p(target) is the probability of {target_word(report)}, the first of the two"
    return f"p(target) is the probability of {target_word(report)}"


def other_than_said(report: PathReport) -> bool:
    """Return whether the target is another word or class than the model's most likely one."""
    own = report.lengths[-1].up_to
    if own.target_probability is None or own.probability is None:
        return False
    return own.target_probability < own.probability
