"""Refusals: one sentence, with flags on the command line and with parameters in Python."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import attnscope
from attnscope.cli.help import in_flags
from attnscope.core.errors import RefusalError, at_least, one_of
from tests.command import attnscope as typed

SOURCE = Path(attnscope.__file__).parent
NOT_TWINS = {"out", "partial"}
"""Parameters of commands and of records."""


@pytest.mark.parametrize(
    ("raised", "printed"),
    [
        ("leave `against=` out.", "leave --against out."),
        ("pass `max_tokens=5` or more.", "pass --max-tokens 5 or more."),
        ("try `dtype='float64'`.", "try --dtype float64."),
        ("pass `random_init=True`, please", "pass --random-init, please"),
        ("leave them out with `bounds=False`, please", "leave them out with --no-bounds, please"),
        ("a sample of it (`survey=SURVEY`, `sample=N`).", "a sample of it (--from SURVEY, --sample N)."),
        ("made with `keep_text=False`)", "made with --no-text)"),
        ("run `attnscope scan ... --store` first", "run `attnscope scan ... --store` first"),
        ("a file called a--b.json, 3 -- 4, a=`b`", "a file called a--b.json, 3 -- 4, a=`b`"),
    ],
)
def test_commands_print_parameters_as_flags(raised, printed):
    assert in_flags(raised) == printed
    assert str(RefusalError(raised)) == RefusalError(raised).sentence == raised


def test_shared_checks_name_the_parameter():
    with pytest.raises(RefusalError, match=r"`dtype=` cannot be 'flot32': choose one of .* Did you mean") as refused:
        one_of("flot32", ("float32", "float64"), "dtype")
    assert refused.value.parameter == "dtype"
    one_of("float32", ("float32", "float64"), "dtype")
    for number in (0, float("nan")):
        with pytest.raises(RefusalError, match=r"`top=` cannot be .*: give 1 or more"):
            at_least(number, 1, "top")
    at_least(1, 1, "top")


def test_a_command_prints_flags_and_its_twin_raises_parameters():
    with pytest.raises(RefusalError, match="`generate=`") as refused:
        attnscope.explain("pocket", "a dog", target=" cat", generate=3)
    assert "--" not in str(refused.value)
    told = typed("explain", "pocket", "a dog", "--target", " cat", "--generate", "3")
    assert told.returncode == 2
    assert "--generate" in told.stderr
    assert "`generate=`" not in told.stderr


def test_every_parameter_in_a_refusal_is_a_parameter_of_a_twin():
    """Otherwise a reader would look for a parameter that does not exist."""
    twins = [getattr(attnscope, name) for name in attnscope.__all__]
    known = {
        name for twin in filter(inspect.isroutine, twins) for name in inspect.signature(twin).parameters
    } | NOT_TWINS
    words = [word for path in SOURCE.rglob("*.py") if "cli" not in path.parts for word in refused_words(path)]
    named = {name for word in words for name in re.findall(r"`([a-z_]+)=", word)}
    assert len(named) > 30
    assert named - known == set()
    assert [word for word in words if re.search(r"(?<![\w-])--[a-z]", re.sub("`[^`]*`", "", word))] == []


def refused_words(path: Path) -> list[str]:
    """Return the strings in the exceptions that a file raises."""
    raised = [
        node.exc for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Raise) and node.exc
    ]
    words = [node.value for call in raised for node in ast.walk(call) if isinstance(node, ast.Constant)]
    return [word for word in words if isinstance(word, str)]
