"""treat(model, corpus) -> Treatment: diagnose, apply a remedy, train beside a control, and measure again.

    found = attnscope.treat("pocket")                                   # the remedy that the findings ask for
    found = attnscope.treat("pocket", remedy="gated_output", steps=300)
    found.loss, found.outcomes, found.sentences()

The corpus is split into training text and held-out text. A remedy that needs training is installed in a form that
does not change the model at first, and trained. The control is the same model, trained in the same way without the
remedy (the same parameters, batches, order, rate and random numbers), so the two only differ by the remedy. The model
is restored afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Unpack

from torch import nn

from attnscope.commands.scan.diagnose import Thresholds, diagnose
from attnscope.commands.treat.arms import Trial, measured_arm
from attnscope.commands.treat.halves import GivenLoss, SequenceLoss, halves
from attnscope.commands.treat.pruning import pruned
from attnscope.commands.treat.record import Treatment
from attnscope.commands.treat.remedies import (
    Asked,
    chosen_for,
    needs_training,
    refuse_first,
    refuse_what_does_not_fit,
    unused,
)
from attnscope.commands.treat.train import Recipe
from attnscope.commands.treat.trained import Kept, bos_first, trained, without_training
from attnscope.core.files import named_path
from attnscope.core.finding import AUTO, BOS, PRUNE, refuse_unknown_remedy
from attnscope.core.progress import Advance, silent
from attnscope.data.windows import Tokenizer
from attnscope.hf.exchanging.exchange import refuse_installed
from attnscope.hf.installed import refuse_taken
from attnscope.hf.intercepting.restoring import looking_at
from attnscope.hf.loading.in_memory import refuse_broken_weights
from attnscope.hf.loading.load import Loaded, Ready, Text, load
from attnscope.hf.loading.options import Loading, Sampling, SeededCorpusOptions, with_options
from attnscope.hf.loading.quiet import quiet

TOKENS = 128
STEPS = 200
RATE = 1e-4
SEQUENCES = 64  # sequences of training text, to choose settings of remedies without training


@with_options(SeededCorpusOptions)
def treat(
    model: str | Path | nn.Module | Loaded,
    corpus: Text | Ready | None = None,
    *,
    remedy: str = "auto",
    steps: int | None = None,
    rate: float | None = None,
    training: bool = True,
    train: Literal["added", "all"] | None = None,
    blocks: Sequence[int] | None = None,
    heads: int | None = None,
    keep_loss: float | None = None,
    settings: Mapping[str, Any] | None = None,
    loading: Loading = Loading(),
    sampling: Sampling = Sampling(samples=32, batch_size=4),
    loss: GivenLoss | None = None,
    thresholds: Thresholds | None = None,
    tokenizer: Tokenizer | None = None,
    save: str | Path | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: Advance = silent,
    **kwargs: Unpack[SeededCorpusOptions],
) -> Treatment:
    """Try a remedy on a model and measure what it does to findings and to held-out loss.

    Parameters
    ----------
    model : str, Path, torch.nn.Module or Loaded
        The model. It is not changed.
    corpus : str, Path, iterable of texts, or ready batches, optional
        Text to train on and to hold out. Default: the embedded corpus.
    remedy : str
        A variant (`attnscope.variants()`), "prune", "bos", or "auto": the findings choose.
    steps, rate : int, float, optional
        Training steps (default 200) and learning rate (default 1e-4).
    training : bool
        False: choose a remedy that needs no training, or measure the named one untrained.
    train : str, optional
        The trained parameters: "added" (default: those of the remedy and the projections of its blocks) or "all".
    blocks : sequence of int, optional
        The blocks that get the remedy. Default: all.
    heads, keep_loss : int, float, optional
        How many heads "prune" removes, or how many nats per token it may cost (default: 0.01).
    settings : mapping, optional
        Settings of the variant, or of "prune".
    loading, sampling : Loading, Sampling
        How the model is loaded and which sequences are held out.
    dtype, device, random_init, seed, allow_pickle, trust_remote_code : see `Loading`
        Fields of `loading` as keywords.
    samples, max_tokens, batch_size, seed, field, bos : see `Sampling`
        Fields of `sampling` as keywords. By default 32 sequences of at most 128 tokens are held out.
    loss : callable, optional
        `loss(model, inputs)` returns one number for each sequence, for models that are not language models.
    thresholds : Thresholds, optional
        Changed thresholds of findings.
    tokenizer : Tokenizer, optional
        The tokenizer of a model in memory.
    save : str or Path, optional
        A new folder for the treated model.
    checkpoint : str or Path, optional
        A folder for unfinished training, or for the losses that "prune" has measured.
    resume : bool
        Continue from `checkpoint`.
    progress : callable
        Called as `progress(stage, done, total)`.

    Returns
    -------
    Treatment
        The survey and the loss of each arm: before, control (if there was training) and treated.

    Raises
    ------
    RefusalError
        If the remedy is unknown or does not fit the model, options contradict each other, or the corpus is too small.

    Examples
    --------
    >>> found = attnscope.treat("pocket", remedy="prune", heads=1, samples=4, max_tokens=32)
    """
    refuse_unknown_remedy(remedy)
    asked = Asked(
        remedy=remedy,
        training=training,
        steps=steps,
        rate=rate,
        train=train,
        resume=resume,
        layers=None if blocks is None else tuple(blocks),
        heads=heads,
        keep_loss=keep_loss,
        settings=dict(settings or {}),
    )
    refuse_first(asked)
    if save is not None:
        refuse_taken(named_path(save))
    progress("loading", 0, 0)
    loaded = load(model, loading=loading, tokenizer=tokenizer)
    refuse_broken_weights(loaded)
    if remedy not in (AUTO, PRUNE, BOS):
        refuse_installed(loaded.model)
    sampling = replace(sampling, max_tokens=sampling.max_tokens or _room(loaded))
    limits = thresholds or Thresholds()
    recipe = Recipe(steps=STEPS if steps is None else steps, rate=RATE if rate is None else rate)
    trains = training and (remedy == AUTO or needs_training(remedy))
    with looking_at(loaded.model), quiet():
        refuse_what_does_not_fit(asked, loaded, loss)
        wanted = recipe.steps * sampling.batch_size if trains else max(SEQUENCES, 2 * (sampling.samples or 0))
        text = halves(loaded, corpus, sampling, training=wanted)
        sequence_loss = SequenceLoss(loaded, loading.seed, loss)
        before = measured_arm(sequence_loss, text.held_out, "the model as it is", progress)
        chosen = chosen_for(remedy, diagnose(before.survey, limits), training)
        chosen = replace(chosen, settings=dict(asked.settings), layers=asked.layers or ())
        trial = Trial(
            sequence_loss, text, sampling, chosen, before, limits, progress, None if save is None else named_path(save)
        )
        kept = None if checkpoint is None else Kept(named_path(checkpoint, "checkpoint"), resume)
        if chosen.name == PRUNE:
            result = pruned(trial, heads, keep_loss, kept)
        elif chosen.name == BOS:
            result = bos_first(trial)
        elif not training or not needs_training(chosen.name):
            result = without_training(trial)
        else:
            result = trained(trial, recipe, train == "all", kept)
    looks = {"before": result.before or before} | ({} if result.control is None else {"control": result.control})
    looks |= {"treated": result.treated}
    return Treatment(
        model=loaded.name,
        class_name=loaded.class_name,
        remedy=result.chosen,
        training=result.training,
        arms={name: look.arm for name, look in looks.items()},
        surveys={name: look.survey for name, look in looks.items()},
        by_text={name: look.by_text for name, look in looks.items()},
        thresholds=limits,
        start=result.start,
        texts=text.held_out.documents,
        pruning=result.pruning,
        notes=(
            *text.notes,
            *(text.of_training if result.training else unused(asked, chosen.name)),
            *result.notes,
        ),
        provenance=loaded.stamped(
            corpus={
                "name": text.name,
                "hash": text.sha256,
                "training_sequences": text.training.samples,
                "held_out_sequences": text.held_out.samples,
                "window": sampling.max_tokens,
            },
            seed=loading.seed,
        ),
    )


def _room(loaded: Loaded) -> int:
    return TOKENS if loaded.positions is None else min(TOKENS, loaded.positions)
