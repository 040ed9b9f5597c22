"""Try on the model what the methods say: replace words, run the model, and see whether the answer moves.

Candidates are the words that methods which depend on the answer rank highest. Each is replaced by several others
(`replacing`), in a few batches with fused attention. For a word with replacements r = 1 .. R

    effect = 1/R sum_r fit_r (log p - log p_r),      fit_r = min(1, exp((log P_r - log P) / SOFTNESS))

p is the probability of the answer and P that of the whole text before it, if the model predicts its text; else fit is
1. So a replacement after which the text is no longer a text (a breach of grammar moves every answer) hardly counts. For
an answer that is no probability, the numbers themselves take the place of the logarithms.

A verdict says that a word decided if the median answer falls by a third: with all replacements, with the similar and
with the likely ones alone, and with those that had no part in choosing the word. A word *can change* the answer if one
replacement with a fit of at least one half takes half of the answer away, and does not do so in the place of another
word.

The token at which the answer is read asks the question and is listed apart: replacing it asks something else. If no
single word moves the answer, pairs of the first candidates are tried.

Two measures keep a trial cheap. In a longer text every word gets one replacement first, and only the words with the
largest effects get the others. A causal model computes only the tokens from the replaced word on (`tapping.suffixes`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, islice

from attnscope.commands.explain.edited_inputs import REPLACEMENTS, EditedInputs, Edits, Parts, Rows
from attnscope.commands.explain.parts import Part, parts_of
from attnscope.commands.explain.record import Input, Scored
from attnscope.commands.explain.running import Run
from attnscope.commands.explain.tried import CLOSE, NAMED, SEVERAL, Trial, Tried
from attnscope.core.progress import Advance
from attnscope.hf.tapping.entrances import explaining

CANDIDATES, CANDIDATES_OF_LONG = 10, 4
LONG = 24  # tokens beyond which a trial must be careful with its time
PAIRED, PAIRED_OF_LONG = 3, 2  # candidates that are tried in pairs
FEWEST_RANKED = 4  # words that a rank correlation needs


def trial(whole: Run, inputs: tuple[Input, ...], scored: Sequence[Scored], progress: Advance) -> Trial | None:
    """Replace the words that methods name, and return what that does to the answer.

    Only methods that depend on the answer, and whose scores add up to what they should, choose words. Return None if
    there is nothing to replace, as in a text of one token.
    """
    parts = parts_of(whole, inputs)
    voters = [method for method in scored if method.reads_answer and method.passes is not False]
    long = max(len(read.tokens) for read in inputs) > LONG
    chosen = candidates([part for part in parts if not part.asks], voters, CANDIDATES_OF_LONG if long else CANDIDATES)
    asking = next((part for part in parts if part.asks), None)
    if not chosen:
        return None
    with explaining(whole.loaded.model):
        return _trial(EditedInputs(whole, inputs), chosen, asking, scored, long, progress)


def _trial(
    model: EditedInputs,
    chosen: list[Part],
    asking: Part | None,
    scored: Sequence[Scored],
    long: bool,
    progress: Advance,
) -> Trial | None:
    edits = {part: some for part in chosen if (some := model.edits(part, long)).first}
    progress("trying words on the model", 0, 0)
    rows: Rows = {(part,): [(edit,) for edit in some.first] for part, some in edits.items()}
    if asking and (several := model.edits(asking, long).all[: SEVERAL if long else REPLACEMENTS]):
        rows[(asking,)] = [(edit,) for edit in several]
    found = _tried(model, rows)
    asked = found.pop((asking,), None) if asking else None
    tried = _tried_again(model, {part: found[(part,)] for part in edits}, edits, long)
    words = tuple(_controlled(model, tried, edits).values())
    if not words:
        return None
    result = Trial(
        unit=model.unit,
        before=model.before,
        words=words,
        asking=asked,
        agreement=agreement(words, scored, model.names),
        inputs=model.inputs,
        fitted=model.predicts,
        least=model.least,
    )
    if not result.named and len(words) > 1:
        progress("trying pairs of words", 0, 0)
        pairs = _pairs(model, edits, [word.tokens for word in words] if long else [])
        result = replace(result, pairs=pairs, inputs=model.inputs)
    return result


def _tried(model: EditedInputs, rows: Rows) -> dict[Parts, Tried]:
    """Run the model on all rows."""
    answers = iter(model.answers([row for some in rows.values() for row in some]))
    return {parts: model.tried(parts, list(islice(answers, len(some)))) for parts, some in rows.items()}


def _tried_again(
    model: EditedInputs, found: dict[Part, Tried], edits: Mapping[Part, Edits], long: bool
) -> dict[Part, Tried]:
    """Try further replacements of the words with the largest effects, because the first ones chose these words.

    As many words as a verdict names get them, if the answer falls and their effect is large enough to be named; the one
    with the largest effect in any case. The effects then change, so this is repeated until the words with the largest
    effects (of a long text: the one with the largest effect) have been tried again. If these do not decide, the next
    words of a short text follow. Return all words, the largest effect first.
    """
    found, most = dict(found), NAMED
    while True:
        ranked = sorted(found, key=lambda part: -found[part].effect)
        least = CLOSE * found[ranked[0]].effect if ranked else 0.0
        large = [part for part in ranked if found[part].effect >= least and model.falls(found[part])]
        best = [part for part in ranked[:most] if part == ranked[0] or part in large]
        left = [part for part in best if edits[part].again and not found[part].again]
        if not left and not long and sum(map(model.decides, found.values())) < NAMED:
            taking = [part for part in large if model.takes(found[part]) and not found[part].again]
            left = [part for part in taking if edits[part].again][:1]
        if not left:
            return {part: found[part] for part in ranked}
        answers = iter(model.answers([(edit,) for part in left for edit in edits[part].again]))
        for part in left:
            found[part] = model.tried_again(found[part], list(islice(answers, len(edits[part].again))))
        most = 1 if long else NAMED


def _controlled(model: EditedInputs, found: dict[Part, Tried], edits: Mapping[Part, Edits]) -> dict[Part, Tried]:
    """Put the replacements that take the answer away into the place of another word.

    This is done for the first words that do not decide, as many as a verdict names. The other word is of the same kind
    and of as many tokens, and has the smallest effect.
    """
    rows: Rows = {}
    for part, tried in found.items():
        taking = [] if model.decides(tried) else model.taking(tried)
        others = [other for other in found if other != part and model.alike(part, other)] if taking else []
        if others and len(rows) < NAMED:
            least = min(others, key=lambda other: abs(found[other].effect))
            (edit, *_) = [edit for edit in edits[part].all if edit.text == taking[0].text]
            rows[(part,)] = [(replace(edit, part=least),)]
    controls = iter(model.answers([row for some in rows.values() for row in some]))
    return found | {part: replace(found[part], control=next(controls)) for (part,) in rows}


def _pairs(model: EditedInputs, edits: Mapping[Part, Edits], ranked: Sequence[tuple[int, ...]]) -> tuple[Tried, ...]:
    """Replace two words at once: two of the first candidates.

    In a long text, only the two words with the largest effects are replaced, a few times: `ranked` has their tokens.
    """
    first, most = list(edits)[:PAIRED], REPLACEMENTS
    if ranked:
        first, most = sorted(edits, key=lambda part: ranked.index(part.tokens))[:PAIRED_OF_LONG], SEVERAL
    rows: Rows = {(a, b): list(zip(edits[a].all[:most], edits[b].all, strict=False)) for a, b in combinations(first, 2)}
    return tuple(sorted(_tried(model, rows).values(), key=lambda one: -one.effect))


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
