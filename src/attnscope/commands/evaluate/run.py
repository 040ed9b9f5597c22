"""evaluate(model, corpus) -> Faithfulness: which explanation is most faithful to this model.

    found = attnscope.evaluate("pocket", samples=16)
    found.sentences(), found.table()

Each method explains the model's own answer to every text, and tokens are removed in the order of their scores
(`perturbing`). No labels are needed: the probability of the model's own answer is followed. With `labels`, the
probability of the true class is followed, and the accuracy of the model is reported too.

A masked language model needs a mask: at an ordinary token it only repeats that token. So in a text without a mask, one
token that is not special is masked at random, and the model's answer there is followed.

Each text that is given is judged once. A corpus that is one long document is cut into windows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from attnscope.commands.evaluate.perturbing import NoAnswerError, Perturbed, averaged, labelled_batches, perturbed
from attnscope.commands.evaluate.record import ESTIMATES, Estimate, Faithfulness, Judged, drawn_together
from attnscope.commands.evaluate.replacing import (
    REPLACEMENTS,
    draws_tokens,
    masking_one,
    removable,
    replacement_words,
    replacing_vectors,
    texts_of,
)
from attnscope.commands.explain.aiming import Aim, Question, aim
from attnscope.commands.explain.run import run_on
from attnscope.commands.explain.running import Run
from attnscope.core.errors import RefusalError, one_of
from attnscope.core.explanation import Method
from attnscope.core.progress import Advance, silent
from attnscope.core.registry import chosen_methods, method_names
from attnscope.core.words import count
from attnscope.data.batches import Batches
from attnscope.data.corpus import Corpus
from attnscope.data.prompts import Class
from attnscope.data.windows import Tokenizer
from attnscope.hf.anatomy.anatomy import Anatomy
from attnscope.hf.intercepting.restoring import looking_at, with_gradients
from attnscope.hf.loading.in_memory import refuse_broken_weights
from attnscope.hf.loading.load import Loaded, Ready, Text, load, precision_and_place
from attnscope.hf.loading.one_input import reading_of
from attnscope.hf.loading.options import EvaluateOptions, Loading, Sampling, with_options
from attnscope.hf.loading.outputs import entries
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.tapping.capture import asked_with
from attnscope.hf.tapping.entrances import Entrance
from attnscope.stats.intervals import share_interval

ALWAYS = ("occlusion", "random")  # a strong reference and the floor
FAR = 1_000_003  # distance between the seeds of random orders; the seeds of other texts are much closer
FLOORS = 4  # random orders of each text, so that the floor is known more precisely than the methods


@with_options(EvaluateOptions)
@with_gradients()
def evaluate(
    model: str | Path | nn.Module | Loaded,
    corpus: Corpus | Text | Ready | None = None,
    *,
    methods: str | Iterable[str] = "default",
    labels: str | Sequence[Class] | None = None,
    replacement: str = "auto",
    loading: Loading = Loading(),
    sampling: Sampling = Sampling(samples=16, max_tokens=48),
    tokenizer: Tokenizer | None = None,
    progress: Advance = silent,
    **kwargs: Unpack[EvaluateOptions],
) -> Faithfulness:
    """Judge which explanation is faithful to a model.

    Occlusion and random numbers are always judged too, as a strong and a weak reference.

    Parameters
    ----------
    model : str, Path, torch.nn.Module or Loaded
        The model.
    corpus : str, Path, Corpus, iterable of texts, or ready batches, optional
        The texts. Default: the embedded corpus.
    methods : str or iterable of str
        Names of explanations, or of the sets "default", "slow" and "all".
    labels : str or sequence, optional
        The true classes, or the field of a .jsonl corpus that holds them. Then the probability of the true class is
        followed, on the beginning of every document.
    replacement : str
        What replaces a removed token. "auto": another token drawn from a language model's own distribution at that
        place, or the mask of a masked model; "neutral": the neutral vector of `explain`.
    loading, sampling : Loading, Sampling
        How the model is loaded and which texts are read.
    dtype, device, random_init, seed, allow_pickle, trust_remote_code : see `Loading`
        Fields of `loading` as keywords.
    samples, max_tokens, seed, bos : see `Sampling`
        Fields of `sampling` as keywords. Longer texts are cut at `max_tokens`.
    tokenizer : Tokenizer, optional
        The tokenizer of a model in memory.
    progress : callable
        Called as `progress(stage, done, total)`.

    Returns
    -------
    Faithfulness
        The methods, the most faithful first, with error bars.

    Raises
    ------
    RefusalError
        If no method fits the model, or its answer has probability 0 in every text.

    Examples
    --------
    >>> found = attnscope.evaluate("pocket", samples=2, max_tokens=16)
    """
    one_of(replacement, REPLACEMENTS, "replacement")
    seed, sampling = loading.seed, replace(sampling, batch_size=1, short=True)
    words = method_names(methods)
    chosen = chosen_methods([*words, *ALWAYS])
    progress("loading", 0, 0)
    loaded = load(model, loading=loading, tokenizer=tokenizer)
    refuse_broken_weights(loaded)
    true_classes: tuple[Class | None, ...]
    if labels is None:
        ready = texts_of(loaded, corpus, sampling)
        true_classes = (None,) * len(ready)
    else:
        ready, true_classes = labelled_batches(loaded, corpus, labels, sampling)
    found: dict[str, list[Perturbed | None]] = {method.card.name: [] for method in chosen}
    seconds = dict.fromkeys(found, 0.0)
    notes: dict[str, None] = dict.fromkeys(loaded.notes)
    known, tokens, right = None, [], []
    with looking_at(loaded.model), quiet():
        for number, (batch, truth) in enumerate(zip(ready, true_classes, strict=True)):
            progress("texts", number, len(ready))
            run_of_text = _run(loaded, batch.inputs, seed + number, known, truth)
            known = run_of_text.found, run_of_text.places
            notes |= dict.fromkeys(run_of_text.aim.notes)
            tokens.append(sum(len(vectors) for vectors in run_of_text.captured.embedding.values()))
            right.append(_says(run_of_text))
            for method in chosen:
                _judge(run_of_text, method, replacement, found, seconds, notes)
        progress("texts", len(ready), len(ready))
    kept = [method for method in chosen if len(found[method.card.name]) == len(ready)]
    if not kept:
        raise RefusalError(f"No method fits {loaded.class_name}: {next(iter(notes))}")
    counted = [n for n in range(len(ready)) if all(found[method.card.name][n] is not None for method in kept)]
    if not counted:
        raise RefusalError("The answer is 0 in every text before a token is removed: choose another corpus.")
    if len(counted) < len(ready):
        left_out = count(len(ready) - len(counted), "text")
        notes[f"{left_out} left out: the answer is 0 there before a token is removed."] = None
    documents = _documents(ready)
    documents = tuple(documents[n] for n in counted)
    own = not draws_tokens(run_of_text, replacement)
    judged = [
        replace(
            _judged(
                method,
                [made for n in counted if (made := found[method.card.name][n]) is not None],
                seconds[method.card.name] / len(ready),
                documents,
                run_of_text.aim.goal.kind == "logit",
            ),
            own_test=own and method.card.replaces,
        )
        for method in kept
    ]
    return Faithfulness(
        model=loaded.name,
        class_name=loaded.class_name,
        corpus=ready.name,
        texts=len(counted),
        tokens=sum(tokens[n] for n in counted),
        answer=_followed(run_of_text, labels is not None),
        baseline=replacement_words(run_of_text, replacement),
        dtype=str(precision_and_place(loaded.model)[0]).removeprefix("torch."),
        methods=tuple(sorted(judged, key=lambda each: -each.gap.mean)),
        documents=documents,
        accuracy=None
        if labels is None
        else Estimate(*share_interval(int(sum(right[n] for n in counted)), len(counted))),
        notes=tuple(notes),
        provenance=loaded.stamped(corpus={"name": ready.name, "sha256": ready.sha256}, seed=seed),
    )


def _run(
    loaded: Loaded,
    inputs: dict[str, Any],
    seed: int,
    known: tuple[Anatomy, tuple[Entrance, ...]] | None,
    truth: Class | None,
) -> Run:
    """Run the model on one text. `known` is the anatomy that was found with the first text."""
    read, notes = masking_one(loaded, reading_of(loaded, inputs), seed)

    def aimed_at(output: torch.Tensor) -> Aim:
        if truth is not None and entries(loaded, output).output != "classes":
            raise RefusalError(f"{loaded.class_name} has no classes to compare with labels: omit `labels=`.")
        goal = aim(loaded, read, output, Question(truth))
        return replace(goal, notes=(*goal.notes, *notes))

    return run_on(loaded, read, aimed_at, seed, known)


def _says(one: Run) -> bool:
    """Return whether the followed answer is the model's own answer."""
    return one.aim.goal.kind != "logit" or bool(one.aim.number(one.captured.output)[0] >= one.captured.output.max())


