"""Where a command writes when nobody says where: `attnscope-NAME`, after the model, the pattern, or the question.

Everything about one model goes into one folder. Two models may share a name (/a/model and /b/model): then the second
one gets `attnscope-model-2`, and that is said, so that nothing is replaced by what it is not.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.core.errors import RefusalError
from attnscope.core.files import read_document
from attnscope.core.named_path import named_path

if TYPE_CHECKING:
    from attnscope.patterns.pattern import Pattern

LONGEST_STEM = 60  # of a name in that of a folder: with four bytes a letter, file systems still take it
OF_MODELS = (
    "survey.json",
    "survey.partial.json",
    "collapse.json",
    "paths.json",
    "task_paths.json",
    "view.json",
    "treatment.json",
)
HEAD = "head.safetensors"


def named_folder(name: str, ending: str = "") -> Path:
    """`attnscope-` and a name, in letters that every file system takes."""
    stem = re.sub(r"[^\w.-]+", "-", name)[:LONGEST_STEM].strip("-.")
    return Path(f"attnscope-{stem or 'model'}{ending}")


def model_folder(model: str, random_init: bool) -> Path:
    """The folder of a model; of one that is drawn at random, a folder of its own."""
    path = named_path(model, "model")
    name = model
    if path.exists():
        path = path.resolve()
        name = path.parent.name if path.name == "config.json" else path.name.removesuffix(".gguf").removesuffix(".json")
    usual = named_folder(name, "-random" if random_init else "")
    return _first_free(usual, lambda folder: _is_about(folder, model), "another model")


def pattern_folder(name: str, pattern: Pattern) -> Path:
    """The folder of a pattern."""
    return _first_free(named_folder(name), lambda folder: _holds_head_of(folder, pattern), "another pattern")


def _first_free(usual: Path, may_be_used: Callable[[Path], bool], what: str) -> Path:
    from attnscope.cli.streams import say

    for number in count(1):
        folder = usual if number == 1 else usual.with_name(f"{usual.name}-{number}")
        if may_be_used(folder):
            if folder != usual:
                say(f"{usual} holds what was found about {what} of that name: this goes to {folder}.")
            return folder
    raise AssertionError("numbers have no end")


def _is_about(folder: Path, model: str) -> bool:
    """Whether nothing in the folder is about another model. What cannot be read is nobody's."""
    for name in OF_MODELS:
        with contextlib.suppress(RefusalError, KeyError, TypeError, AttributeError):
            data = read_document(folder / name)
            source = data["provenance"]["model"]["source"]
            if isinstance(source, str) and _place(source) != _place(model):
                return False
    return True


def _place(model: str) -> str:
    """A path as the file system knows it, and a configuration by its folder; else the name itself."""
    try:
        path = named_path(model, "model")
        if not path.exists():
            return model
        path = path.resolve()
    except (RefusalError, OSError):
        return model
    return str(path.parent if path.name == "config.json" else path)


def _holds_head_of(folder: Path, pattern: Pattern) -> bool:
    """Whether the head in the folder, if there is one, is of the same pattern, entry for entry."""
    import numpy as np

    from attnscope.records.compiled import Compiled

    try:
        kept = Compiled.read(folder / HEAD).target
    except RefusalError:
        return True  # none, or one that nobody can use
    same_size = (kept.n, kept.n_keys, kept.causal) == (pattern.n, pattern.n_keys, pattern.causal)
    return same_size and all(
        np.array_equal(one, other)
        for one, other in (
            (kept.rows, pattern.rows),
            (kept.columns, pattern.columns),
            (kept.weights, pattern.weights),
        )
    )
