"""Show help with complete descriptions and examples, and error messages without terminal escapes.

typer cuts descriptions to one line, and its error messages repeat the input with terminal escapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from attnscope.core.errors import RefusalError
from attnscope.core.words import clean

_PARAMETER = re.compile(r"`([a-z_]+)=([^`]*)`")
_RENAMED = {"survey": "from", "methods": "method", "settings": "set", "query": "from", "key": "to"}
UsageError: Any = typer.BadParameter.__base__  # typer has no public name for it

# Two examples per command. In this order they all work in an empty folder and without a network, except those of
# timeline, which need a run folder (docs/watch.md).
EXAMPLES: dict[str, tuple[str, str]] = {
    "scan": ("attnscope scan pocket", "attnscope scan pocket --random-init --samples 16"),
    "report": ("attnscope report attnscope-pocket", "attnscope report attnscope-pocket --charts charts"),
    "compare": (
        "attnscope compare attnscope-pocket-random attnscope-pocket",
        "attnscope compare attnscope-pocket --to atlas",
    ),
    "atlas": ("attnscope atlas", "attnscope atlas smollm2-135m --out smollm2.html"),
    "export": (
        "attnscope export attnscope-pocket --format csv",
        "attnscope export attnscope-pocket --out pocket.parquet",
    ),
    "merge": (
        "attnscope merge attnscope-pocket/survey.json --out merged",
        "attnscope merge attnscope-pocket merged --out twice",
    ),
    "measures": ("attnscope measures", "attnscope measures entropy"),
    "collapse": (
        "attnscope collapse pocket --samples 4 --max-tokens 48",
        "attnscope collapse bert-base --random-init --samples 2 --max-tokens 32",
    ),
    "paths": (
        'attnscope paths pocket "The dog chased its own tail and the dog"',
        'attnscope paths pocket "The dog chased its own tail and the dog" --head 1.3',
    ),
    "explain": (
        'attnscope explain pocket "The dog chased its own tail and the dog"',
        'attnscope explain pocket "Alice was not a bit" --method all --verbose',
    ),
    "view": (
        'attnscope view pocket "The dog chased its own tail and the dog"',
        "attnscope view pocket --from attnscope-pocket --block 3 --head 2",
    ),
    "compile": (
        "attnscope compile window -n 64 -k 4 --causal",
        'attnscope compile --model pocket --text "The dog saw the dog" --block 1',
    ),
    "capacity": ("attnscope capacity -n 256 -k 4", "attnscope capacity -n 64 -k 2 --dtype bfloat16 --verbose"),
    "variants": ("attnscope variants", "attnscope variants gated_output"),
    "treat": (
        "attnscope treat pocket --remedy gated_output --steps 20 --max-tokens 48",
        "attnscope treat pocket --remedy prune --heads 4 --samples 8 --max-tokens 48",
    ),
    "timeline": ("attnscope timeline run", "attnscope timeline run --live"),
    "reproduce": ("attnscope reproduce", "attnscope reproduce noci2022 --seeds 1"),
    "cite": ("attnscope cite entropy", "attnscope cite 2103.03404"),
    "doctor": ("attnscope doctor", "attnscope doctor --clear-cache"),
}

WHAT_IS_WRITTEN = (
    "What is written: scan, merge, collapse, paths, explain, view, treat, compile, capacity and reproduce write a "
    "record and its page to a folder, and print its path. The folder is the one given by --out, or attnscope-NAME, "
    "named after the model, the pattern or the paper. report, timeline and export write beside what they read. "
    "compare, atlas, measures, variants, cite and doctor write nothing unless asked."
)


class WholeHelpGroup(TyperGroup):
    """The group of all commands: complete descriptions, errors without terminal escapes, refusals that name flags."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, " ".join((one.help or "").split())) for name, one in self.commands.items()])

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with _clean_complaints():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _clean_complaints():  # errors of the commands as well
            try:
                return super().invoke(ctx)
            except RefusalError as refusal:
                raise RefusalError(in_flags(refusal.sentence), refusal.parameter) from refusal


def in_flags(sentence: str) -> str:
    """Replace Python parameters in a refusal by flags: `max_tokens=64` becomes --max-tokens 64, `against=`
    --against."""
    return _PARAMETER.sub(_flag, sentence)


def _flag(parameter: re.Match[str]) -> str:
    name, value = parameter[1], parameter[2].strip("'")
    if value == "False":
        return "--no-text" if name == "keep_text" else f"--no-{name}"
    flag = f"--{_RENAMED.get(name, name).replace('_', '-')}"
    return flag if value in ("", "True") else f"{flag} {value}"


@contextmanager
def _clean_complaints() -> Iterator[None]:
    try:
        yield
    except UsageError as complaint:
        if isinstance(complaint.message, str) and not _is_help(complaint):
            complaint.message = clean(complaint.message)
        raise


def _is_help(complaint: Any) -> bool:
    """Return whether the message is the help that typer prints for `attnscope` without arguments."""
    return type(complaint).__name__ == "NoArgsIsHelpError"


def write_examples(name: str, formatter: Any) -> None:
    """Write the examples of a command without wrapping, so that they can be copied."""
    with formatter.section("Examples"):
        for example in EXAMPLES[name]:
            formatter.write(f"{'':>{formatter.current_indent}}{example}\n")
