"""Install another attention in a model temporarily, and save such models: `installed` and `save_treated`.

    with attnscope.installed(model, "gated_output", blocks=[3, 4]) as treated:
        loss = treated.model(**batch).loss
        loss.backward()                        # treated.parameters() have gradients
        attnscope.save_treated(treated.model, "folder")

Leaving the context, even by an exception, restores state_dict keys, registries, configuration and outputs, bit for bit.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.core.files import clear_abandoned, draft_of, make_folders, sync_folder, sync_tree, write_atomically
from attnscope.data.frame import AttentionFrame
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.anatomy.example import Batch, run
from attnscope.hf.exchanging.call import recipe_of
from attnscope.hf.exchanging.exchange import Treated, exchange
from attnscope.hf.exchanging.recipe import PREFIX, InstallRequest
from attnscope.hf.intercepting.restoring import evaluating, looking_at, without_gradients
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.model_files import hash_of_files
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.loading.treated import SIDECAR, WEIGHTS, Sidecar, as_text, refusing_config
from attnscope.hf.tapping.tap import Frame, tap
from attnscope.matrix.logits import largest_product


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder, and rename it to `target`, which must be new or empty, if nothing fails."""
    refuse_taken(target)
    try:
        make_folders(target.parent)
        clear_abandoned(target)
        draft = draft_of(target)
        draft.mkdir(mode=0o700)
    except OSError as error:
        raise RefusalError(f"{target} cannot be created ({error.strerror}): choose another folder.") from error
    try:
        yield draft
        draft.chmod(0o755)
        sync_tree(draft)
        draft.rename(target)  # also replaces an empty folder
        sync_folder(target.parent)
    except (OSError, SafetensorError) as error:  # safetensors raises the second on a full disk
        why = getattr(error, "strerror", None) or str(error)
        raise RefusalError(f"{target} could not be written ({why}): choose another folder, or free space.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def refuse_taken(folder: Path) -> None:
    """Refuse a folder that is not empty; also called before long work begins."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RefusalError(f"{folder} exists and is not an empty folder: choose another folder.")


@contextmanager
def installed(
    model: nn.Module | Loaded,
    variant: str,
    *,
    blocks: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
    seed: int = 0,
    stack: str | None = None,
    example_inputs: Batch | None = None,
    **settings: Any,
) -> Iterator[Treated]:
    """Let a model compute with another attention inside a `with` statement.

    On leaving, also by an exception, state_dict keys, outputs, registries and configuration are restored.

    Parameters
    ----------
    model : torch.nn.Module or Loaded
        The model.
    variant : str
        The name of the attention (`attnscope.variants()`).
    blocks, heads : iterable of int, optional
        The blocks and heads that get it. Default: all.
    seed : int
        The seed of variants that draw random numbers.
    stack : str, optional
        The stack, if the model has several.
    example_inputs : mapping, optional
        A small batch, for models whose inputs cannot be guessed.
    **settings
        Settings of the variant.

    Yields
    ------
    Treated
        The model, and the parameters that the variant added.

    Raises
    ------
    RefusalError
        If the variant is unknown, does not fit the model, or another variant is already installed.

    Examples
    --------
    >>> from attnscope.hf.loading.load import load
    >>> with attnscope.installed(load("pocket"), "gated_output") as treated:
    ...     added = list(treated.parameters())
    """
    module = model.model if isinstance(model, Loaded) else model
    with ExitStack() as changes:
        request = InstallRequest(variant, blocks, heads, stack, seed, settings)
        yield exchange(changes, module, request, example_inputs)


def largest_logits(
    model: nn.Module | Loaded, batches: Iterable[Mapping[str, Any]], *, stack: str | None = None
) -> dict[int, Tensor]:
    """Return the largest logit of every head, keyed by block, over queries that are not padding and their visible
    keys."""
    module = model.model if isinstance(model, Loaded) else model
    largest: dict[int, Tensor] = {}

    def receive(frame: Frame) -> None:
        if isinstance(frame, AttentionFrame) and frame.site == "self" and frame.stack == (stack or frame.stack):
            if frame.scores.pattern is not None:
                raise RefusalError(
                    "The logits of this model are not products of queries and keys, which qk_clip needs: choose "
                    "another variant."
                )
            products = largest_product(frame.scores, frame.query_mask)
            before = largest.get(frame.layer)
            largest[frame.layer] = products if before is None else torch.maximum(before, products)

    with looking_at(module), without_gradients(), evaluating(module):
        found = None
        for batch in batches:
            found = anatomy(module, batch) if found is None else found
            with tap(module, found, receive):
                run(module, batch)
    if not largest:
        raise RefusalError("No batch was given, so no logit was seen: give at least one batch.")
    return dict(sorted(largest.items()))


def save_plain(model: nn.Module, folder: str | Path, tokenizer: Any | None = None) -> Path:
    """Write a model of which only weights were changed into a new or empty folder, as transformers does."""
    saving = getattr(model, "save_pretrained", None)
    if not callable(saving):
        raise RefusalError(f"{type(model).__name__} is not a transformers model: save its state_dict instead.")
    with new_folder(Path(folder)) as draft, quiet():
        saving(draft)
        if callable(getattr(tokenizer, "save_pretrained", None)):
            tokenizer.save_pretrained(draft)  # type: ignore[union-attr]
    return Path(folder)


# `hf.loading.treated` describes the folder that save_treated writes, and why transformers alone refuses it. A variant
# that changes only weights (qk_clip) needs an ordinary folder, which loads everywhere, and a sidecar.

ORDINARY = "model.safetensors"


def save_treated(model: nn.Module | Loaded, folder: str | Path, tokenizer: Any | None = None) -> Path:
    """Write a treated model into a folder that every command accepts as a model.

    Parameters
    ----------
    model : torch.nn.Module or Loaded
        A transformers model with an installed variant.
    folder : str or Path
        A folder that is new or empty. It is written completely or not at all.
    tokenizer : optional
        The tokenizer to save with it.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    RefusalError
        If the model has no variant installed, is not a transformers model, or the folder is not empty.

    Examples
    --------
    >>> from attnscope.hf.loading.load import load
    >>> with attnscope.installed(load("pocket"), "gated_output") as treated:
    ...     folder = attnscope.save_treated(treated.model, "treated")
    """
    if isinstance(model, Loaded):
        model, tokenizer = model.model, model.tokenizer if tokenizer is None else tokenizer
    recipe, target = recipe_of(model), Path(folder)
    if recipe is None:
        raise RefusalError(
            f"{type(model).__name__} has no variant installed: call save_treated inside "
            "`with attnscope.installed(...)`, or save_pretrained for a plain model."
        )
    if not callable(getattr(model, "save_pretrained", None)):
        raise RefusalError(f"{type(model).__name__} is not a transformers model: save its state_dict instead.")
    with new_folder(target) as draft, quiet():
        _write(model, draft, tokenizer)
    return target


def _write(model: Any, folder: Path, tokenizer: Any | None) -> None:
    recipe = recipe_of(model)
    assert recipe is not None
    whole = model.state_dict()
    added = {name: tensor for name, tensor in whole.items() if f".{PREFIX}" in name}
    # transformers may save weights under older names than in memory, so add ours to the file that it writes.
    plain = {name: tensor for name, tensor in whole.items() if name not in added}
    model.save_pretrained(folder, state_dict=plain, max_shard_size="1000TB")
    if tokenizer is not None and callable(getattr(tokenizer, "save_pretrained", None)):
        tokenizer.save_pretrained(folder)
    weights_alone = recipe.variant == "qk_clip"
    name = ORDINARY if weights_alone else WEIGHTS
    if not weights_alone:
        stored = load_file(folder / ORDINARY)
        stored |= {key: tensor.detach().cpu().contiguous() for key, tensor in added.items()}
        save_file(stored, folder / name, {"format": "pt"})
        del stored
        (folder / ORDINARY).unlink()
        write_atomically(folder / "config.json", as_text(refusing_config(recipe.variant)))
    sidecar = Sidecar(
        recipe=recipe,
        config=None if weights_alone else {**model.config.to_dict(), "architectures": [type(model).__name__]},
        weights=name,
        sha256=hash_of_files([folder / name]),
        parameters={key: tuple(tensor.shape) for key, tensor in added.items()},
    )
    write_atomically(folder / SIDECAR, as_text(sidecar.to_json()))
