"""Paths and folders on the command line, checked before any work is done."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperArgument, TyperCommand

from attnscope.cli.help import write_examples
from attnscope.core.errors import RefusalError
from attnscope.core.files import named_path, read_all, read_document, refusal_words, shortened
from attnscope.core.names import files_named
from attnscope.core.words import replace_surrogates
from attnscope.data.formats import LONGEST_TEXT, TEXT_SUFFIXES, plain_text, text_of_file

if TYPE_CHECKING:
    from attnscope.heads.pattern import Pattern


class PathCheckingCommand(TyperCommand):
    """A command that checks its paths before it runs (not empty, no zero bytes, not too long), and shows examples.

    Its arguments are shown as MODEL, not as {model} <str>.
    """

    def __init__(self, *args: Any, **extra: Any) -> None:
        super().__init__(*args, **extra)
        for parameter in self.params:
            if isinstance(parameter, TyperArgument):
                parameter.metavar = parameter.metavar or str(parameter.name).upper()
                parameter.display_type_rich = lambda ctx: None  # type: ignore[method-assign]  # noqa: ARG005

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [re.sub(r"\{(\w+)\}", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        write_examples(str(self.name), formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        typed = list(args)
        rest: list[str] = super().parse_args(ctx, args)
        for parameter in self.params:
            value = ctx.params.get(str(parameter.name))
            several = isinstance(value, list | tuple) and all(isinstance(path, Path) for path in value)
            if not isinstance(value, Path) and not several:
                continue
            argument = isinstance(parameter, TyperArgument)
            name = str(parameter.metavar) if argument else max(parameter.opts, key=len)
            for path in value if several else (value,):
                # typer would use the current folder
                if path == Path() and _was_empty(typed, None if argument else name):
                    raise RefusalError(f"The value of {name} is empty: give a file name.")
            checked = [named_path(path, f"path of {name}") for path in (value if several else (value,))]
            ctx.params[str(parameter.name)] = checked if several else checked[0]
        return rest


def _was_empty(typed: list[str], option: str | None) -> bool:
    if option is None:
        return "" in typed
    return f"{option}=" in typed or any(pair == (option, "") for pair in pairwise(typed))


# Default folders are called `attnscope-NAME`, after the model, the pattern, or the sizes n and k. Everything about one
# model goes into one folder. If two models have one name (/a/model and /b/model), the second gets `attnscope-model-2`
# and a message.

LONGEST_STEM = 60  # letters of a name: even with four bytes each, file systems accept it
OF_MODELS = (
    "survey.json",
    "survey.partial.json",
    "collapse.json",
    "explanation.json",
    "paths.json",
    "task_paths.json",
    "logit_paths.json",
    "view.json",
    "treatment.json",
)
HEAD = "head.safetensors"


def named_folder(name: str, ending: str = "") -> Path:
    """Return `attnscope-NAME`, with letters that every file system accepts."""
    stem = re.sub(r"[^\w.-]+", "-", name)[:LONGEST_STEM].strip("-.")
    return Path(f"attnscope-{stem or 'model'}{ending}")


def model_folder(model: str, random_init: bool) -> Path:
    """Return the default folder of a model; random weights get a folder of their own."""
    path = named_path(model, "model")
    name = model
    if path.exists():
        path = path.resolve()
        name = path.parent.name if path.name == "config.json" else path.name.removesuffix(".gguf").removesuffix(".json")
    usual = named_folder(name, "-random" if random_init else "")
    return _first_free(usual, lambda folder: _is_about(folder, model), "another model")


def pattern_folder(name: str, pattern: Pattern) -> Path:
    """Return the default folder of a pattern."""
    return _first_free(named_folder(name), lambda folder: _holds_head_of(folder, pattern), "another pattern")


def _first_free(usual: Path, may_be_used: Callable[[Path], bool], what: str) -> Path:
    from attnscope.cli.output import say

    for number in count(1):
        folder = usual if number == 1 else usual.with_name(f"{usual.name}-{number}")
        if may_be_used(folder):
            if folder != usual:
                say(f"{usual} holds results for {what} of that name: results go to {folder} instead.")
            return folder
    raise AssertionError("numbers have no end")


def _is_about(folder: Path, model: str) -> bool:
    """Return whether nothing in the folder is about another model; unreadable files are ignored."""
    for name in OF_MODELS:
        with contextlib.suppress(RefusalError, KeyError, TypeError, AttributeError, OSError):
            files = files_named(folder, name)
            if not files:
                continue
            data = read_document(files[0])  # the others are about the same model
            source = data["provenance"]["model"]["source"]
            if isinstance(source, str) and _place(source) != _place(model):
                return False
    return True


def _place(model: str) -> str:
    """Return the resolved path of a model (of a configuration, its folder), or its name if it is not a path."""
    try:
        path = named_path(model, "model")
        if not path.exists():
            return model
        path = path.resolve()
    except (RefusalError, OSError):
        return model
    return str(path.parent if path.name == "config.json" else path)


def _holds_head_of(folder: Path, pattern: Pattern) -> bool:
    """Return whether the folder holds no head, or a head of an equal pattern."""
    import numpy as np

    from attnscope.commands.compile.record import Compiled

    try:
        kept = Compiled.load(folder / HEAD).target
    except RefusalError:
        return True  # missing or unreadable
    same_size = (kept.n, kept.n_keys, kept.causal) == (pattern.n, pattern.n_keys, pattern.causal)
    return same_size and all(
        np.array_equal(one, other)
        for one, other in (
            (kept.rows, pattern.rows),
            (kept.columns, pattern.columns),
            (kept.weights, pattern.weights),
        )
    )


LONGEST_PATH = 1024


def checked_file(path: Path, option: str, suffixes: tuple[str, ...]) -> None:
    """Refuse a file that cannot be written, or whose suffix is unknown."""
    if path.suffix.lower() not in suffixes:
        raise RefusalError(f"{option} makes {' or '.join(suffixes)} files, not '{path.name}': give it such a name.")
    if path.is_dir():
        raise RefusalError(f"'{path}' is a folder: give {option} the name of a file.")
    if path.exists() and not path.is_file():
        raise RefusalError(f"'{path}' is a device, a pipe or a socket: give {option} the name of a file.")
    if not path.parent.is_dir():
        raise RefusalError(f"There is no folder '{path.parent}': make it, or choose another path with {option}.")
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise RefusalError(f"'{path}' cannot be written: choose another path with {option}.")


def _is(kind: Callable[[Path], bool], path: Path) -> bool:
    """Apply a check of the file system to a text that may be a path. Return False if it cannot be a path."""
    try:
        return kind(path)
    except PermissionError as error:
        raise RefusalError(refusal_words(error, str(path), "text file")) from None
    except (OSError, ValueError):
        return False


def text_or_medium(text: str) -> str | Path:
    """Return the path of a picture or a sound if the text names one; else do as `text_or_file`."""
    from attnscope.data.medium import names_medium

    return Path(text) if names_medium(text) else text_or_file(text)


def text_or_file(text: str) -> str:
    """Return the text, the content of the file that it names, or standard input for `-`; refuse folders and missing
    files."""
    if text == "-":
        source = "Standard input"
        if sys.stdin is None:
            raise RefusalError(f"{source} is closed: pipe a text into it, or give the text itself.")
        return plain_text(read_all(sys.stdin.buffer, source, LONGEST_TEXT), source).removesuffix("\n")
    text = replace_surrogates(text)  # arguments that are not UTF-8
    if not text.strip() or len(text) >= LONGEST_PATH or "\n" in text or "\0" in text:
        return text
    path = Path(text)
    one_word = not any(character.isspace() for character in text)
    if one_word and _is(Path.is_symlink, path):
        path = named_path(text, "text file")  # refuses a link that leads back to itself
    if not _is(Path.exists, path) or (not one_word and not _is(Path.is_file, path)):
        if one_word and (path.suffix in TEXT_SUFFIXES or _is(Path.is_symlink, path)):
            raise RefusalError(
                f"There is no file '{shortened(text)}': give a text, or the name of a file that is there."
            )
        return text
    if path.is_dir():
        raise RefusalError(f"'{text}' is a folder: give a text, or a text file.")
    return text_of_file(path)
