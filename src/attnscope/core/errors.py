"""RefusalError: one sentence that says what is wrong and what to do.

Sentences name options as the command line does (`--max-tokens 64`). A caller from Python reads the same sentence with
names of arguments (`max_tokens=64`). A command runs inside `speaking_in_flags`, which keeps the flags.

torch is an extra. Without it records can be drawn, compared, merged and exported:

    pip install attnscope             report, compare, merge, timeline, export, cite, measures, variants
    pip install 'attnscope[torch]'    everything: brings torch and transformers

No list says what needs torch: the import fails, and `asking_for_torch` turns that into a refusal.
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
_OTHERWISE = {"from": "survey", "no-text": "keep_text=False"}  # flags whose argument has another name
EXTRA = "torch"
BROUGHT = ("torch", "transformers")
INSTALL = f"pip install 'attnscope[{EXTRA}]'"


class RefusalError(Exception):
    """Bad input or an impossible request. The command line prints its sentence and exits with code 2."""

    def __init__(self, sentence: str) -> None:
        super().__init__(" ".join(sentence.split()))
        self._in_flags = _in_flags.get()

    @property
    def sentence(self) -> str:
        """The sentence with flags, for sending a refusal to another process."""
        return str(self.args[0])

    def __str__(self) -> str:
        return self.sentence if self._in_flags else in_python(self.sentence)


@contextmanager
def speaking_in_flags() -> Iterator[None]:
    """Keep flags in the sentences of refusals raised inside."""
    before = _in_flags.set(True)
    try:
        yield
    finally:
        _in_flags.reset(before)


def in_python(sentence: str) -> str:
    """Replace flags by arguments: `dtype='float64'` for --dtype float64, `against` for --against alone."""
    return _FLAG.sub(_argument, sentence)


def _argument(match: re.Match[str]) -> str:
    flag, value = match[1], match[2]
    if flag is None:
        return match[0]  # a whole command stays as it is
    name = _OTHERWISE.get(flag) or (f"{flag[3:]}=False" if flag.startswith("no-") else flag).replace("-", "_")
    if value is None:
        return f"`{name}`"
    return f"`{name}={repr(value) if value.islower() else value}`"


def meant(word: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'pocket'?` for the end of a refusal, or nothing."""
    close = get_close_matches(word, sorted(set(known)), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'entropy'?` for the end of a refusal, or the whole list if no name is close."""
    names = sorted(known)
    close = get_close_matches(word, names, n=1, cutoff=0.5)
    return f" Did you mean '{close[0]}'?" if close else f" Known: {', '.join(names)}."


@contextmanager
def asking_for_torch() -> Iterator[None]:
    """Turn a failed import of torch or transformers into a refusal. Other failed imports pass through."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in BROUGHT or find_spec(name) is not None:  # installed but broken
            raise
        raise _refusal(name) from error


def refuse_without_torch() -> None:
    """Raise a refusal if torch is missing, before long work is announced."""
    for name in BROUGHT:
        if find_spec(name) is None:
            raise _refusal(name)


def torch_is_there() -> bool:
    """Return whether torch is installed, without importing it."""
    return all(find_spec(name) is not None for name in BROUGHT)


def _refusal(name: str) -> RefusalError:
    return RefusalError(f"This needs {name}, which is not installed: {INSTALL}.")
