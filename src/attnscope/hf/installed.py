"""with installed(model, "gated_output") as treated: the model computes with another attention, and trains with it.

    with attnscope.installed(model, "gated_output", layers=[3, 4]) as treated:
        loss = treated.model(**batch).loss
        loss.backward()                        # treated.parameters() have gradients
        attnscope.save_treated(treated.model, "folder")

Restored on leaving, also after an exception: state_dict keys, outputs to the bit, registries, configuration.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from attnscope.core.errors import RefusalError
from attnscope.core.files import write_atomically
from attnscope.data.frame import AttentionFrame
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.anatomy.example import Batch, run
from attnscope.hf.exchanging.call import recipe_of
from attnscope.hf.exchanging.exchange import Treated, exchange
from attnscope.hf.exchanging.recipe import PREFIX, InstallRequest
from attnscope.hf.intercepting.restoring import evaluating, looking_at, without_gradients
from attnscope.hf.loading.hashing import hash_of_files
from attnscope.hf.loading.load import Loaded
from attnscope.hf.loading.quiet import quiet
from attnscope.hf.loading.treated import SIDECAR, WEIGHTS, Sidecar, as_text, refusing_config
from attnscope.hf.tapping.tap import Frame, tap
from attnscope.matrix.logits import largest_product


@contextmanager
def new_folder(place: Path) -> Iterator[Path]:
    """Yield a draft folder; it becomes `place`, which must be new or empty, if nothing fails."""
    refuse_taken(place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{place.name}.", suffix=".part", dir=place.parent))
    except OSError as error:
        raise RefusalError(f"{place} cannot be made ({error.strerror}): choose another place.") from error
    try:
        yield draft
        if place.exists():
            place.rmdir()
        draft.chmod(0o755)
        draft.rename(place)
    except (OSError, SafetensorError) as error:  # the second is what a full disk is to safetensors
        why = getattr(error, "strerror", None) or str(error)
        raise RefusalError(f"{place} could not be written ({why}): choose another place, or make room.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def refuse_taken(place: Path) -> None:
    """Refuse a folder that is not empty; also called before long work begins."""
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise RefusalError(f"{place} is there already and not an empty folder: choose another place.")


@contextmanager
def installed(
    model: nn.Module | Loaded,
    variant: str,
    *,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
    seed: int = 0,
    stack: str | None = None,
    example_inputs: Batch | None = None,
    **settings: Any,
) -> Iterator[Treated]:
    """Let a model compute with another attention inside a `with` block.

    On leaving, also by an exception, state_dict keys, outputs, registries and configuration are restored.

    Parameters
    ----------
    model : torch.nn.Module or Loaded
        The model.
    variant : str
        The name of the attention (`attnscope.variants()`).
    layers, heads : iterable of int, optional
        The blocks and heads that get it. Default: all.
    seed : int
        The seed of variants that draw numbers.
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
        If the variant is unknown or does not fit the model, or a variant is installed already.

    Examples
    --------
    >>> from attnscope.hf.loading.load import load
    >>> with attnscope.installed(load("pocket"), "gated_output") as treated:
    ...     added = list(treated.parameters())
    """
    module = model.model if isinstance(model, Loaded) else model
    with ExitStack() as changes:
        request = InstallRequest(variant, layers, heads, stack, seed, settings)
        yield exchange(changes, module, request, example_inputs)


def largest_logits(
    model: nn.Module | Loaded, batches: Iterable[Mapping[str, Any]], *, stack: str | None = None
) -> dict[int, Tensor]:
    """Return for every block its heads' largest logits between a real query and a key that it sees."""
    module = model.model if isinstance(model, Loaded) else model
    largest: dict[int, Tensor] = {}

    def receive(frame: Frame) -> None:
        if isinstance(frame, AttentionFrame) and frame.site == "self" and frame.stack == (stack or frame.stack):
            if frame.scores.pattern is not None:
                raise RefusalError(
                    "The logits of this model are not products of queries and keys: qk_clip does not fit it."
                )
            found = largest_product(frame.scores, frame.query_mask)
            before = largest.get(frame.layer)
            largest[frame.layer] = found if before is None else torch.maximum(before, found)

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
    """Write a model whose weights alone were changed into a new or empty folder; it loads everywhere."""
    saving = getattr(model, "save_pretrained", None)
    if not callable(saving):
        raise RefusalError(f"{type(model).__name__} is no transformers model: save its state_dict instead.")
    with new_folder(Path(folder)) as draft, quiet():
        saving(draft)
        if callable(getattr(tokenizer, "save_pretrained", None)):
            tokenizer.save_pretrained(draft)  # type: ignore[union-attr]
    return Path(folder)


# save_treated(model, folder): a model with another attention in it, as a folder that every command takes for MODEL.
#
# What is written, and why transformers alone refuses it, is said in `hf.loading.treated`. A change of weights alone
# (qk_clip) needs none of that: the folder is an ordinary one, which loads everywhere, with a sidecar that says what was
# done.

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
    recipe, place = recipe_of(model), Path(folder)
    if recipe is None:
        raise RefusalError(
            f"{type(model).__name__} has no variant installed: call save_treated inside "
            "`with attnscope.installed(...)`, or save_pretrained for a plain model."
        )
    if not callable(getattr(model, "save_pretrained", None)):
        raise RefusalError(f"{type(model).__name__} is no transformers model: save its state_dict instead.")
    with new_folder(place) as draft, quiet():
        _write(model, draft, tokenizer)
    return place


def _write(model: Any, folder: Path, tokenizer: Any | None) -> None:
    recipe = recipe_of(model)
    assert recipe is not None
    whole = model.state_dict()
    added = {name: tensor for name, tensor in whole.items() if f".{PREFIX}" in name}
    # transformers may save a model's weights under older names than it has in memory: ours are put beside them.
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
