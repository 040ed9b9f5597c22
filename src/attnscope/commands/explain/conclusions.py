"""Conclusions of an explanation: which token decided, how far methods agree, and what speaks against the answer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from attnscope.commands.explain.record import SUM_BOUND, Explanation, Input, Scored, Token
from attnscope.commands.paths.vocabulary import signed, visible
from attnscope.core.words import count, numeral, percent
from attnscope.reports.words import Verdict, listed

FEW = 3  # tokens that a method votes for
CLEAR = 0.5  # share of methods that must name a token first
AGAINST = 0.25  # share of a method's largest number from which a token against the answer is mentioned

Place = tuple[str, int]  # the name of an input, and the index of a token in it


def verdict(found: Explanation) -> Verdict:
    """Name the token that most methods put first, and say how many do."""
    voters = voters_of(found)
    if not voters and any(method.passes is False for method in found.methods):
        return Verdict("warning", "No token is named: the scores of no method add up to what they should.")
    if not voters:
        return Verdict("note", "No token stands out: every method gives all tokens the same score.")
    if sum(len(read.tokens) for read in found.inputs) == 1:
        return Verdict("note", "There is a single token, so it alone decided.")
    firsts = Counter((token.input, token.place) for method in voters for token in _leading(found, method.name, 1))
    (place, votes), *_ = firsts.most_common(1)
    token = _token(found, place)
    if len(voters) == 1:
        return Verdict("note", _capitalized(f"{token} did most for the answer, by {in_words(voters[0])}."))
    if votes > CLEAR * len(voters):
        which = f"all {votes} methods" if votes == len(voters) else f"{votes} of {len(voters)} methods"
        return Verdict("note", _capitalized(f"{token} decided: {which} put it first."))
    named = [_token(found, other) for other, _ in firsts.most_common(FEW)]
    most = "both methods" if len(voters) == 2 else f"most of {len(voters)} methods"
    return Verdict("warning", f"Methods do not agree on what decided: {listed(named)} come first, but none by {most}.")


def conclusions(found: Explanation) -> tuple[str, ...]:
    """Return sentences on the tokens that most methods name, negative tokens, agreement and sums."""
    parts = (_when(found), _often_named(found), _leading_tokens(found), _against(found), _agreement(found))
    return tuple(filter(None, (*parts, *_sums(found))))


def _capitalized(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def decides(method: Scored) -> bool:
    """Return whether a method gives tokens different numbers."""
    numbers = [number for row in method.scores for number in row]
    return bool(numbers) and max(numbers) > min(numbers)


def voters_of(found: Explanation) -> list[Scored]:
    return [method for method in found.voting if decides(method)]


def in_words(method: Scored) -> str:
    """Return the title for the middle of a sentence."""
    return method.title[:1].lower() + method.title[1:]


def _when(found: Explanation) -> str:
    """Name the shortest interval that holds half of a sound's score, by the first method that scores the sound."""
    for place, read in enumerate(found.inputs):
        scoring = [one for one in voters_of(found) if place < len(one.scores) and any(one.scores[place])]
        if read.step is None or not scoring:
            continue
        begin, end = shortest_half([max(number, 0.0) for number in scoring[0].scores[place]])
        return (
            f"By {in_words(scoring[0])}, half of the sound's effect lies between {begin * read.step:.2f} and "
            f"{end * read.step:.2f} s."
        )
    return ""


def shortest_half(numbers: Sequence[float]) -> tuple[int, int]:
    """Return begin and end of the shortest run of places that holds half of the sum."""
    half, begin, held = math.fsum(numbers) / 2, 0, 0.0
    best = (0, len(numbers))
    for end, number in enumerate(numbers, start=1):
        held += number
        while begin < end and held - numbers[begin] >= half:
            held -= numbers[begin]
            begin += 1
        if held >= half and end - begin < best[1] - best[0]:
            best = begin, end
    return best


def named_by(found: Explanation) -> Counter[Place]:
    """For each token, count the methods that have it among their first three, ties included."""
    leading = (token for method in voters_of(found) for token in _leading(found, method.name, FEW))
    return Counter((token.input, token.place) for token in leading)


def _leading(found: Explanation, name: str, few: int) -> tuple[Token, ...]:
    """Return the tokens that did most. In a picture only patches count, not leading tokens such as [CLS]."""
    skipped = {
        (read.name, place)
        for read in found.inputs
        if read.kind == "image" and read.grid is not None
        for place in range(read.before)
    }
    if not skipped:
        return found.named(name, few)
    scores = found.scores(name)
    ranked = [token for token in found.top(name, len(scores)) if (token.input, token.place) not in skipped]
    first = [token for token in ranked[:few] if token.score > min(scores)]
    return tuple(token for token in ranked if first and token.score >= first[-1].score)


