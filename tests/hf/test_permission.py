"""Code that comes with a model never runs unless it is trusted, whatever file names it and whatever is on standard
input.

Each kind of folder gets a module that writes a file when it is imported, and every command that reads a model runs on
it with "y" on standard input.
"""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from typer.testing import CliRunner

import attnscope
from attnscope.cli.main import app
from attnscope.core.errors import RefusalError
from attnscope.hf.loading.load import load
from attnscope.hf.loading.quiet import pretrained
from tests.specimens import save_specimen, write_gguf

EVIL = """
from pathlib import Path
Path({mark!r}).write_text("ran")
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
class Planted(PreTrainedTokenizerFast): pass
class PlantedConfig(LlamaConfig): model_type = "planted"
class PlantedModel(LlamaForCausalLM): config_class = PlantedConfig
def generate(*args, **kwargs): pass
"""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_specimen(tmp_path_factory.mktemp("good"))


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    return tmp_path / "mark"


def _edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | fields))


def _config(folder: Path) -> None:
    _edit(
        folder / "config.json",
        model_type="planted",
        auto_map={"AutoConfig": "evil.PlantedConfig", "AutoModelForCausalLM": "evil.PlantedModel"},
    )


def _known_config(folder: Path) -> None:
    _edit(folder / "config.json", auto_map={"AutoConfig": "evil.PlantedConfig", "AutoModel": "evil.PlantedModel"})


def _tokenizer(folder: Path) -> None:
    _edit(
        folder / "tokenizer_config.json",
        tokenizer_class="Planted",
        auto_map={"AutoTokenizer": ["evil.Planted", "evil.Planted"]},
    )


def _processor(folder: Path) -> None:
    for file in ("processor_config.json", "preprocessor_config.json"):
        _edit(folder / file, processor_class="Planted", auto_map={"AutoProcessor": "evil.Planted"})


def _generation(folder: Path) -> None:
    _edit(folder / "generation_config.json", custom_generate="custom_generate", auto_map={"generate": "evil.generate"})
    (folder / "custom_generate").mkdir()
    shutil.copy(folder / "evil.py", folder / "custom_generate" / "generate.py")


def _gguf(folder: Path) -> None:
    for file in folder.glob("*.json"):
        file.unlink()
    (folder / "model.safetensors").unlink()
    write_gguf(folder / "tiny.gguf")
    _edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Planted", "evil.Planted"]})


def _gguf_with_config(folder: Path) -> None:
    _gguf(folder)
    _config(folder)


PLANTS = [_config, _known_config, _tokenizer, _processor, _generation, _gguf, _gguf_with_config]
COMMANDS = {
    "scan": lambda model, out: ["scan", model, "-", "--samples", "1", "--max-tokens", "8", "--out", out],
    "collapse": lambda model, out: ["collapse", model, "-", "--samples", "1", "--max-tokens", "8", "--out", out],
    "paths": lambda model, out: ["paths", model, "a b a b", "--out", out],
    "compile": lambda model, out: ["compile", "--model", model, "--text", "a b a b", "--out", f"{out}.safetensors"],
}


def _planted(good: Path, tmp_path: Path, mark: Path, plant: Callable[[Path], None]) -> str:
    folder = Path(shutil.copytree(good, tmp_path / "planted"))
    (folder / "evil.py").write_text(EVIL.format(mark=str(mark)))
    plant(folder)
    return str(next(iter(folder.glob("*.gguf")), folder))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__.strip("_"))
def test_planted_code_does_not_run(
    command: str, plant: Callable[[Path], None], good: Path, tmp_path: Path, mark: Path
) -> None:
    model = _planted(good, tmp_path, mark, plant)
    done = CliRunner().invoke(app, COMMANDS[command](model, str(tmp_path / "out")), input="y\n" * 200)
    assert not mark.exists(), done.output
    assert "[y/N]" not in done.output
    assert done.exit_code == 0 or isinstance(done.exception, RefusalError), done.exception


@pytest.mark.parametrize("plant", [_config, _tokenizer, _gguf], ids=lambda plant: plant.__name__.strip("_"))
def test_planted_code_runs_if_it_is_trusted(
    plant: Callable[[Path], None], good: Path, tmp_path: Path, mark: Path
) -> None:
    """Check that the planted code of the tests above works."""
    model = _planted(good, tmp_path, mark, plant)
    with pytest.raises(RefusalError, match="`trust_remote_code=True`"):
        load(model)
    load(model, trust_remote_code=True)
    assert mark.read_text() == "ran"


def test_attention_from_a_repository_is_code_too(good: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(good, tmp_path / "planted"))
    _edit(folder / "config.json", attn_implementation="someone/kernel")
    with pytest.raises(RefusalError, match="'someone/kernel'"):
        load(folder)
    _edit(folder / "config.json", attn_implementation="eager", text_config={"_attn_implementation": "some/kernel"})
    with pytest.raises(RefusalError, match="'some/kernel'"):
        load(folder, random_init=True)


def test_transformers_never_prompts() -> None:
    class Asks:
        @staticmethod
        def from_pretrained(folder: Path, **options: Any) -> None:
            transformers.dynamic_module_utils.resolve_trust_remote_code(None, str(folder), False, True)

    with pytest.raises(RefusalError, match="`trust_remote_code=True`"):
        pretrained(Asks, Path("folder"), trust_remote_code=False)
    assert transformers.dynamic_module_utils.TIME_OUT_REMOTE_CODE > 0


def test_from_pretrained_is_called_in_one_file() -> None:
    """Only one file calls `from_pretrained`, so that no call can omit trust_remote_code."""
    package = Path(attnscope.__file__).parent
    calls = {
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "from_pretrained"
    }
    assert calls == {"hf/loading/quiet.py"}
