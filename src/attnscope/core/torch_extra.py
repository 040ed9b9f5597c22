"""torch is an extra: records are drawn, compared, merged and exported without it, and all that runs a model needs it.

    pip install attnscope             report, compare, merge, timeline, export, cite, measures, variants
    pip install 'attnscope[torch]'    everything: brings torch and transformers

What needs torch imports it, and nothing keeps a list of such things: where the import fails, whoever asked is told in
one sentence how to get it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from attnscope.core.errors import RefusalError

EXTRA = "torch"
BROUGHT = ("torch", "transformers")
INSTALL = f"pip install 'attnscope[{EXTRA}]'"


@contextmanager
def asking_for_torch() -> Iterator[None]:
    """Makes a refusal of the failed import of what the extra brings. Every other failed import stays what it is."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in BROUGHT or find_spec(name) is not None:  # there, and broken inside: that is told as it is
            raise
        raise _refusal(name) from error


def refuse_without_torch() -> None:
    """For who would begin to talk about long work otherwise."""
    for name in BROUGHT:
        if find_spec(name) is None:
            raise _refusal(name)


def torch_is_there() -> bool:
    """By what is installed: nothing is imported."""
    return all(find_spec(name) is not None for name in BROUGHT)


def _refusal(name: str) -> RefusalError:
    return RefusalError(f"This needs {name}, which is not installed: {INSTALL}.")
