"""Conclusions of an explanation: which words moved the answer when they were replaced, and how far methods agree.

Only the trial names words that decided. Methods choose what is tried, and have no vote.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from attnscope.commands.explain.record import SUM_BOUND, Explanation, Input, Scored, Token
from attnscope.commands.explain.tried import SEVERAL, Replacement, Trial, Tried, joined
from attnscope.commands.paths.vocabulary import chance, quoted, signed, visible
from attnscope.core.words import count, numeral, percent
from attnscope.reports.words import Verdict, listed

FEW = 3  # tokens that a method votes for
MANY_TOKENS = 24  # of a text of which only a few words are tried
COMPARED = 1e-3  # smaller probabilities are compared with the one before
LEAST_TOLD = 0.1  # fit of a similar word that makes an example

Place = tuple[str, int]  # the name of an input, and the index of a token in it


def verdict(found: Explanation) -> Verdict:
    """Name the words whose replacement moved the model's answer, and say by how much."""
    if sum(len(read.tokens) for read in found.inputs) == 1:
        return Verdict("note", "There is a single token, so there is nothing to compare it with.")
    if found.trial is None:
        return Verdict("note", "Nothing was tried on the model, so no word is said to have decided.")
    if found.asked.kind == "difference" and found.trial.before < 0:
        return Verdict(
            "note",
            f"The {visible(found.target)} is below 0 ({numeral(found.value)}): the model prefers the other one. Swap "
            "the target and `against=` to learn what decided.",
        )
    return Verdict("note", " ".join(filter(None, (_decided(found, found.trial), _overrated(found, found.trial)))))


def _decided(found: Explanation, trial: Trial) -> str:
    """Say which words decided, then which can change the answer; if none decided, whether two together did."""
    deciding = [one for one in trial.named if trial.decides(one)]
    changing = [_changes(found, trial, one) for one in trial.named if one not in deciding]
    few = _few_tried(found, trial)
    if deciding:
        first, *others = deciding
        more = [f"{_capitalized(part_words(found, one))} did too ({_fall(trial, one)})." for one in others]
        first_sentence = _capitalized(f"{part_words(found, first)} decided: {_did(found, trial, first)}.")
        return " ".join([first_sentence, *more, *changing, *few])
    most = trial.words[0]
    kind = part_kind(found)
    tried = f"{len(trial.words)} tried, replacing {part_words(found, most)} moves {answer_words(found)} most"
    none = f"No single {kind} decided: of {tried} ({_fall(trial, most)})."
    pair = next((one for one in trial.pairs if trial.pair_decides(one)), None)
    if pair is not None:
        return f"{none} Together, {pair.word} decided: {_did(found, trial, pair)}."
    if changing:
        return " ".join([none, *changing])
    if trial.asking is not None and trial.moved(trial.asking):
        return f"{none} {_capitalized(_asked_at(found, trial, trial.asking))}"
    return none


def _few_tried(found: Explanation, trial: Trial) -> list[str]:
    """Say how many words of a long text were tried."""
    tokens = sum(len(read.tokens) for read in found.inputs)
    if part_kind(found) != "word" or tokens <= MANY_TOKENS:
        return []
    return [f"Only {count(len(trial.words), 'word')} of {tokens} tokens were tried."]


def _changes(found: Explanation, trial: Trial, tried: Tried) -> str:
    """Say that a word can change the answer, with an example."""
    one = trial.contrast(tried)
    assert one is not None
    fall = f"from {answer_number(trial, trial.before)} to {answer_number(trial, one.answer)}"
    subject = _capitalized(part_words(found, tried))
    return f"{subject} can change it: {_instead(found, one)}, and {answer_words(found)} falls {fall}."


def _asked_at(found: Explanation, trial: Trial, asking: Tried) -> str:
    return f"{part_words(found, asking)}, after which the answer is read, moves it ({_fall(trial, asking)})."


def _did(found: Explanation, trial: Trial, tried: Tried) -> str:
    """Return how far the answer falls in the median, the range, and what the model says with one replacement."""
    every = count(len(tried.every), "replacement")
    spread = f"({every}: {answer_number(trial, tried.low)} to {answer_number(trial, tried.high)})"
    chosen = " by words chosen to lower it" if any(one.chosen == "lowering" for one in tried.every) else ""
    example = max((one for one in tried.every if one.says), key=telling, default=None)
    instead = f"; {_instead(found, example)}" if example else ""
    return f"replaced{chosen}, {answer_words(found)} falls {_fall(trial, tried)} {spread}{instead}"


def telling(one: Replacement) -> tuple[bool, float]:
    """Rank replacements as examples: similar words first, then those that fit and after which the model is sure."""
    return one.chosen == "similar" and one.fit > LEAST_TOLD, one.fit * one.sure


