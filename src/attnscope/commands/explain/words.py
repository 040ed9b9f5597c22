"""The words of an explanation: which token decided, how far methods agree, and what speaks against the answer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from attnscope.commands.explain.chart import reach
from attnscope.commands.explain.record import Explanation, Input, Scored, Token
from attnscope.commands.paths.vocabulary import signed, visible
from attnscope.core.words import count, numeral
from attnscope.reports.words import Verdict, listed

FEW = 3  # tokens that a method names
CLEAR = 0.5  # share of methods that must name a token first
AGAINST = 0.25  # share of a method's largest number from which a token against the answer is mentioned
MISSING = 0.05  # share of the answer from which a missing sum is mentioned

Place = tuple[str, int]


def verdict(found: Explanation) -> Verdict:
    """Return the token that most methods put first, and how many do."""
    voters = [method for method in found.voting if decides(method)]
    if not voters:
        return Verdict("note", "No token stands out: every method gives all tokens the same.")
    if sum(len(one.tokens) for one in found.inputs) == 1:
        return Verdict("note", "There is a single token, so it alone decided.")
    firsts = Counter((t.input, t.place) for method in voters for t in _leading(found, method.name, 1))
    (place, votes), *_ = firsts.most_common(1)
    token = _token(found, place)
    if len(voters) == 1:
        return Verdict("note", _begun(f"{token} did most for the answer, by {in_words(voters[0])}."))
    if votes > CLEAR * len(voters):
        which = f"all {votes} methods" if votes == len(voters) else f"{votes} of {len(voters)} methods"
        return Verdict("note", _begun(f"{token} decided: {which} put it first."))
    named = [_token(found, other) for other, _ in firsts.most_common(FEW)]
    most = "both methods" if len(voters) == 2 else f"most of {len(voters)} methods"
    return Verdict("warning", f"Methods do not agree on what decided: {listed(named)} come first, but none by {most}.")


def _begun(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def decides(method: Scored) -> bool:
    """Return whether a method gives tokens different numbers."""
    numbers = [number for row in method.scores for number in row]
    return bool(numbers) and max(numbers) > min(numbers)


def in_words(method: Scored) -> str:
    """Return the title for the middle of a sentence."""
    return method.title[:1].lower() + method.title[1:]


def sentences(found: Explanation) -> tuple[str, ...]:
    """Return sentences on the verdict, the target, the tokens that most methods name, negative tokens, agreement and
    sums.
    """
    target = f"The target is the {visible(found.target)}: {numeral(found.value)}."
    parts = (_when(found), _often_named(found), _aside(found), _against(found), _agreement(found), *_sums(found))
    return (verdict(found).sentence, target, *filter(None, parts))


def _when(found: Explanation) -> str:
    """Return the shortest time that holds half of a sound's score, by the first method that covers it."""
    for place, read in enumerate(found.inputs):
        telling = [one for one in found.voting if decides(one) and place < len(one.scores) and any(one.scores[place])]
        if read.step is None or not telling:
            continue
        numbers = [max(number, 0.0) for number in telling[0].scores[place]]
        begin, end = shortest_half(numbers)
        return (
            f"By {in_words(telling[0])} half of what the sound did lies between {begin * read.step:.2f} and "
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


def named_by(found: Explanation, few: int = FEW) -> Counter[Place]:
    """Count the methods that have a token among their first few, ties included."""
    return Counter(
        (token.input, token.place) for one in found.voting if decides(one) for token in _leading(found, one.name, few)
    )


def _leading(found: Explanation, name: str, few: int) -> tuple[Token, ...]:
    """Return the tokens that did most; for a picture only its patches, without [CLS]."""
    apart = {
        (read.name, place)
        for read in found.inputs
        if read.kind == "image" and read.grid is not None
        for place in range(read.before)
    }
    if not apart:
        return found.named(name, few)
    scores = found.scores(name)
    every = [one for one in found.top(name, len(scores)) if (one.input, one.place) not in apart]
    first = [one for one in every[:few] if one.score > min(scores)]
    return tuple(one for one in every if first and one.score >= first[-1].score)


def _unit(found: Explanation) -> str:
    return "patch" if all(read.kind == "image" and read.grid is not None for read in found.inputs) else "token"


def _aside(found: Explanation) -> str:
    """Name the tokens before the patches of a picture, which are not counted."""
    before = dict.fromkeys(
        visible(read.tokens[place]) for read in found.inputs if read.grid is not None for place in range(read.before)
    )
    if not before or len(before) > 2 * FEW:
        return ""
    return f"Tokens before the patches ({', '.join(before)}) have no place in the picture and are skipped here."


def _often_named(found: Explanation) -> str:
    voters = sum(decides(method) for method in found.voting)
    tokens = sum(len(given.tokens) for given in found.inputs)
    if voters < 2 or tokens <= FEW:
        return ""
    often = [(place, votes) for place, votes in named_by(found).most_common(FEW) if votes > CLEAR * voters]
    if not often:
        return f"No {_unit(found)} is among the first {FEW} of most methods."
    words = listed([f"{_token(found, place)} ({votes} of {voters})" for place, votes in often])
    return f"Among the first {FEW} of most methods: {words}."


def _against(found: Explanation) -> str:
    """Name the token that lowers the answer most, by methods with signs."""
    heard: Counter[Place] = Counter()
    speaking = [one for one in found.voting if one.signed and decides(one)]
    for one in speaking:
        least = min(found.tokens(one.name), key=lambda token: token.score)
        if least.score < -AGAINST * reach(one):
            heard[least.input, least.place] += 1
    (place, votes), *_ = heard.most_common(1) or [(("", 0), 0)]
    if votes < CLEAR * len(speaking) or not votes:
        return ""
    who = f"{votes} of {count(len(speaking), 'method')}"
    return _begun(f"{_token(found, place)} speaks most against it, by {who} that can say so.")


def _agreement(found: Explanation) -> str:
    known = {pair: value for pair, value in found.agreement().items() if math.isfinite(value)}
    if not known:
        return ""
    titles = {one.name: in_words(one) for one in found.methods}

    def pair(names: tuple[str, str]) -> str:
        return f"{titles[names[0]]} and {titles[names[1]]} ({numeral(round(known[names], 2))})"

    mean = sum(known.values()) / len(known)
    if len(known) == 1:
        (names,) = known
        both = f"{titles[names[0]]} and {titles[names[1]]}"
        return f"The orders of tokens by {both} have a rank correlation of {numeral(round(known[names], 2))}."
    closest, farthest = max(known, key=known.__getitem__), min(known, key=known.__getitem__)
    return (
        f"Rank correlations of methods are {numeral(round(mean, 2))} on average; closest are {pair(closest)}, farthest "
        f"{pair(farthest)}."
    )


def _sums(found: Explanation) -> list[str]:
    """Say how much constants contribute, for methods whose scores should add up to the answer."""
    said = []
    for one in found.methods:
        # Others add up to something else, such as the norm of states.
        if one.adds_up is None or not one.adds_up.startswith("the answer, less what constants"):
            continue
        missing = found.value - one.total
        if abs(missing) > MISSING * max(abs(found.value), abs(one.total)):
            said.append(
                f"By {in_words(one)} tokens add up to {signed(one.total)} of {numeral(found.value)} ({one.adds_up})."
            )
    return said


def _token(found: Explanation, place: Place) -> str:
    name, at = place
    read = next(one for one in found.inputs if one.name == name)
    if read.kind == "sound" and read.step is not None:
        return f"the moment at {read.tokens[at]}"
    if read.kind == "image" and read.grid is not None and at >= read.before:
        row, column = divmod(at - read.before, read.grid[1])
        return f"the patch in row {row}, column {column}"
    where = f"token {at} of the {name}" if len(found.inputs) > 1 else f"token {at}"
    if followed(found, read, at):
        where += ", of the continuation"
    return f"'{visible(read.tokens[at])}' ({where})"


def followed(found: Explanation, read: Input, place: int) -> bool:
    """Return whether a token belongs to the continuation."""
    begin = found.continued_at
    return begin is not None and read is found.inputs[-1] and place >= begin


def read_words(found: Explanation) -> str:
    """Return `picture`, `sound` or `text`."""
    kinds = [one.kind for one in found.inputs]
    return "picture" if "image" in kinds else "sound" if "sound" in kinds else "text"


def token_words(token: Token, several: bool) -> str:
    """Return the number of a token, after the name of its input if there are several."""
    return f"{f'{token.input} ' if several else ''}{token.place}"


def last_written(found: Explanation) -> str:
    """Return the last token of a continuation, which is predicted and not read: no method has a number for it."""
    return visible(found.steps[-1].word) if found.steps else ""