def _followed(one: Run, true_class: bool) -> str:
    if true_class:
        return "the probability of the true class"
    return "the probability of what the model says" if one.aim.goal.kind == "logit" else one.aim.goal.words


def _documents(ready: Batches) -> tuple[int, ...]:
    """Return the document of each text. Each text of a ready batch is its own document."""
    numbers = [batch.samples[0] for batch in ready]
    return tuple(ready.documents[n] for n in numbers) if ready.documents else tuple(range(len(numbers)))


def _judge(
    one: Run,
    method: Method,
    replacement: str,
    found: dict[str, list[Perturbed | None]],
    seconds: dict[str, float],
    notes: dict[str, None],
) -> None:
    name = method.card.name
    runs = [replace(one, seed=one.seed + turn * FAR) for turn in range(FLOORS if method.card.group == "floor" else 1)]
    begun = time.perf_counter()
    try:
        scores = [each.explained_by(method) for each in runs]
    except RefusalError as refusal:
        notes[f"{method.card.title} is left out: {refusal}"] = None
        return
    seconds[name] += (time.perf_counter() - begun) / len(runs)

    def ask(given: dict[str, torch.Tensor]) -> torch.Tensor:
        return asked_with(one.loaded.model, one.read.batch, one.places, one.aim.chance, given)

    embedding, free = one.captured.embedding, removable(one)
    try:
        drawn = replacing_vectors(one, replacement)
        several = max(len(scores), len(drawn))  # random orders take turns with the draws
        pairs = islice(zip(cycle(scores), cycle(drawn), strict=False), several)
        found[name].append(
            averaged([perturbed(ask, embedding, vectors, each, one.seed, free) for each, vectors in pairs])
        )
    except NoAnswerError:
        found[name].append(None)


def _judged(
    method: Method, found: list[Perturbed], seconds: float, documents: tuple[int, ...], probability: bool
) -> Judged:
    together = drawn_together(documents)

    def estimate(name: str) -> Estimate:
        return Estimate.of(tuple(float(getattr(one, name)) for one in found), together, (0.0, 1.0))

    estimates: dict[str, Any] = {name: estimate(name) for name in ESTIMATES if "gap" not in name}
    gaps = tuple(one.negative - one.positive for one in found)
    soft_gaps = tuple(one.soft_comprehensiveness - one.soft_sufficiency for one in found)
    log_gaps = tuple(one.log_gap for one in found) if probability else ()
    card, mean = method.card, averaged(found)
    return Judged(
        name=card.name,
        title=card.title,
        group=card.group,
        gap=Estimate.of(gaps, together, (-1.0, 1.0)),
        soft_gap=Estimate.of(soft_gaps, together, (-1.0, 1.0)),
        **estimates,
        seconds=seconds,
        gaps=gaps,
        soft_gaps=soft_gaps,
        falling=mean.falling,
        staying=mean.staying,
        log_gap=Estimate.of(log_gaps, together) if log_gaps else None,
        log_gaps=log_gaps,
    )
