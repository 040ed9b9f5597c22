"""With torch.compile the module inside is measured, a note says so, and the caller's model stays compiled.

Nothing is compiled here: torch compiles at the first call of a wrapped module, which must not happen. (The backend is
"eager" because the default one takes long to import.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import attnscope
from attnscope.core.errors import RefusalError
from attnscope.hf.anatomy.anatomy import anatomy
from attnscope.hf.intercepting.wrappers import NOTE, uncompiled
from attnscope.hf.tapping.observed import observed_pattern
from tests.specimens import byte_tokenizer, tiny_llama

TEXT = "the dog and the fox"


def wrapped(model: nn.Module) -> nn.Module:
    made = torch.compile(model, backend="eager")
    assert isinstance(made, nn.Module)
    return made


def wrapped_inside(model: Any) -> nn.Module:
    model.model = wrapped(model.model)
    model.model._orig_mod.layers[1] = wrapped(model.model._orig_mod.layers[1])
    return model


def in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


def layer_in_place(model: Any) -> nn.Module:
    model.model.layers[0].compile(backend="eager")
    return model


def forward_only(model: Any) -> nn.Module:
    model.forward = torch.compile(model.forward, backend="eager")
    return model


WAYS = [wrapped, wrapped_inside, in_place, layer_in_place, forward_only]


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(*args: object, **options: object) -> None:
        raise AssertionError("the compiler ran")

    monkeypatch.setattr("torch._dynamo.convert_frame.ConvertFrame.__call__", compiled)


@pytest.mark.parametrize("way", WAYS)
def test_a_scan_gives_the_survey_of_the_module_inside(way: Callable[[nn.Module], nn.Module]) -> None:
    options: dict[str, Any] = {"tokenizer": byte_tokenizer(), "samples": 2, "max_tokens": 16, "measures": "entropy"}
    given = way(tiny_llama())
    modules, states = list(given.modules()), [dict(vars(m)) for m in given.modules()]
    seen, plain = attnscope.scan(given, [TEXT], **options), attnscope.scan(tiny_llama(), [TEXT], **options)
    assert seen.cells == plain.cells
    assert seen.provenance["model"]["compiled"] == NOTE
    assert "compiled" not in plain.provenance["model"]
    names = ("class", "hash", "name", "parameters")
    assert [seen.provenance["model"][n] for n in names] == [plain.provenance["model"][n] for n in names]
    assert list(given.modules()) == modules
    assert [dict(vars(m)) for m in modules] == states  # still compiled, and nothing else changed


@pytest.mark.parametrize("way", [wrapped, wrapped_inside, in_place])
def test_compiled_models_work_with_paths_collapse_and_compile(way: Callable[[nn.Module], nn.Module]) -> None:
    words = byte_tokenizer()
    given = way(tiny_llama())
    report = attnscope.paths(given, TEXT, tokenizer=words, draws=0, top=1, mlp=False)
    plain = attnscope.paths(tiny_llama(), TEXT, tokenizer=words, draws=0, top=1, mlp=False)
    assert report.value == plain.value
    assert report.provenance["model"]["compiled"] == NOTE
    fallen = attnscope.collapse(given, [TEXT], tokenizer=words, samples=1, max_tokens=8)
    assert fallen.provenance["model"]["compiled"] == NOTE
    ask: dict[str, Any] = {"block": 1, "head": 0, "k": 2, "tokenizer": words}
    seen, expected = (observed_pattern(model, TEXT, **ask).dense() for model in (given, tiny_llama()))
    assert (seen == expected).all()


def test_weights_are_shared_and_not_copied() -> None:
    given = wrapped_inside(tiny_llama())
    inner = uncompiled(given)
    shared = {name.replace("_orig_mod.", ""): p for name, p in given.named_parameters()}
    assert {name: id(p) for name, p in inner.named_parameters()} == {name: id(p) for name, p in shared.items()}
    assert uncompiled(plain := tiny_llama()) is plain


def test_compiled_forward_that_is_not_a_method_is_refused() -> None:
    model: Any = tiny_llama()
    model.forward = torch.compile(lambda **batch: None, backend="eager")
    with pytest.raises(RefusalError, match=r"^The forward of LlamaForCausalLM is a compiled function.*\.$"):
        attnscope.scan(model, [TEXT], tokenizer=byte_tokenizer())


def test_measuring_the_compiled_wrapper_itself_is_refused() -> None:
    with pytest.raises(RefusalError, match="compiled code cannot be observed: give the model from before"):
        anatomy(wrapped(tiny_llama()))
