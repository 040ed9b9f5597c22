"""A probe leaves a model as it was: every module's mode, and the modules themselves.

Some models rebuild themselves when they run (BigBird exchanges its block-sparse attention for a full one on short
inputs, and keeps it). What a probe finds then is not the model that was given, so it is put back and refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from attnscope.core.errors import RefusalError
from attnscope.hf.seeing.restoring import Restoring


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; every module's own mode again outside."""
    with Restoring() as changes:
        changes.evaluation(model)
        yield


@contextmanager
def without_cache(model: nn.Module) -> Iterator[None]:
    """Inside, no configuration of the model asks for a cache of keys and values, which would outlive a run."""
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    with Restoring() as changes:
        for config in configs.values():
            if getattr(config, "use_cache", False) is True:
                changes.callback(setattr, config, "use_cache", True)
                config.use_cache = False
        yield


class ExchangedModulesError(RefusalError):
    """A model exchanged modules of its own while it ran."""


@contextmanager
def keeping_its_modules(model: nn.Module) -> Iterator[None]:
    """Refuses models that exchange modules of their own inside the context, after putting the old ones back."""
    paths = {module: path for path, module in model.named_modules()}
    children = {module: dict(module._modules) for module in paths}
    failure: Exception | None = None
    with Restoring() as changes:
        changes.parts(model)
        try:
            yield
        except Exception as error:
            failure = error
        exchanged = [path for module, path in paths.items() if dict(module._modules) != children[module]]
    if exchanged:
        raise ExchangedModulesError(
            f"{type(model).__name__} exchanges modules of its own in {exchanged[0] or 'itself'} when it runs on a few "
            "tokens, so what a probe finds is not what you gave: give it sequences that are long enough for its sparse "
            "attention, or configure it for full attention (attention_type='original_full' for BigBird)."
        ) from failure
    if failure is not None:
        raise failure
