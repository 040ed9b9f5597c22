"""Model folders whose settings or tokenizer are broken: one sentence that names the folder, never a traceback."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from attnscope.core.errors import RefusalError
from attnscope.hf.loading.load import load
from tests.specimens import save_specimen

DEEP = "[" * 100_000


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_specimen(tmp_path_factory.mktemp("good") / "llama")


def changed(good: Path, to: Path, **settings: Any) -> Path:
    folder = Path(shutil.copytree(good, to / "llama"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    return folder


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(RefusalError) as caught:
        load(folder, **options)
    return str(caught.value)


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"torch_dtype": "floof"}, "floof"),
    ({"dtype": "floof"}, "floof"),
    ({"dtype": "nn"}, "nn"),  # an attribute of torch that is not a dtype
    ({"dtype": 5}, "5"),
    ({"dtype": ["float32"]}, "float32"),
    ({"dtype": {"": "floof"}}, "floof"),
    ({"text_config": {"dtype": "floof"}}, "text_config.dtype"),
    ({"num_attention_heads": 0}, "num_attention_heads = 0"),
    ({"num_key_value_heads": 0}, "num_key_value_heads = 0"),
    ({"head_dim": 0}, "head_dim = 0"),
    ({"hidden_size": 0}, "hidden_size = 0"),
    ({"hidden_size": -4}, "hidden_size = -4"),
    ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
    ({"num_hidden_layers": -1}, "num_hidden_layers = -1"),
]


@pytest.mark.parametrize("random_init", [False, True])
@pytest.mark.parametrize(("settings", "says"), IMPOSSIBLE, ids=str)
def test_impossible_settings_are_refused(
    good: Path, tmp_path: Path, settings: dict[str, Any], says: str, random_init: bool
) -> None:
    sentence = refusal(changed(good, tmp_path, **settings), random_init=random_init)
    assert "llama" in sentence
    assert says in sentence


STUMBLES: list[dict[str, Any]] = [
    {"text_config": 5},
    {"pad_token_id": 99999},
    {"id2label": 5},
    {"auto_map": 5},
    {"architectures": 5},
    {"hidden_act": "nope"},
    {"rope_parameters": "x"},
    {"to_dict": 5},
    {"hidden_size": 2**70},
    {"vocab_size": 10**18},
    {"vocab_size": -1},
]


@pytest.mark.parametrize("random_init", [False, True])
@pytest.mark.parametrize("settings", STUMBLES, ids=str)
def test_settings_that_crash_transformers_are_refused(
    good: Path, tmp_path: Path, settings: dict[str, Any], random_init: bool
) -> None:
    assert "llama" in refusal(changed(good, tmp_path, **settings), random_init=random_init)


PACKINGS: list[Any] = ["x", ["x"], 5, {}, {"bits": 4}, {"quant_method": 5}]


@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_quantisation_config_without_content_is_refused(good: Path, tmp_path: Path, packing: Any) -> None:
    assert "quant_method" in refusal(changed(good, tmp_path, quantization_config=packing))


@pytest.mark.parametrize("packing", [packing for packing in PACKINGS if isinstance(packing, dict)], ids=str)
def test_an_architecture_does_not_depend_on_the_packing(good: Path, tmp_path: Path, packing: Any) -> None:
    assert load(changed(good, tmp_path, quantization_config=packing), random_init=True).parameters > 0


def broken_tokenizer(good: Path, **parts: Any) -> str:
    return json.dumps({**json.loads((good / "tokenizer.json").read_text()), **parts})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", "5"),
        ("tokenizer_config.json", "null"),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", DEEP),
        ("tokenizer_config.json", '{"tokenizer_class": 5}'),
        ("tokenizer_config.json", '{"added_tokens_decoder": 5}'),
        ("special_tokens_map.json", "[]"),
        ("added_tokens.json", "[]"),
        ("tokenizer.json", "{}"),
        ("tokenizer.json", ""),
        ("tokenizer.json", DEEP),
    ],
)
def test_malformed_tokenizer_files_are_refused(good: Path, tmp_path: Path, name: str, content: str) -> None:
    folder = changed(good, tmp_path)
    (folder / name).write_text(content)
    assert "llama cannot be loaded" in refusal(folder)


@pytest.mark.parametrize(
    "parts",
    [
        {"model": {"type": "Floof"}},
        {"model": 5},
        {"model": {"type": "BPE", "vocab": [], "merges": []}},
        {"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}},
        {"pre_tokenizer": {"type": "x"}},
        {"added_tokens": [{"id": 0}]},
        {"post_processor": {"type": "TemplateProcessing"}},
    ],
    ids=str,
)
def test_a_tokenizer_of_unknown_parts(good: Path, tmp_path: Path, parts: dict[str, Any]) -> None:
    folder = changed(good, tmp_path)
    (folder / "tokenizer.json").write_text(broken_tokenizer(good, **parts))
    assert "llama cannot be loaded" in refusal(folder)


@pytest.mark.parametrize(
    "content",
    [
        DEEP,
        '{"weight_map":' + DEEP,
        "{}",
        "[]",
        '{"weight_map": []}',
        '{"weight_map": {}}',
        '{"weight_map": {"a": 5}}',
        '{"weight_map": {"a": ["x"]}}',
        '{"weight_map": {"a": "x\\u0000y"}}',
        '{"weight_map": {"a": "%s"}}' % ("x" * 300),
        '{"weight_map": {"a": "config.json"}}',
    ],
    ids=lambda content: content[:40],
)
def test_malformed_index_of_weights_is_refused(good: Path, tmp_path: Path, content: str) -> None:
    folder = changed(good, tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(content)
    assert str(folder) in refusal(folder)
