"""Try on the model what the methods say: replace words, run the model, and see whether the answer moves.

Candidates are the words that methods which depend on the answer rank highest. Each is replaced by several others
(`replacing`), all in a few batches with fused attention. For a word with replacements r = 1 .. R

    effect = 1/R sum_r fit_r (log p - log p_r),      fit_r = min(1, exp((log P_r - log P) / SOFTNESS))

p is the probability of the answer and P that of the whole text before it, if the model predicts its text; else fit is
1. So a replacement after which the text is no longer a text (a breach of grammar moves every answer) hardly counts. For
an answer that is no probability, the numbers themselves take the place of the logarithms.

The token at which the answer is read asks the question and is listed apart: replacing it asks something else. If no
single word moves the answer, pairs of the first candidates are tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, islice
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnscope.commands.explain.parts import Part, parts_of
from attnscope.commands.explain.record import Input, Scored
from attnscope.commands.explain.replacing import Vocabulary
from attnscope.commands.explain.running import Run
from attnscope.commands.explain.tried import Replacement, Trial, Tried, scaled
from attnscope.core.progress import Advance
from attnscope.hf.loading.memory import out_of_memory
from attnscope.hf.tapping.capture import output_with

SOFTNESS = 4.0  # nats by which a text may become less likely before a replacement counts e times less
REPLACEMENTS = 3
CANDIDATES = 6
SHORT, CANDIDATES_OF_SHORT = 24, 10  # a text of up to this many tokens costs little, so more words are tried
PAIRED = 3  # candidates that are tried in pairs
LARGEST_OUTPUT = 2**26  # numbers of output in memory at once
FEWEST_RANKED = 4  # words that a rank correlation needs
KINDS = ("logit", "continuation")  # of targets whose answer is a probability


@dataclass(frozen=True)
class Edit:
    """Other vectors, or other tokens, at some tokens of one input."""

    part: Part
    vectors: Float[Tensor, "token width"]
    text: str
    ids: tuple[int, ...] | None = None


def trial(whole: Run, inputs: tuple[Input, ...], scored: Sequence[Scored], progress: Advance) -> Trial | None:
    """Replace the words that methods name, and return what that does to the answer.

    Only methods that depend on the answer, and whose scores add up to what they should, choose words. Return None if
    there is nothing to replace, as in a text of one token.
    """
    parts = parts_of(whole, inputs)
    voters = [method for method in scored if method.reads_answer and method.passes is not False]
    tokens = max(len(read.tokens) for read in inputs)
    most = CANDIDATES_OF_SHORT if tokens <= SHORT else CANDIDATES
    chosen = candidates([part for part in parts if not part.asks], voters, most)
    asking = next((part for part in parts if part.asks), None)
    if not chosen:
        return None
    model = _Model(whole, inputs)
    edits = {part: model.edits(part) for part in (*chosen, *([asking] if asking else []))}
    progress("trying words on the model", 0, 0)
    answers = model.answers([(edit,) for rows in edits.values() for edit in rows])
    found = {}
    for part, rows in edits.items():
        if rows:
            found[part] = model.tried((part,), list(islice(answers, len(rows))))
    words = sorted((found[part] for part in chosen if part in found), key=lambda one: -one.effect)
    result = Trial(
        unit=model.unit,
        before=model.before,
        words=tuple(words),
        asking=found.get(asking) if asking else None,
        agreement=agreement(words, scored, inputs),
        inputs=model.inputs,
    )
    if not result.deciding and len(words) > 1:
        progress("trying pairs of words", 0, 0)
        result = _with_pairs(result, model, edits, [part for part in chosen if edits[part]][:PAIRED])
    return result if words else None


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


def _with_pairs(result: Trial, model: _Model, edits: dict[Part, list[Edit]], parts: list[Part]) -> Trial:
    rows = {pair: list(zip(edits[pair[0]], edits[pair[1]], strict=False)) for pair in combinations(parts, 2)}
    answers = model.answers([edit for pair in rows.values() for edit in pair])
    pairs = [model.tried(pair, list(islice(answers, len(some)))) for pair, some in rows.items()]
    ranked = tuple(sorted(pairs, key=lambda one: -one.effect))
    return Trial(result.unit, result.before, result.words, result.asking, ranked, result.agreement, inputs=model.inputs)


Answered = tuple[tuple[Edit, ...], float, float]  # the edits, the answer with them, and their fit


class _Model:
    """The model on inputs with other words. Counts the inputs that it ran on."""

    def __init__(self, whole: Run, inputs: tuple[Input, ...]) -> None:
        self.whole, self.names = whole, inputs
        self.unit: Literal["probability", "number"] = "probability" if whole.aim.goal.kind in KINDS else "number"
        self.inputs = 0
        self.vocabularies: dict[str, Vocabulary] = {}
        output = whole.captured.output
        self.predicts = whole.loaded.kind == "causal" and output.ndim == 3 and output.shape[1] == self._ids(()).shape[1]
        self.before = float(self._answer(output)[0])
        self._likely = self._log_probability(output, self._ids(()))[0]

    def edits(self, part: Part) -> list[Edit]:
        """Return the replacements of one part."""
        place = self.whole.places[part.place]
        if not place.looks_up:
            return [Edit(part, vectors, text) for text, vectors in self._media(part)]
        ids = self.whole.read.batch[place.argument][0].tolist()
        vocabulary = self._vocabulary(part.place)
        own = [ids[token] for token in part.tokens]
        if any(vocabulary.special(token) for token in own):
            return []
        gradient = None if self.predicts else self.whole.captured.embedding_gradient[place.stack][list(part.tokens)]
        rows = vocabulary.replacements(own, REPLACEMENTS, gradient)
        device = vocabulary.table.weight.device
        with torch.no_grad():
            return [
                Edit(part, vocabulary.table.forward(torch.tensor(row, device=device)), vocabulary.spelt(row), row)
                for row in rows
            ]

    def answers(self, rows: list[tuple[Edit, ...]]) -> Iterator[Answered]:
        """Yield the answer for each row, which has one or more edits. Rows run in batches."""
        size = max(1, LARGEST_OUTPUT // max(1, self.whole.captured.output.numel()))
        for begin in range(0, len(rows), size):
            yield from self._run(rows[begin : begin + size])

    def tried(self, parts: tuple[Part, ...], answered: list[Answered]) -> Tried:
        replacements = tuple(
            Replacement(" and ".join(edit.text for edit in edits), answer, fit) for edits, answer, fit in answered
        )
        falls = [one.fit * (scaled(self.before, self.unit) - scaled(one.answer, self.unit)) for one in replacements]
        return Tried(
            input=self.names[parts[0].place].name,
            tokens=tuple(token for part in parts for token in part.tokens),
            word=" and ".join(f"'{part.word}'" for part in parts) if len(parts) > 1 else parts[0].word,
            replacements=replacements,
            effect=math.fsum(falls) / max(len(falls), 1),
        )

    def _run(self, rows: Sequence[tuple[Edit, ...]]) -> list[Answered]:
        """Run one batch. If memory runs out, halve it."""
        whole = self.whole
        vectors = {p.stack: whole.captured.embedding[p.stack].expand(len(rows), -1, -1).clone() for p in whole.places}
        for number, edits in enumerate(rows):
            for edit in edits:
                entering = vectors[whole.places[edit.part.place].stack]
                entering[number, list(edit.part.tokens)] = edit.vectors.to(entering)
        try:
            with torch.no_grad():
                output = output_with(whole.loaded.model, whole.read.batch, whole.places, vectors)
        except RuntimeError as error:
            if not out_of_memory(error) or len(rows) < 2:
                raise
            half = len(rows) // 2
            return [*self._run(rows[:half]), *self._run(rows[half:])]
        self.inputs += len(rows)
        likely = self._log_probability(output, torch.cat([self._ids(edits) for edits in rows]))
        fits = [min(1.0, math.exp((float(one) - float(self._likely)) / SOFTNESS)) for one in likely]
        return [(edits, float(a), fit) for edits, a, fit in zip(rows, self._answer(output), fits, strict=True)]

    def _answer(self, output: Tensor) -> Tensor:
        aim = self.whole.aim
        return (aim.chance if self.unit == "probability" else aim.number)(output).double()

    def _ids(self, edits: Sequence[Edit]) -> Int[Tensor, "1 token"]:
        """Return the tokens of the last input with some edits; empty if it has no tokens."""
        place = self.whole.places[-1]
        if not place.looks_up:
            return torch.zeros(1, 0, dtype=torch.long)
        ids: Tensor = self.whole.read.batch[place.argument].clone()
        for edit in edits:
            if edit.ids is not None and edit.part.place == len(self.whole.places) - 1:
                ids[0, list(edit.part.tokens)] = torch.tensor(edit.ids, device=ids.device)
        return ids

    def _log_probability(self, output: Tensor, ids: Int[Tensor, "batch token"]) -> Float[Tensor, " batch"]:
        """Return the log probability of the text before the answer, for models that predict their text; else zeros."""
        whole = self.whole
        stop = ids.shape[1] - max(len(whole.read.continued) - 1, 0)
        if whole.aim.position is not None:
            stop = min(stop, whole.aim.position + 1)
        if not self.predicts or stop < 2:
            return torch.zeros(len(ids))
        logits = output[:, : stop - 1]
        own = logits.gather(-1, ids[:, 1:stop, None]).squeeze(-1)
        return (own - logits.logsumexp(-1)).double().sum(-1)

    def _vocabulary(self, place: int) -> Vocabulary:
        path = self.whole.places[place].path
        if path not in self.vocabularies:
            table = self.whole.loaded.model.get_submodule(path)
            assert isinstance(table, nn.Embedding)
            self.vocabularies[path] = Vocabulary(table, self.whole.loaded.tokenizer)
        return self.vocabularies[path]

    def _media(self, part: Part) -> list[tuple[str, Tensor]]:
        """Return a blank part, and one with the mean content of the whole picture or sound."""
        place = self.whole.places[part.place]
        blank = self.whole.baseline()[place.stack]
        content = (self.whole.captured.embedding[place.stack] - blank)[part.among[0] : part.among[1]].mean(0)
        tokens = list(part.tokens)
        return [("blank", blank[tokens]), ("the mean of all", blank[tokens] + content)]
