"""RefusalError, the one error that a user should see: a sentence that says what is wrong and what to do.

Sentences name parameters as Python does, in backticks and with an equals sign: "pass `max_tokens=64` or less",
"leave `against=` out". The command line prints these as flags (`attnscope.cli.help.in_flags`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec


class RefusalError(Exception):
    """Raised for bad input or an impossible request. The command line prints its one sentence and exits with code 2.

    `parameter` names the parameter that was refused, if there is one.
    """

    def __init__(self, sentence: str, parameter: str | None = None) -> None:
        super().__init__(" ".join(sentence.split()))
        self.parameter = parameter

    @property
    def sentence(self) -> str:
        return str(self.args[0])


def one_of(value: object, known: Iterable[str], parameter: str) -> None:
    """Refuse a value that is not among the known ones."""
    names = tuple(known)
    if value not in names:
        listed = ", ".join(names)
        near = did_you_mean(str(value), names)
        raise RefusalError(f"`{parameter}=` cannot be '{value}': choose one of {listed}.{near}", parameter)


def at_least(value: int | float, low: int | float, parameter: str) -> None:
    """Refuse a number below `low`, and NaN."""
    if not value >= low:
        raise RefusalError(f"`{parameter}=` cannot be {value:g}: give {low:g} or more.", parameter)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'pocket'?` to append to a refusal, or "" if nothing is close."""
    close = get_close_matches(word, sorted(set(known)), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'entropy'?` to append to a refusal, or the list of all names if nothing is close."""
    names = sorted(known)
    close = get_close_matches(word, names, n=1, cutoff=0.5)
    return f" Did you mean '{close[0]}'?" if close else f" Known: {', '.join(names)}."


# torch is an optional dependency. Drawing, comparing, merging and exporting records works without it; running a
# model needs it.
#
#     pip install attnscope             report, compare, merge, timeline, export, cite, measures, variants
#     pip install 'attnscope[torch]'    everything: brings torch and transformers
# There is no list of the commands that need torch: if its import fails, one sentence says how to install it.

EXTRA = "torch"
BROUGHT = ("torch", "transformers")
INSTALL = f"pip install 'attnscope[{EXTRA}]'"


@contextmanager
def refuse_missing_torch() -> Iterator[None]:
    """Turn a failed import of torch or transformers into a refusal; let other import errors pass."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in BROUGHT or find_spec(name) is not None:  # installed but broken
            raise
        raise _refusal(name) from error


def refuse_without_torch() -> None:
    """Refuse if torch or transformers is not installed, before a command announces long work."""
    for name in BROUGHT:
        if find_spec(name) is None:
            raise _refusal(name)


def torch_is_installed() -> bool:
    """Return whether torch and transformers are installed, without importing them."""
    return all(find_spec(name) is not None for name in BROUGHT)


def _refusal(name: str) -> RefusalError:
    return RefusalError(f"This needs {name}, which is not installed: {INSTALL}.")
