"""A command and its Python twin have the same defaults."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import attnscope
from attnscope.cli.main import app
from attnscope.core.errors import RefusalError
from attnscope.hf.loading.options import Loading, Sampling
from tests.command import attnscope as typed

# Options that only commands have: where to write, what to print, and when to fail a build.
WRITTEN_AND_SAID = {"as_json", "chart", "charts", "fail_on", "out", "published", "save", "threshold", "verbose"}
# Options from which a command makes the pattern that its twin gets, and options with other names or types in the twin.
OTHERWISE = {
    "scan": {"view"},  # another twin: attnscope.view
    "compile": {"pattern", "n", "k", "model", "text", "block", "head"},
    "compare": {"to"},  # another twin: attnscope.place
    "atlas": {"name"},  # another twin: attnscope.place
    "reproduce": {"paper"},
    "variants": {"remedies"},  # another table
    "treat": {"setting"},  # NAME=VALUE, where the twin takes a mapping
    "capacity": {"n", "k", "model", "corpus", "texts", "max_tokens"},  # another twin: attnscope.head_widths
    "explain": {"evaluate", "labels", "replacement", "samples", "max_tokens"},  # another twin: attnscope.evaluate
    "paths": {"removal", "resume", "head", "query", "key"},  # other twins: attnscope.task_paths and logit_paths
    "view": {"beside"},  # the twin takes a pair
    "doctor": {"clear_cache"},  # not a look but an act
    "timeline": {"runs", "live", "refresh", "once"},  # any number of runs; the live screen has no twin
    "report": {"keep_text"},  # an option of the page of a survey, which the twin hands on
}
RENAMED = {("capacity", "no_cache"): "no_use_cache"}
COMMANDS = {
    command.callback.__name__: command.callback
    for command in app.registered_commands
    if command.callback is not None and command.callback.__name__ in attnscope.__all__  # a room may have the same name
}


def default_of(function: Any, name: str) -> Any:
    value = inspect.signature(function).parameters[name].default
    return tuple(value.split(",")) if isinstance(value, str) and "," in value else value


def test_every_command_has_a_known_twin() -> None:
    assert {"scan", "collapse", "paths", "compile", "capacity", "reproduce", "report", "compare"} <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_defaults_equal_those_of_the_twin(name: str) -> None:
    command, twin = COMMANDS[name], getattr(attnscope, name)
    theirs = inspect.signature(twin).parameters
    compared = 0
    for option in inspect.signature(command).parameters:
        if option in WRITTEN_AND_SAID | OTHERWISE.get(name, set()):
            continue
        called = RENAMED.get((name, option), option)
        if called.startswith("no_") and called not in theirs:  # a flag that switches off what the twin calls by name
            positive = called.removeprefix("no_")
            assert positive in theirs, f"--{option} of {name} is unknown to attnscope.{name}"
            assert default_of(command, option) is not default_of(twin, positive), f"{name}: {option}"
        else:
            assert called in theirs, f"--{option} of {name} is unknown to attnscope.{name}"
            mine, other = default_of(command, option), default_of(twin, called)
            required = inspect.Parameter.empty
            assert (mine is required) == (other is required), f"{name}: {option}"
            assert mine == other, f"{name}: {option} is {mine} on the command line and {other} in Python"
        compared += 1
    assert compared or name in ("compare", "report", "doctor", "atlas")


def test_defaults_of_evaluate_equal_those_of_its_twin() -> None:
    theirs = inspect.signature(attnscope.evaluate).parameters
    for option in ("methods", "labels", "dtype", "device", "bos", "seed", "random_init"):
        assert default_of(COMMANDS["explain"], option) == theirs[option].default, option
    for option in (
        "samples",
        "max_tokens",
    ):  # the default is None, so that they are refused without --evaluate; the help shows the real default
        assert default_of(COMMANDS["explain"], option) is None, option
        assert f"Default: {theirs[option].default}." in " ".join(typed("explain", "--help").stdout.split())


def test_defaults_of_head_widths_equal_those_of_its_twin() -> None:
    theirs = inspect.signature(attnscope.head_widths).parameters
    for option in ("corpus", "texts", "max_tokens", "dtype", "ratio_error", "leak"):
        assert default_of(COMMANDS["capacity"], option) == theirs[option].default, option


def test_defaults_of_task_paths_equal_those_of_its_twin() -> None:
    theirs = inspect.signature(attnscope.task_paths).parameters
    for option in ("removal", "resume", "dtype", "device", "stack", "bos", "seed", "random_init"):
        assert default_of(COMMANDS["paths"], option) == theirs[option].default, option


def test_options_of_loading_and_sampling_may_be_given_whole_or_as_keywords() -> None:
    whole: dict[str, Any] = {"loading": Loading(seed=3), "sampling": Sampling(samples=2, max_tokens=16, seed=3)}
    words: dict[str, Any] = {"samples": 2, "max_tokens": 16, "seed": 3}
    a, b = (attnscope.scan("pocket", measures="entropy", **one) for one in (whole, words))
    assert a.to_json()["cells"] == b.to_json()["cells"]
    mixed = attnscope.scan("pocket", measures="entropy", max_tokens=16, **{**whole, "sampling": Sampling(samples=2)})
    assert mixed.provenance["corpus"]["sequences"] == 2


def test_an_unknown_keyword_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(RefusalError, match=r"scan\(\) has no parameter 'max_token'. Did you mean 'max_tokens'\?"):
        attnscope.scan("pocket", max_token=8)  # type: ignore[call-arg]
    with pytest.raises(RefusalError, match="has no parameter 'samples'"):
        attnscope.explain("pocket", "A text.", samples=8)  # type: ignore[call-arg]
    with pytest.raises(RefusalError, match="loading= takes a Loading, not a dict"):
        attnscope.scan("pocket", loading={"dtype": "float64"})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["scan", "collapse", "treat", "explain", "evaluate", "view", "paths", "operator"])
def test_keywords_are_typed_in_the_signature(name: str) -> None:
    parameters = inspect.signature(getattr(attnscope, name)).parameters
    assert parameters["dtype"].annotation is str
    assert {"loading", "sampling", "device", "bos", "random_init"} <= parameters.keys()
    assert "kwargs" not in parameters
