"""Refusals: one sentence, in flags for who types a command and in names of arguments for who calls a function."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import attnscope
from attnscope.core.errors import RefusalError, in_python, speaking_in_flags
from tests.command import attnscope as typed

SOURCE = Path(attnscope.__file__).parent
NOT_TWINS = {"out", "clear_cache", "gpus_per_worker", "keep_loss", "set"}
"""Asked of commands alone, or an argument of what a twin is given (`engine=ray(gpus_per_worker=1)`)."""


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("leave --against out.", "leave `against` out."),
        ("pass --max-tokens 5 or more.", "pass `max_tokens=5` or more."),
        ("try --dtype float64.", "try `dtype='float64'`."),
        ("ask for --draws 64.", "ask for `draws=64`."),
        ("leave them out with --no-bounds, please", "leave them out with `bounds=False`, please"),
        ("a sample of it (--from SURVEY --sample N).", "a sample of it (`survey=SURVEY` `sample=N`)."),
        ("made with --no-text)", "made with `keep_text=False`)"),
        ("run `attnscope scan ... --store` first", "run `attnscope scan ... --store` first"),
        ("a file called a--b.json, 3 -- 4", "a file called a--b.json, 3 -- 4"),
    ],
)
def test_flags_are_arguments_in_python(said, read):
    assert in_python(said) == read
    assert str(RefusalError(said)) == read
    with speaking_in_flags():
        assert str(RefusalError(said)) == said
    assert RefusalError(said).sentence == said


def test_a_command_and_its_twin_say_it_each_in_its_own_words():
    with pytest.raises(RefusalError, match="`generate`") as refused:
        attnscope.explain("pocket", "a dog", target=" cat", generate=3)
    assert "--" not in str(refused.value)
    told = typed("explain", "pocket", "a dog", "--target", " cat", "--generate", "3")
    assert told.returncode == 2
    assert "--generate" in told.stderr
    assert "`generate`" not in told.stderr


def test_every_flag_of_a_refusal_is_an_argument_of_a_twin():
    """Otherwise a reader of the Python sentence would look for an argument that is not there."""
    twins = [getattr(attnscope, name) for name in attnscope.__all__]
    known = {
        name for twin in filter(inspect.isroutine, twins) for name in inspect.signature(twin).parameters
    } | NOT_TWINS
    flags = {flag for path in SOURCE.rglob("*.py") if "cli" not in path.parts for flag in refused_flags(path)}
    assert len(flags) > 30
    assert {name for flag in flags for name in re.findall(r"`(\w+)", in_python(f"--{flag}"))} - known == set()


def refused_flags(path: Path) -> set[str]:
    raised = [
        node.exc for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Raise) and node.exc
    ]
    words = [one.value for call in raised for one in ast.walk(call) if isinstance(one, ast.Constant)]
    return {
        flag
        for word in words
        if isinstance(word, str)
        for flag in re.findall(r"(?<![\w`-])--([a-z][a-z-]*[a-z])", word)
    }