def _instead(found: Explanation, one: Replacement) -> str:
    words = part_kind(found) == "word"
    given = one.text if one.text.startswith("'") or not words else quoted(one.text)  # those of pairs are in quotes
    given = given if words else f"{given} in its place"
    return f"with {given} the model says {quoted(one.says)} ({chance(one.sure)})"


def _fall(trial: Trial, tried: Tried) -> str:
    return f"from {answer_number(trial, trial.before)} to {answer_number(trial, tried.after)}"


def answer_number(trial: Trial, number: float) -> str:
    """Return an answer. Very small probabilities, as of a long continuation, are compared with the one before."""
    if trial.unit != "probability":
        return numeral(number)
    if 0 < trial.before < COMPARED and number != trial.before:
        return f"{numeral(number / trial.before, 2)} times that"
    return chance(number)


def answer_words(found: Explanation) -> str:
    """Return words for the answer, for the middle of a sentence."""
    if found.asked.kind == "logit":
        return quoted(found.asked.word)
    if found.asked.kind in ("similarity", "match"):  # the target names both inputs, which is long
        return "their likeness"
    return "the continuation" if found.asked.kind == "continuation" else f"the {visible(found.target)}"


def part_kind(found: Explanation) -> str:
    """Return what was replaced as a whole."""
    kinds = {read.kind for read in found.inputs}
    return "group of patches" if "image" in kinds else "group of moments" if "sound" in kinds else "word"


def part_words(found: Explanation, tried: Tried) -> str:
    """Return a tried word in quotes, with its place if the text has it twice; patches and moments have names."""
    read = next(read for read in found.inputs if read.name == tried.input)
    if read.kind != "text":
        return tried.word
    size = len(tried.tokens)
    same = sum(joined(read.tokens[at : at + size]) == tried.word for at in range(len(read.tokens)))
    return quoted(tried.word) + (f" (token {tried.tokens[0]})" if same > 1 else "")


def _overrated(found: Explanation, trial: Trial) -> str:
    """Name the word that most methods put first although replacing it does not move the answer."""
    still = {
        (one.input, token): one
        for one in trial.words
        if len(one.every) >= SEVERAL and trial.unmoved(one) and not trial.raised(one) and one not in trial.named
        if one.low >= trial.before / 2
        for token in one.tokens
    }
    firsts: dict[Place, list[str]] = {}
    for method in voters_of(found):
        for token in _leading(found, method.name, 1)[:1]:
            if (token.input, token.place) in still:
                firsts.setdefault((token.input, token.place), []).append(in_words(method))
    if not firsts or not trial.named:
        return ""
    place, methods = max(firsts.items(), key=lambda item: len(item[1]))
    by = listed(methods) if len(methods) < FEW else f"{len(methods)} methods"
    word = part_words(found, still[place])
    return f"Replacing {word}, ranked first by {by}, changes little ({_fall(trial, still[place])})."


def conclusions(found: Explanation) -> tuple[str, ...]:
    """Return sentences on what the trial showed besides the verdict, on agreement of methods, and on sums."""
    parts = (*_of_trial(found), _when(found), _leading_tokens(found), _agreement(found))
    return tuple(filter(None, (*parts, *_sums(found))))


def _of_trial(found: Explanation) -> tuple[str, ...]:
    """Return sentences on other words that moved the answer, words against it, the asking token and the methods."""
    trial = found.trial
    if trial is None:
        return ()
    others = [one for one in trial.deciding if one not in trial.named]
    listing = listed([f"{part_words(found, one)} (to {answer_number(trial, one.after)})" for one in others])
    against = [one for one in trial.words if trial.raised(one)]
    rises = [
        f"Replacing {part_words(found, one)} raises {answer_words(found)} {_fall(trial, one)}: it speaks against the "
        "answer, or what took its place speaks for it."
        for one in against[-1:]
    ]
    asks = trial.asking if trial.named else None
    return (
        f"Replacing {listing} moves the answer too." if others else "",
        *rises,
        "" if asks is None else _capitalized(f"{part_words(found, asks)} asks: the answer is read after it."),
        _best_method(found, trial),
    )


def _best_method(found: Explanation, trial: Trial) -> str:
    if not trial.agreement:
        return ""
    known = [(name, value) for name, value in trial.agreement if found.method(name).passes is not False]
    if not known:
        return ""
    name, most = max(known, key=lambda pair: pair[1])
    return (
        f"{found.method(name).title} orders the {len(trial.words)} tried words most like their measured effects (rank "
        f"correlation {correlation_words(most)})."
    )


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


def in_continuation(found: Explanation, read: Input, place: int) -> bool:
    begin = found.continued_at
    return begin is not None and read is found.inputs[-1] and place >= begin
