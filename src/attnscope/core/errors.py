"""The one error a person should ever see: a sentence that says what is wrong and what to do.

Sentences name options as the command line does (`--max-tokens 64`). Who called from Python reads the same sentence with
names of arguments (`max_tokens=64`): a command says once that flags are meant, and what is raised while it runs speaks
in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from importlib.util import find_spec

_in_flags: ContextVar[bool] = ContextVar("in_flags", default=False)

_VALUE = r"\d[\d.]*(?<!\.)|[A-Z]+|auto|cpu|cuda|env|none|ray|yes|no|all|float64|float32|float16|bfloat16"
_FLAG = re.compile(rf"`attnscope [^`]*`|(?<![\w-])--([a-z][a-z-]*[a-z])(?: ({_VALUE})(?![\w-]))?")
_OTHERWISE = {"from": "survey", "no-text": "keep_text=False"}
"""Flags whose argument has another name."""


class RefusalError(Exception):
    """Bad input or an impossible request. The command line prints its one sentence and exits with code 2."""

    def __init__(self, sentence: str) -> None:
        super().__init__(" ".join(sentence.split()))
        self._in_flags = _in_flags.get()

    @property
    def sentence(self) -> str:
        """With options as flags, whoever asks: how a refusal travels between processes."""
        return str(self.args[0])

    def __str__(self) -> str:
        return self.sentence if self._in_flags else in_python(self.sentence)


@contextmanager
def speaking_in_flags() -> Iterator[None]:
    """For as long as a command runs."""
    before = _in_flags.set(True)
    try:
        yield
    finally:
        _in_flags.reset(before)


def in_python(sentence: str) -> str:
    """A sentence for who writes Python: `dtype='float64'` for --dtype float64, `against` for --against alone."""
    return _FLAG.sub(_argument, sentence)


def _argument(found: re.Match[str]) -> str:
    flag, value = found[1], found[2]
    if flag is None:
        return found[0]  # a command to type stays one
    name = _OTHERWISE.get(flag) or (f"{flag[3:]}=False" if flag.startswith("no-") else flag).replace("-", "_")
    if value is None:
        return f"`{name}`"
    return f"`{name}={repr(value) if value.islower() else value}`"


def meant(word: str, known: Iterable[str]) -> str:
    """The tail of a refusal where nobody wants the whole list: ` Did you mean 'pocket'?`, or nothing."""
    close = get_close_matches(word, sorted(set(known)), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""


def nearest(word: str, known: Iterable[str]) -> str:
    """The tail of a refusal: ` Did you mean 'entropy'?`, or the whole list where nothing is close."""
    names = sorted(known)
    close = get_close_matches(word, names, n=1, cutoff=0.5)
    return f" Did you mean '{close[0]}'?" if close else f" Known: {', '.join(names)}."


# torch is an extra: records are drawn, compared, merged and exported without it, and all that runs a model needs it.
#
#     pip install attnscope             report, compare, merge, timeline, export, cite, measures, variants
#     pip install 'attnscope[torch]'    everything: brings torch and transformers
#
# What needs torch imports it, and nothing keeps a list of such things: where the import fails, whoever asked is told in
# one sentence how to get it.

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
