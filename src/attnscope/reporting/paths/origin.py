"""Where the target comes from, in sentences: which lengths, constants, what suffices to predict, what is missed."""

from __future__ import annotations

from attnscope.charts.path_rows import exactly, signed
from attnscope.core.numerals import numeral
from attnscope.records.paths import PathReport
from attnscope.reporting.paths.vocabulary import (
    all_known,
    at_most,
    chance,
    from_on,
    listed,
    other_than_said,
    quoted,
    share,
    target_is,
    target_word,
)

# Lengths add P and take N away, and P - N is the whole. P + N > 3 (P - N) means N > P - N: what cancels is more than
# what is left, and a share "of the whole" says nothing.
LENGTHS_CANCEL = 3.0
MUCH_CONSTANT = 0.25  # of what the input moves, sizes added up by length
MOST_NAMED = 3  # lengths in one sentence
NEAR = 0.05  # of the model's own loss, in nats


def origin(report: PathReport) -> list[str]:
    """Which lengths it comes from, what suffices, and what cannot be left out."""
    return [_by_length(report), *_constants(report), *_suffices(report), *_target(report), *_without(report)]


def _by_length(report: PathReport) -> str:
    """The measured shares of the lengths that matter most; or that lengths cancel."""
    whole, rows = report.value, report.lengths
    sizes = sum(abs(row.value) for row in rows)
    if not whole and not sizes:
        return f"{target_is(report)}: paths of every length give nothing."
    if sizes > LENGTHS_CANCEL * abs(whole):
        most, least = (choose(rows, key=lambda row: row.value) for choose in (max, min))
        first, second = sorted((most, least), key=lambda row: -abs(row.value))
        return (
            f"{target_is(report)}: what is left of lengths that cancel. Their sizes add up to {numeral(sizes)}, and "
            f"the largest of either sign are paths through {exactly(first.length)} ({signed(first.value)}) and "
            f"through {exactly(second.length)} ({signed(second.value)})."
        )
    seen = [row for row in rows if abs(row.value) >= abs(whole) / 200]  # half a percent is 1% in figures
    named = sorted(sorted(seen, key=lambda row: -abs(row.value))[:MOST_NAMED], key=lambda row: row.length)
    if whole <= 0:  # shares of a negative number read the wrong way round
        return (
            f"{target_is(report)}: {listed([f'{signed(row.value)} through {exactly(row.length)}' for row in named])}."
        )
    shares = [f"{share(row.value / whole)} through {exactly(row.length)}" for row in named]
    shares[0] = shares[0].replace(" through", " of it comes from paths through", 1)
    rest = 1 - sum(row.value for row in named) / whole
    if len(named) < len(rows) and abs(rest) >= 0.005:
        shares.append(f"{share(rest)} from all others")
    return f"{target_is(report)}: {listed(shares)}."


def constants_matter(report: PathReport) -> bool:
    stream, constants = _sizes(report)
    return bool(constants) and constants >= MUCH_CONSTANT * stream


def _constants(report: PathReport) -> list[str]:
    if not constants_matter(report):
        return []
    stream, constants = sum(row.stream for row in report.lengths), sum(row.constants for row in report.lengths)
    of_stream, of_constants = _sizes(report)
    said = (
        f"Not all of it begins in the text: paths from constants (biases, shifts of norms) add {signed(constants)} and "
        f"paths from the input {signed(stream)}"
    )
    if (numeral(of_constants), numeral(of_stream)) != (numeral(abs(constants)), numeral(abs(stream))):
        said += f"; by length, their sizes add up to {numeral(of_constants)} and {numeral(of_stream)}"
    return [f"{said}."]


def _sizes(report: PathReport) -> tuple[float, float]:
    """Of what the input moves and of what constants move, sizes added up by length."""
    return sum(abs(row.stream) for row in report.lengths), sum(abs(row.constants) for row in report.lengths)


def _suffices(report: PathReport) -> list[str]:
    own = report.lengths[-1].up_to
    if own.predicted is None:
        k = from_on([row.up_to.distance < 0.1 for row in report.lengths])
        what = "states" if report.position is None else f"state at token {report.position}"
        return [] if k is None else [f"Paths through {at_most(k)} give the model's {what} to within a tenth."]
    k = from_on([row.up_to.predicted == own.predicted for row in report.lengths])
    assert k is not None
    now = report.lengths[k].up_to
    if k == len(report.lengths) - 1:
        said = [f"It takes paths of all lengths to predict {quoted(own.predicted)}."]
    else:
        probability = "" if now.probability is None else f" ({chance(now.probability)})"
        said = [f"Paths through {at_most(k)} suffice to predict {quoted(own.predicted)}{probability}."]
    if k > 0:
        before = report.lengths[k - 1].up_to
        said[0] += f" With {at_most(k - 1)} the model would say {quoted(before.predicted)}."
    losses = all_known(row.up_to.loss for row in report.lengths)
    if losses:
        first, last = losses[0], losses[-1]
        close = from_on([abs(loss - last) <= NEAR for loss in losses])
        assert close is not None  # the last is itself
        way = "falls" if last < first else "rises" if last > first else "stays"
        near = f"; paths through {at_most(close)} come within {NEAR} of that" if 0 < close < len(losses) - 1 else ""
        said.append(
            f"Over the whole text, the next-token loss {way} from {numeral(first)} with no head to {numeral(last)} "
            f"with all paths{near}."
        )
    return said


def _target(report: PathReport) -> list[str]:
    """How the probability of the target goes where the model says something else."""
    chances = all_known(row.up_to.target_probability for row in report.lengths)
    if not other_than_said(report) or not chances:
        return []
    k = max(range(len(chances)), key=chances.__getitem__)
    start = f"The target, {target_word(report)}, has probability {chance(chances[0])} with paths through no head"
    peak = chance(chances[k])
    beyond = peak not in (chance(chances[0]), chance(chances[-1]))
    most = f", most with those through {at_most(k)} ({peak})" if beyond else ""
    return [f"{start}{most}, and {chance(chances[-1])} in the whole model."]


def _without(report: PathReport) -> list[str]:
    own = report.lengths[-1].up_to.predicted
    if own is None:
        return []
    changed = [row for row in report.lengths if row.without.predicted != own]
    if not changed:
        return [f"Leaving out any one length of paths, the model would still say {quoted(own)}."]
    words = [f"through {exactly(row.length)} the model would say {quoted(row.without.predicted)}" for row in changed]
    others = len(changed) - MOST_NAMED
    which = "one other length" if others == 1 else f"any one of {others} other lengths"
    more = f"; leaving out {which} changes what it says as well" if others > 0 else ""
    return [f"Without paths {'; without those '.join(words[:MOST_NAMED])}{more}."]
