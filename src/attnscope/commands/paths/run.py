"""`attnscope.paths`: the exact contribution of paths of each length to a prediction.

Attention patterns, denominators of norms and gates of activations are frozen at their values on one text
(`hf.editing.freeze`, which refuses if the frozen model gives other numbers). The output is then a sum over paths
(arXiv:2103.03404). Sums over all paths of each length, values of heads and the largest single paths are computed
without visiting the paths one by one (`docs/paths.md` has the proofs).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack, cast

import torch
from torch import nn

from attnscope.commands.paths.effects import measured_effects
from attnscope.commands.paths.reading import (
    LARGE,
    Aim,
    PathSizes,
    aim,
    fitting,
    refuse_too_many_tokens,
    refusing_what_is_not_followed,
)
from attnscope.commands.paths.record import PathReport, Players
from attnscope.commands.paths.recording import chain_rows, length_rows, nested
from attnscope.commands.paths.reference import REPLACEMENTS
from attnscope.commands.paths.removals import Predicting, predictions
from attnscope.core.errors import RefusalError, at_least, nearest, one_of
from attnscope.core.progress import Advance, silent
from attnscope.data.windows import Tokenizer
from attnscope.hf.anatomy.anatomy import Anatomy, anatomy
from attnscope.hf.anatomy.example import LONG, cut_down, of_tokens_only
from attnscope.hf.editing.freeze import freeze
from attnscope.hf.intercepting.restoring import looking_at, with_gradients
from attnscope.hf.loading.in_memory import refuse_broken_weights
from attnscope.hf.loading.load import Loaded, load, precision_and_place, refusing_what_does_not_run, why_it_does_not_run
from attnscope.hf.loading.one_text import Reading, reading
from attnscope.hf.loading.options import Loading, Sampling, TextOptions, with_options
from attnscope.hf.loading.quiet import quiet
from attnscope.pathways.energy import outer_routes, path_energy
from attnscope.pathways.heads import head_table
from attnscope.pathways.lengths import Lengths, by_length, rank_view
from attnscope.pathways.network import Edges, Network, number_of_paths
from attnscope.pathways.shapley import shapley
from attnscope.pathways.targets import network_read_by
from attnscope.pathways.top_paths import top_paths

PRECISIONS = ("float64", "float32")
SIGNS_AT_ONCE = 4  # draws in memory together: each holds a stream for every length
MOST_DRAWS = 100_000
MOST_PATHS = 10_000
WIDEST_SEARCH = 32  # least number of suffixes that the search for single paths keeps


@with_options(TextOptions)
@with_gradients()
def paths(
    model: str | Path | nn.Module | Loaded,
    text: str | tuple[str, str] | Mapping[str, Any],
    *,
    target: str | int | None = None,
    against: str | int | None = None,
    position: int | None = None,
    top: int = 10,
    mlp: bool = True,
    draws: int = 16,
    effects: str | None = "mean",
    reference: str | Path | Iterable[str] | None = None,
    stack: str | None = None,
    loading: Loading = Loading(dtype="float64"),
    sampling: Sampling = Sampling(),
    tokenizer: Tokenizer | None = None,
    progress: Advance = silent,
    **kwargs: Unpack[TextOptions],
) -> PathReport:
    """Decompose one number of a model's output on a text into a sum over paths.

    Parameters
    ----------
    model : str, Path, torch.nn.Module or Loaded
        The model. A model in memory is copied into `dtype`.
    text : str, tuple of two str, or mapping
        A text, a pair of source and target (encoder-decoders), or a ready batch of one sequence.
    target : str or int, optional
        A token, a class, "residual_norm" or "stream_norm". Default: what the model finds most likely.
    against : str or int, optional
        A second token or class: decompose the difference of the two logits.
    position : int, optional
        The token whose output is decomposed. Default: the last one, or the first mask.
    top : int
        How many of the largest single paths to list.
    mlp : bool
        Also count MLPs in the length of a path, and compute Shapley values of MLPs as well as of heads.
    draws : int
        Number of random sign draws that estimate the energy of each length: the sum of squared contributions of its
        paths. 0 skips the energies and is faster.
    effects : str or None
        Also take heads out of the model itself, everything after them responding: their outputs are replaced by their
        "mean" over other texts, by those on other texts ("resample") or by "zero". None skips it, and then the headline
        names no head.
    reference : str, Path or iterable of str, optional
        Other texts for "mean" and "resample": a file, a folder, or texts in a list. Give texts of the kind that the
        model reads. Default: the embedded book, or, if the model does not read English, what it writes itself
        (causal models) or the tokens of the text in other orders; a note says which.
    stack : str, optional
        The stack to decompose. Default: the last.
    loading, sampling : Loading, Sampling
        How the model is loaded and how the text begins.
    dtype, device, random_init, seed, allow_pickle, trust_remote_code, bos : see `Loading` and `Sampling`
        Fields of both as keywords. `dtype` is "float64" or "float32".
    tokenizer : Tokenizer, optional
        The tokenizer of a model in memory.
    progress : callable
        Called as `progress(stage, done, total)`.

    Returns
    -------
    PathReport
        Sums over all paths of each length, values of heads, and the largest paths.

    Raises
    ------
    RefusalError
        If the network with its patterns, norms and gates held fixed does not reproduce the model's output, if it does
        not fit into memory, or if an option is invalid.

    Examples
    --------
    >>> report = attnscope.paths("pocket", "The dog chased its own tail", top=3)
    """
    _check(top, draws, loading.dtype)
    if effects is not None:
        one_of(effects, REPLACEMENTS, "effects")
    if reference is not None and effects not in ("mean", "resample"):
        raise RefusalError(
            "`reference=` gives the texts whose outputs replace a head: pass `effects='mean'` or 'resample', or leave "
            "it out.",
            "reference",
        )
    seed, bos = loading.seed, sampling.bos
    progress("loading", 0, 0)
    loaded = load(model, loading=loading, tokenizer=tokenizer)
    refuse_broken_weights(loaded)
    read = reading(loaded, text, bos)
    narrow = _why_not(loaded, read) if loading.dtype == "float64" else None
    if narrow is not None:
        loaded = load(model, loading=replace(loading, dtype="float32"), tokenizer=tokenizer)
        read = reading(loaded, text, bos)
    with looking_at(loaded.model), quiet(), fitting(len(read.words)):
        progress("freezing", 0, 0)
        structure = _anatomy(loaded, read, stack)
        tokens, suffixes = len(read.words), max(top, WIDEST_SEARCH)
        signs = SIGNS_AT_ONCE if draws else 0
        sizes = PathSizes.of(loaded, structure, stack, tokens=tokens, suffixes=suffixes, signs=signs)
        refuse_too_many_tokens(sizes, precision_and_place(loaded.model)[1])
        if sizes.bytes > LARGE:
            progress(f"freezing (about {sizes.bytes / 1e9:,.1f} GB of memory will be needed)", 0, 0)
        with refusing_what_is_not_followed(loaded):
            network = freeze(loaded.model, read.batch, structure, stack)
        goal = aim(loaded, network, read, target, against, position)
        progress("lengths", 0, 0)
        table = head_table(network, goal.target, progress)
        sorted_paths, graded = Lengths(table.stream, network), table.sources
        view = rank_view(sorted_paths)
        sight = Predicting.of(goal, read, network, causal=loaded.kind in ("causal", "encoder-decoder"))
        predicted = predictions(sorted_paths, table.lengths.tolist(), table.constant, sight, progress)
        blocks = table.edges
        edges = tuple(by_length(network, goal.target, sources=False).lengths.tolist()) if mlp else None
        players = None if edges is None else _players(network, goal, blocks, edges[0], progress)
        progress("energies", 0, 0)
        outer = outer_routes(network_read_by(goal.target, network), goal.target, suffixes, blocks)
        energy = path_energy(network, draws, seed, goal.target, SIGNS_AT_ONCE, outer, sums=False) if draws else None
        taken_out, more_notes = measured_effects(
            loaded, read, network, table, goal, structure, stack, effects, seed, progress, reference
        )
        chains = top_paths(network, goal.target, top, suffixes, seed=seed, advance=progress, outer=outer)
    rows = length_rows(
        graded, number_of_paths(network, blocks), view if len(read.words) != 1 else None, energy, predicted
    )
    return PathReport(
        model=loaded.name,
        class_name=loaded.class_name,
        stack=stack or structure.stacks[-1].name,
        text=text if isinstance(text, str) else text[0] if isinstance(text, tuple) else "",
        tokens=read.words,
        target=goal.target.name,
        output=goal.entries.output,
        position=goal.position,
        dtype=str(network.streams[0].dtype).removeprefix("torch."),
        value=float(goal.target(network_read_by(goal.target, network).output)),
        total=float(graded.sum()),
        linear_difference=network.apart,
        lengths=rows,
        whole_residual=float(view.whole[0]) if len(read.words) != 1 else None,
        head_lengths=nested(table.contributions),
        head_values=nested(table.shapley),
        edges=edges,
        players=players,
        top=chain_rows(chains, read),
        top_exact=chains.exact,
        top_missed=chains.missed,
        draws=draws,
        notes=(*goal.notes, *_notes(structure, read, stack, narrow), *more_notes),
        provenance=loaded.stamped(
            tokens=len(read.words), **read.bos_note(), **({"seed": seed} if loading.random_init else {})
        ),
        goal=goal.goal,
        effects=taken_out,
    )


def _check(top: int, draws: int, dtype: str) -> None:
    at_least(top, 1, "top")
    if draws == 1 or draws < 0:
        raise RefusalError(f"Energies need 2 draws or more, not {draws}: pass `draws=0` to skip them.")
    if draws > MOST_DRAWS:
        raise RefusalError(
            f"{draws:,} draws would run the model {draws:,} times, and {MOST_DRAWS:,} give energies within half a "
            f"percent: pass `draws={MOST_DRAWS}` or fewer."
        )
    if top > MOST_PATHS:
        raise RefusalError(
            f"A list of {top:,} paths would need {top:,} streams in memory: pass `top={MOST_PATHS}` or fewer."
        )
    one_of(dtype, PRECISIONS, "dtype")


def _why_not(loaded: Loaded, read: Reading) -> str | None:
    """Return why the model does not run, or None. Of a long text, a few tokens that run are enough."""
    long = len(read.words) > LONG and of_tokens_only(read.batch)
    if long and why_it_does_not_run(loaded, cast(dict[str, Any], cut_down(loaded.model, read.batch))) is None:
        return None
    return why_it_does_not_run(loaded, read.batch)


def _anatomy(loaded: Loaded, read: Reading, stack: str | None) -> Anatomy:
    with refusing_what_does_not_run(loaded), torch.no_grad():
        structure = anatomy(loaded.model, read.batch)
    if not structure.stacks:
        raise RefusalError(
            f"{structure.model_class} has no blocks that pass a stream of tokens on, and paths need such blocks: "
            "choose another model."
        )
    if stack is not None and structure.stack(stack) is None:
        raise RefusalError(f"There is no stack called '{stack}'.{nearest(stack, [s.name for s in structure.stacks])}")
    return structure


def _players(network: Network, goal: Aim, blocks: tuple[Edges, ...], nothing: float, progress: Advance) -> Players:
    """Return the values of heads and MLPs; `nothing` is the contribution of paths through neither."""
    found = shapley(network, goal.target, "heads and mlps", advance=progress, blocks=blocks, nothing=nothing)
    heads, mlps = ([values.tolist() for values in kind] for kind in (found.heads, found.mlps))
    return Players(tuple(map(tuple, heads)), tuple(map(tuple, mlps)), found.nothing, found.everything)


def _notes(structure: Anatomy, read: Reading, stack: str | None, narrow: str | None) -> tuple[str, ...]:
    notes = []
    if narrow is not None:
        notes.append(f"This model's own code does not run in float64 ({narrow}): numbers are float32.")
    if len(read.words) == 1:
        notes.append(
            "The text is a single token, which every head can only attend to: there are no relative residuals and no "
            "loss."
        )
    if len(structure.stacks) > 1 and stack is None:
        others = ", ".join(s.name for s in structure.stacks[:-1])
        notes.append(
            f"Paths begin at the input of the {structure.stacks[-1].name}, and input from other stacks counts as a "
            f"constant: choose another stack ({others}) with `stack=`."
        )
    return (*notes, *read.notes)