def _leading_tokens(found: Explanation) -> str:
    """Name the tokens before the patches of a picture, which are not counted."""
    before = dict.fromkeys(
        visible(read.tokens[place]) for read in found.inputs if read.grid is not None for place in range(read.before)
    )
    if not before or len(before) > 2 * FEW:
        return ""
    return f"Tokens before the patches ({', '.join(before)}) have no place in the picture and are not counted."


def _often_named(found: Explanation) -> str:
    voters = len(voters_of(found))
    if voters < 2 or sum(len(read.tokens) for read in found.inputs) <= FEW:
        return ""
    often = [(place, votes) for place, votes in named_by(found).most_common(FEW) if votes > CLEAR * voters]
    if not often:
        patches_only = all(read.kind == "image" and read.grid is not None for read in found.inputs)
        return f"No {'patch' if patches_only else 'token'} is among the first {FEW} of most methods."
    words = listed([f"{_token(found, place)} ({votes} of {voters})" for place, votes in often])
    return f"Among the first {FEW} of most methods: {words}."


def _against(found: Explanation) -> str:
    """Name the token that lowers the answer most, by the methods whose scores can be negative."""
    lowest: Counter[Place] = Counter()
    with_signs = [method for method in voters_of(found) if method.signed]
    for method in with_signs:
        least = min(found.tokens(method.name), key=lambda token: token.score)
        if least.score < -AGAINST * method.reach:
            lowest[least.input, least.place] += 1
    (place, votes), *_ = lowest.most_common(1) or [(("", 0), 0)]
    if votes < CLEAR * len(with_signs) or not votes:
        return ""
    methods = f"{votes} of {count(len(with_signs), 'method')} with negative scores"
    return _capitalized(f"{_token(found, place)} speaks most against the answer, by {methods}.")


def _agreement(found: Explanation) -> str:
    known = {pair: value for pair, value in found.agreement().items() if math.isfinite(value)}
    if not known:
        return ""
    titles = {method.name: in_words(method) for method in found.methods}

    def pair(names: tuple[str, str]) -> str:
        return f"{titles[names[0]]} and {titles[names[1]]} ({correlation_words(known[names])})"

    mean = sum(known.values()) / len(known)
    if len(known) == 1:
        (names,) = known
        both = f"{titles[names[0]]} and {titles[names[1]]}"
        return f"The orders of tokens by {both} have a rank correlation of {correlation_words(known[names])}."
    closest, farthest = max(known, key=known.__getitem__), min(known, key=known.__getitem__)
    return (
        f"Rank correlations of methods are {correlation_words(mean)} on average; closest are {pair(closest)}, farthest "
        f"{pair(farthest)}."
    )


def correlation_words(value: float) -> str:
    return numeral(round(value, 2) + 0.0)  # + 0.0 turns -0 into 0


def _sums(found: Explanation) -> list[str]:
    """Say what scores add up to: against the number that they should, or how much constants contribute."""
    right, sentences = [], []
    for method in found.methods:
        total = f"By {in_words(method)}, tokens add up to {signed(method.total)}"
        if method.sums_to is not None and method.passes:
            right.append(f"{in_words(method)} {signed(method.total)} of {signed(method.sums_to)}")
        elif method.sums_to is not None:
            wanted = f"{total} instead of {signed(method.sums_to)}"
            sentences.append(f"{wanted}, which is off by more than {percent(SUM_BOUND)}: the method has no say.")
        elif method.adds_up is not None:  # what constants or a learned sink take is not known as a number
            of = f" of {numeral(found.value)}" if method.adds_up.startswith("the answer, less what constants") else ""
            sentences.append(f"{total}{of} ({method.adds_up}).")
    return [*([f"Scores add up to what they should: {listed(right)}."] if right else []), *sentences]


def _token(found: Explanation, place: Place) -> str:
    name, index = place
    read = next(read for read in found.inputs if read.name == name)
    if read.kind == "sound" and read.step is not None:
        return f"the moment at {read.tokens[index]}"
    if read.kind == "image" and read.grid is not None and index >= read.before:
        row, column = divmod(index - read.before, read.grid[1])
        return f"the patch in row {row}, column {column}"
    where = f"token {index} of the {name}" if len(found.inputs) > 1 else f"token {index}"
    if in_continuation(found, read, index):
        where += ", of the continuation"
    return f"'{visible(read.tokens[index])}' ({where})"


def in_continuation(found: Explanation, read: Input, place: int) -> bool:
    begin = found.continued_at
    return begin is not None and read is found.inputs[-1] and place >= begin
