"""Try on the model what the methods say: replace words, run the model, and see whether the answer moves.

Candidates are the words that methods which depend on the answer rank highest. Each is replaced by several others
(`replacing`), in a few batches with fused attention. For a word with replacements r = 1 .. R

    effect = 1/R sum_r fit_r (log p - log p_r),      fit_r = min(1, exp((log P_r - log P) / SOFTNESS))

p is the probability of the answer and P that of the whole text before it, if the model predicts its text; else fit is
1. So a replacement after which the text is no longer a text (a breach of grammar moves every answer) hardly counts. For
an answer that is no probability, the numbers themselves take the place of the logarithms.

A verdict names a word if the median answer falls by a third, and by a tenth with further replacements that had no part
in choosing the word. It also names a word if one replacement with a fit of at least one half takes at least half of
the answer away, and then it names that replacement too ('man' and not 'woman').

The token at which the answer is read asks the question and is listed apart: replacing it asks something else. If no
single word moves the answer, pairs of the first candidates are tried.

Two measures keep a trial cheap. In a longer text every word gets one replacement first, and only the words with the
largest effect get the others. A causal model computes only the tokens from the replaced word on (`tapping.suffixes`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, islice

from attnscope.commands.explain.edited_inputs import REPLACEMENTS, Answered, Edit, EditedInputs, Parts, Row, Rows
from attnscope.commands.explain.parts import Part, parts_of
from attnscope.commands.explain.record import Input, Scored
from attnscope.commands.explain.running import Run
from attnscope.commands.explain.tried import SEVERAL, Trial, Tried
from attnscope.core.progress import Advance
from attnscope.hf.tapping.entrances import explaining

CANDIDATES = 5
SHORT, CANDIDATES_OF_SHORT = 24, 10  # a text of up to this many tokens costs little, so more words are tried
FURTHER = 2  # words of a longer text that get more than one replacement: as many as a verdict names
PAIRED, PAIRED_OF_LONG = 3, 2  # candidates that are tried in pairs
FEWEST_RANKED = 4  # words that a rank correlation needs


def trial(whole: Run, inputs: tuple[Input, ...], scored: Sequence[Scored], progress: Advance) -> Trial | None:
    """Replace the words that methods name, and return what that does to the answer.

    Only methods that depend on the answer, and whose scores add up to what they should, choose words. Return None if
    there is nothing to replace, as in a text of one token.
    """
    parts = parts_of(whole, inputs)
    voters = [method for method in scored if method.reads_answer and method.passes is not False]
    short = max(len(read.tokens) for read in inputs) <= SHORT
    most = CANDIDATES_OF_SHORT if short else CANDIDATES
    chosen = candidates([part for part in parts if not part.asks], voters, most)
    asking = next((part for part in parts if part.asks), None)
    if not chosen:
        return None
    with explaining(whole.loaded.model):
        return _trial(EditedInputs(whole, inputs), chosen, asking, scored, None if short else FURTHER, progress)


def _trial(
    model: EditedInputs,
    chosen: list[Part],
    asking: Part | None,
    scored: Sequence[Scored],
    further: int | None,
    progress: Advance,
) -> Trial | None:
    edits = {part: model.edits(part) for part in (*chosen, *([asking] if asking else []))}
    progress("trying words on the model", 0, 0)
    rows: Rows = {(part,): [(edit,) for edit in some[:REPLACEMENTS]] for part, some in edits.items() if some}
    found = _tried(model, rows, further, asking)
    found |= _confirmed(model, {part: found[(part,)] for part in chosen if (part,) in found}, edits)
    words = sorted((found[(part,)] for part in chosen if (part,) in found), key=lambda one: -one.effect)
    result = Trial(
        unit=model.unit,
        before=model.before,
        words=tuple(words),
        asking=found.get((asking,)) if asking else None,
        agreement=agreement(words, scored, model.names),
        inputs=model.inputs,
        fitted=model.predicts,
    )
    if not result.named and len(words) > 1:
        progress("trying pairs of words", 0, 0)
        first = [part for part in chosen if edits[part]]
        most = REPLACEMENTS
        if further:  # the two words of a longer text with the largest effects, with as few replacements as a name needs
            most, first = SEVERAL, sorted(first, key=lambda part: -found[(part,)].effect)[:PAIRED_OF_LONG]
        rows = {(a, b): list(zip(edits[a][:most], edits[b], strict=False)) for a, b in combinations(first[:PAIRED], 2)}
        pairs = _tried(model, rows, further).values()
        result = replace(result, pairs=tuple(sorted(pairs, key=lambda one: -one.effect)), inputs=model.inputs)
    return result if words else None


def _tried(model: EditedInputs, rows: Rows, further: int | None, asking: Part | None = None) -> dict[Parts, Tried]:
    """Run the model on all rows; with `further`, in stages.

    In the first stage the asking word gets all its rows, and everything else gets one. Then the others are run for
    those that moved the answer, at most `further` with the largest effects; of single words, also for the one with the
    largest effect if it moved nothing. This is repeated until the one with the largest effect has all its rows.
    """
    answered: dict[Parts, list[Answered]] = {parts: [] for parts in rows}

    def run(chosen: Rows) -> dict[Parts, Tried]:
        answers = iter(model.answers([row for some in chosen.values() for row in some]))
        for parts, some in chosen.items():
            answered[parts] += islice(answers, len(some))
        return {parts: model.tried(parts, answered[parts]) for parts in chosen}

    if further is None:
        return run(rows)
    found = run({parts: some if parts == (asking,) else some[:1] for parts, some in rows.items()})
    more = True
    while more:
        ranked = sorted((parts for parts in rows if parts != (asking,)), key=lambda parts: -found[parts].effect)
        best = [parts for parts in ranked[:further] if model.falls(found[parts]) or parts == ranked[0][:1]]
        left = {parts: rows[parts][1:] for parts in best if len(answered[parts]) < len(rows[parts])}
        found |= run(left)
        more, further = bool(left), 1
    return found


def _confirmed(model: EditedInputs, found: dict[Part, Tried], edits: dict[Part, list[Edit]]) -> dict[Parts, Tried]:
    """Try further replacements of the named words that decide, because the first replacements chose these words.

    A word that fails makes room for the next one, which is then confirmed too.
    """
    found, done = dict(found), set[Part]()
    while True:
        words = tuple(sorted(found.values(), key=lambda one: -one.effect))
        result = Trial(model.unit, model.before, words, fitted=model.predicts)
        named = [part for part, tried in found.items() if tried in result.named and result.decides(tried)]
        named = [part for part in named if part not in done and edits[part][REPLACEMENTS:]]
        if not named:
            return {(part,): tried for part, tried in found.items()}
        done.update(named)
        rows: list[Row] = [(edit,) for part in named for edit in edits[part][REPLACEMENTS:]]
        answers = iter(model.answers(rows))
        for part in named:
            again = list(islice(answers, len(edits[part][REPLACEMENTS:])))
            found[part] = replace(found[part], again=model.replacements(again))


def candidates(parts: Sequence[Part], methods: Sequence[Scored], most: int) -> list[Part]:
    """Return the parts that methods rank highest: those that some method puts first, then second, and so on."""
    orders = [sorted(parts, key=partial(_falling, method)) for method in methods]
    ranked = [order[rank] for rank in range(len(parts)) for order in orders]
    return list(dict.fromkeys(ranked))[:most]


def _falling(method: Scored, part: Part) -> float:
    return -part.score(method)


def agreement(
    words: Sequence[Tried], scored: Sequence[Scored], inputs: tuple[Input, ...]
) -> tuple[tuple[str, float], ...]:
    """Return Spearman's correlation of each method's scores with the measured effects, where it exists."""
    from scipy.stats import spearmanr

    names = [read.name for read in inputs]
    effects = [word.effect for word in words]
    found = []
    for method in scored:
        rows = [method.scores[names.index(word.input)] for word in words]
        if len(words) < FEWEST_RANKED or not all(rows):
            continue
        scores = [math.fsum(row[place] for place in word.tokens) for row, word in zip(rows, words, strict=True)]
        if max(scores) > min(scores) and max(effects) > min(effects):
            found.append((method.name, float(spearmanr(scores, effects).statistic)))
    return tuple(found)
