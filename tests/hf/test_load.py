"""Loading from every kind of source, and the refusal for every kind of failure."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from attnscope.core.errors import RefusalError
from attnscope.data.corpus import Corpus
from attnscope.hf.loading import classes as devices
from attnscope.hf.loading import sources
from attnscope.hf.loading.feed import feed
from attnscope.hf.loading.load import load
from attnscope.hf.loading.options import Loading, Sampling
from attnscope.hf.loading.quiet import quiet
from tests.specimens import write_gguf

TINY = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
LLAMA = transformers.LlamaConfig(**TINY, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
BERT = transformers.BertConfig(**TINY, num_attention_heads=4, max_position_embeddings=64)
T5 = transformers.T5Config(
    vocab_size=40, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4, decoder_start_token_id=0
)


def refusal(source: str | Path, **options: Any) -> str:
    with pytest.raises(RefusalError) as caught:
        load(source, **options)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def save(model: Any, folder: Path) -> Path:
    with quiet():
        model.eval().save_pretrained(folder)
    return folder


def put_tokenizer(folder: Path) -> None:
    words = {"[BOS]": 0, "[UNK]": 1, **{letter: 2 + i for i, letter in enumerate("abcdefghijklmnopqrst")}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(single="[BOS] $A", special_tokens=[("[BOS]", 0)])
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    return save(transformers.LlamaForCausalLM(LLAMA), tmp_path / "llama")


def edit_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def test_a_folder(llama: Path) -> None:
    put_tokenizer(llama)
    loaded = load(llama)
    assert isinstance(loaded.model, transformers.LlamaForCausalLM)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert (loaded.name, loaded.class_name, loaded.kind) == ("llama", "LlamaForCausalLM", "causal")
    assert (loaded.positions, loaded.vocab_size, loaded.decoder_start) == (64, 40, None)
    assert loaded.provenance["files_sha256"] == hashlib.sha256((llama / "model.safetensors").read_bytes()).hexdigest()
    assert loaded.parameters == sum(t.numel() for t in load_file(llama / "model.safetensors").values())
    assert loaded.tokenizer is not None
    assert loaded.tokenizer("ab")["input_ids"] == [0, 2, 3]
    assert loaded.provenance["weights"] == "safetensors"
    assert loaded.provenance["random_parameters"] == []
    assert json.loads(json.dumps(loaded.provenance)) == loaded.provenance
    torch.manual_seed(3)
    expected = transformers.LlamaForCausalLM(LLAMA).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.model.state_dict().items())


def test_a_folder_without_a_tokenizer_has_none(llama: Path) -> None:
    assert load(str(llama)).tokenizer is None


def test_hash_depends_on_the_configuration_but_not_on_the_precision(llama: Path) -> None:
    first = load(llama)
    assert load(llama, dtype="bfloat16").sha256 == first.sha256
    edit_config(llama, lambda config: config.update(transformers_version="0", _name_or_path="elsewhere"))
    assert load(llama).sha256 == first.sha256
    edit_config(llama, lambda config: config.update(rope_parameters={"rope_type": "default", "rope_theta": 500.0}))
    changed = load(llama)
    assert changed.sha256 != first.sha256
    assert changed.provenance["files_sha256"] == first.provenance["files_sha256"]


def test_shards_are_hashed_together(tmp_path: Path) -> None:
    with quiet():
        transformers.LlamaForCausalLM(LLAMA).save_pretrained(tmp_path / "m", max_shard_size="5KB")
    shards = sorted((tmp_path / "m").glob("model-*.safetensors"))
    assert len(shards) > 1
    loaded = load(tmp_path / "m")
    assert loaded.provenance["files"] == [shard.name for shard in shards]
    tensors = load_file(shards[-1])
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, shards[-1], metadata={"format": "pt"})
    assert load(tmp_path / "m").sha256 != loaded.sha256
    shards[0].unlink()
    assert f"1 of {len(shards)} weight files are missing" in refusal(tmp_path / "m")


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "float16"])
def test_dtype(llama: Path, name: str) -> None:
    loaded = load(llama, dtype=name)
    assert {p.dtype for p in loaded.model.parameters()} == {getattr(torch, name)}
    assert loaded.provenance["dtype"] == name
    assert {p.dtype for p in load(llama, dtype=name, random_init=True).model.parameters()} == {getattr(torch, name)}


def test_dtype_auto_is_the_stored_one(tmp_path: Path) -> None:
    folder = save(transformers.LlamaForCausalLM(LLAMA).to(torch.bfloat16), tmp_path / "m")
    assert load(folder, dtype="auto").provenance["dtype"] == "bfloat16"
    assert load(folder).provenance["dtype"] == "float32"


def test_random_weights_come_from_the_seed_and_leave_the_generator_alone(llama: Path) -> None:
    state = torch.get_rng_state()
    one, again, other = (load(llama, random_init=True, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    tensors = one.model.state_dict()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in again.model.state_dict().items())
    drawn = one.model.get_parameter("lm_head.weight")
    assert not torch.equal(other.model.get_parameter("lm_head.weight"), drawn)
    assert one.sha256 == again.sha256 != other.sha256
    assert one.name == "llama (random weights, seed 1)"
    assert one.provenance["weights"] == "random"
    assert not torch.equal(load(llama).model.get_parameter("lm_head.weight"), drawn)


def test_a_bare_configuration(llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "wide.json"
    shutil.copy(llama / "config.json", file)
    loaded = load(file, random_init=True)
    assert (loaded.name, loaded.class_name) == ("wide (random weights, seed 0)", "LlamaForCausalLM")
    assert "pass `random_init=True`" in refusal(file)
    edit_config(llama, lambda config: config.pop("architectures"))
    assert load(llama / "config.json", random_init=True).class_name == "LlamaForCausalLM"


SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 16}
IMAGE = {**SMALL, "image_size": 28, "patch_size": 14}
ROBERTA = transformers.RobertaConfig(**TINY, num_attention_heads=4, max_position_embeddings=66)
MPNET = transformers.MPNetConfig(**TINY, num_attention_heads=4, max_position_embeddings=66)
XLNET = transformers.XLNetConfig(vocab_size=40, d_model=16, n_layer=1, n_head=4, d_inner=16)
MARIAN = transformers.MarianConfig(
    vocab_size=40,
    d_model=16,
    max_position_embeddings=64,
    pad_token_id=39,
    decoder_start_token_id=39,
    **{f"{side}_layers": 1 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 16 for side in ("encoder", "decoder")},
)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (BERT, ("BertForMaskedLM", "masked", 64, None)),
        (ROBERTA, ("RobertaForMaskedLM", "masked", 64, None)),
        (MPNET, ("MPNetForMaskedLM", "masked", 64, None)),
        (T5, ("T5ForConditionalGeneration", "encoder-decoder", None, 0)),
        (MARIAN, ("MarianMTModel", "encoder-decoder", 64, 39)),
        (XLNET, ("XLNetLMHeadModel", "causal", None, None)),
        (transformers.ViTConfig(**IMAGE), ("ViTModel", "vision", None, None)),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_class_kind_and_limits_from_the_configuration_alone(
    tmp_path: Path, config: Any, expected: tuple[Any, ...]
) -> None:
    config.save_pretrained(tmp_path)
    loaded = load(tmp_path, random_init=True)
    assert (loaded.class_name, loaded.kind, loaded.positions, loaded.decoder_start) == expected
    if loaded.positions is not None:  # the limit is exact: a sequence that long runs
        ids = torch.full((1, loaded.positions), 5)
        loaded.model(input_ids=ids, **({"decoder_input_ids": ids} if loaded.decoder_start is not None else {}))


def test_a_head_without_weights_is_left_off(tmp_path: Path) -> None:
    folder = save(transformers.BertModel(BERT), tmp_path / "bert")
    edit_config(folder, lambda config: config.update(architectures=["BertForMaskedLM"]))
    loaded = load(folder)
    assert loaded.class_name == "BertModel"
    assert loaded.provenance["classes_without_weights"] == ["BertForMaskedLM"]
    assert loaded.provenance["random_parameters"] == []


def test_pooler_without_weights_is_in_the_provenance(tmp_path: Path) -> None:
    folder = save(transformers.BertForMaskedLM(BERT), tmp_path / "bert")
    edit_config(folder, lambda config: config.update(architectures=["BertModel"]))
    loaded = load(folder)
    assert loaded.class_name == "BertModel"
    assert loaded.provenance["random_parameters"] == ["pooler.dense.bias", "pooler.dense.weight"]
    assert any(name.startswith("cls.") for name in loaded.provenance["unused_weights"])


def test_an_unknown_architecture_of_a_known_type_takes_what_the_weights_hold(tmp_path: Path) -> None:
    folder = save(transformers.BertForMaskedLM(BERT), tmp_path / "bert")
    edit_config(folder, lambda config: config.update(architectures=["SomeoneElsesBert"]))
    assert load(folder).class_name == "BertForMaskedLM"


def test_missing_body_weights_are_refused(llama: Path) -> None:
    tensors = load_file(llama / "model.safetensors")
    del tensors["model.layers.1.self_attn.q_proj.weight"]
    save_file(tensors, llama / "model.safetensors", metadata={"format": "pt"})
    sentence = refusal(llama)
    assert "lack 1 parameters" in sentence
    assert "layers.1.self_attn.q_proj.weight" in sentence


def test_weights_of_another_shape_are_refused(llama: Path) -> None:
    edit_config(llama, lambda config: config.update(intermediate_size=32))
    assert "llama cannot be loaded" in refusal(llama)


def test_an_impossible_configuration_is_refused(llama: Path) -> None:
    edit_config(llama, lambda config: config.update(hidden_size="wide"))
    assert "llama cannot be loaded" in refusal(llama)


def test_missing_and_empty_folders_are_refused(tmp_path: Path) -> None:
    assert "There is no model at" in refusal(tmp_path / "nowhere")
    assert "There is no model at" in refusal("./nowhere/at/all")
    assert "There is no model at" in refusal("nothing.gguf")
    (tmp_path / "empty").mkdir()
    assert "is empty" in refusal(tmp_path / "empty")
    (tmp_path / "notes.txt").write_text("hello")
    assert "is not a model" in refusal(tmp_path / "notes.txt")


def test_folders_without_a_configuration(llama: Path) -> None:
    (llama / "config.json").unlink()
    assert "has no config.json" in refusal(llama)
    (llama / "adapter_config.json").write_text("{}")
    assert "holds an adapter only" in refusal(llama)
    (llama / "x.gguf").write_bytes(b"GGUF")
    assert "give the file itself" in refusal(llama)


def test_a_configuration_without_weights(llama: Path) -> None:
    (llama / "model.safetensors").unlink()
    assert "pass `random_init=True`" in refusal(llama)
    assert load(llama, random_init=True).class_name == "LlamaForCausalLM"


@pytest.mark.parametrize("content", ["{", "[]", '{"hidden_size": 3}', '{"model_type": 3}'])
def test_a_broken_configuration(llama: Path, content: str) -> None:
    (llama / "config.json").write_text(content)
    assert "config.json" in refusal(llama)


def test_damaged_safetensors(llama: Path) -> None:
    file = llama / "model.safetensors"
    whole = file.read_bytes()
    for data in (b"", whole[:5], whole[:-100], b"\xff" * 64):
        file.write_bytes(data)
        assert "is damaged or cut short" in refusal(llama)
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")
    assert "run git lfs pull" in refusal(llama)


def test_a_broken_list_of_shards(llama: Path) -> None:
    (llama / "model.safetensors").unlink()
    for content in ("{", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 1}}'):
        (llama / "model.safetensors.index.json").write_text(content)
        assert "is not a list of weight files" in refusal(llama)


@pytest.fixture
def pickled(llama: Path) -> Path:
    torch.save(load_file(llama / "model.safetensors"), llama / "pytorch_model.bin")
    (llama / "model.safetensors").unlink()
    return llama


def test_pickles_only_when_allowed(pickled: Path) -> None:
    assert "`allow_pickle=True`" in refusal(pickled)
    loaded = load(pickled, allow_pickle=True)
    assert loaded.provenance["weights"] == "pickle"
    assert loaded.provenance["files_sha256"] == hashlib.sha256((pickled / "pytorch_model.bin").read_bytes()).hexdigest()


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("exploded"),)


def test_a_pickle_with_code_is_not_run(pickled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": _Bomb()}, pickled / "pytorch_model.bin")
    assert "holds more than tensors" in refusal(pickled, allow_pickle=True)
    (pickled / "pytorch_model.bin").write_bytes(pickle.dumps(_Bomb()))
    assert "holds more than tensors" in refusal(pickled, allow_pickle=True)
    assert not (tmp_path / "exploded").exists()


def test_a_damaged_pickle(pickled: Path) -> None:
    data = (pickled / "pytorch_model.bin").read_bytes()
    (pickled / "pytorch_model.bin").write_bytes(data[: len(data) // 2])
    assert "llama cannot be loaded" in refusal(pickled, allow_pickle=True)


def test_an_unknown_model_type(llama: Path) -> None:
    edit_config(llama, lambda config: config.update(model_type="hyena-dna-9"))
    sentence = refusal(llama)
    assert "does not know the model type 'hyena-dna-9'" in sentence
    assert transformers.__version__ in sentence


REMOTE = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

class MineConfig(LlamaConfig):
    model_type = "mine"

class MineForCausalLM(LlamaForCausalLM):
    config_class = MineConfig
"""


def test_remote_code_only_when_trusted(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    (llama / "modeling_mine.py").write_text(REMOTE)
    code = {"AutoConfig": "modeling_mine.MineConfig", "AutoModelForCausalLM": "modeling_mine.MineForCausalLM"}
    edit_config(
        llama,
        lambda config: config.update(model_type="mine", auto_map=code, architectures=["MineForCausalLM"]),
    )
    assert "`trust_remote_code=True`" in refusal(llama)
    assert load(llama, trust_remote_code=True).class_name == "MineForCausalLM"
    assert load(llama, trust_remote_code=True, random_init=True).class_name == "MineForCausalLM"


def test_quantised_weights(llama: Path) -> None:
    edit_config(llama, lambda config: config.update(quantization_config={"quant_method": "gptq", "bits": 4}))
    assert "are quantised (gptq)" in refusal(llama)
    assert load(llama, random_init=True).class_name == "LlamaForCausalLM"


def test_unknown_dtype(llama: Path) -> None:
    sentence = refusal(llama, dtype="float23")
    assert "choose one of float32, float64, bfloat16, float16, auto" in sentence
    assert "Did you mean 'float" in sentence


def test_devices(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    assert "The device 'cuda' is not available (there is only cpu)" in refusal(llama, device="cuda")
    assert "There is no device 'gpu'" in refusal(llama, device="gpu")
    assert "is not available" in refusal(llama, device="meta")
    assert load(llama, device="auto").provenance["device"] == "cpu"
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert devices.device_named("auto").type == "cuda"
    assert devices.device_named("cuda:1") == torch.device("cuda:1")
    assert "cpu and 2 of type cuda" in refusal(llama, device="cuda:2")


def test_full_device_is_refused(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, *_: Any) -> Any:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(transformers.PreTrainedModel, "to", full)
    assert "pass `dtype='bfloat16'` or `device='cpu'`" in refusal(llama)


def test_a_hub_name_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert "the hub cannot be reached" in refusal("someone/some-model")
    assert "at revision 'v2'" in refusal("some-model", revision="v2")


def test_a_hub_name_in_the_cache(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Any]] = []

    def cached(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((name, revision))
        assert "*.py" not in allow_patterns
        assert not any(pattern.endswith(".bin") for pattern in allow_patterns)
        return str(llama)

    monkeypatch.setattr("huggingface_hub.snapshot_download", cached)
    loaded = load("someone/some-model", revision="v2")
    assert asked == [("someone/some-model", "v2")]
    assert (loaded.name, loaded.provenance["revision"]) == ("someone/some-model", "v2")


@pytest.mark.parametrize("beside", [None, "survey.json", "config.json"])
def test_pocket_is_in_the_package_unless_a_model_folder_has_that_name(
    beside: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`attnscope scan pocket --out pocket` makes a folder of that name, which is not a model."""
    monkeypatch.chdir(tmp_path)
    if beside is not None:
        (tmp_path / "pocket").mkdir()
        (tmp_path / "pocket" / beside).touch()
    seen: list[Path] = []

    def note(folder: Path, name: str, loading: Loading) -> sources.Source:
        seen.append(folder)
        raise RefusalError(name)

    monkeypatch.setattr(sources, "_in_folder", note)
    assert refusal("pocket") == "pocket"
    assert seen == [
        Path("pocket") if beside == "config.json" else Path(sources.__file__).parents[2] / "data" / "pocket"
    ]


def test_gguf(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    reader = gguf.GGUFReader
    loaded = load(path)
    assert gguf.GGUFReader is reader
    assert (loaded.name, loaded.class_name, loaded.positions) == ("tiny", "LlamaForCausalLM", 64)
    assert loaded.provenance["files_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert loaded.provenance["weights"] == "gguf"
    assert loaded.tokenizer is not None
    assert loaded.tokenizer("ab", add_special_tokens=False)["input_ids"] == [3]
    expected = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    assert np.array_equal(loaded.model.get_parameter("model.embed_tokens.weight").numpy(), expected)
    assert capfd.readouterr() == ("", "")
    assert load(path, random_init=True).name == "tiny (random weights, seed 0)"


def test_damaged_gguf(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    whole = path.read_bytes()
    for length in (6, 200, len(whole) // 2, len(whole) - 64):
        path.write_bytes(whole[:length])
        assert "is damaged or cut short" in refusal(path)
    path.write_bytes(b"not it")
    assert "does not begin like a GGUF file" in refusal(path)


def test_gguf_of_an_unknown_architecture(tmp_path: Path) -> None:
    write_gguf(tmp_path / "odd.gguf", "hyena")
    assert "hyena is not supported" in refusal(tmp_path / "odd.gguf")


def test_gguf_without_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnscope.hf.loading.model_files.find_spec", lambda name: None)
    (tmp_path / "a.gguf").write_bytes(b"GGUF0000")
    assert "pip install 'attnscope[gguf]'" in refusal(tmp_path / "a.gguf")


def test_loading_is_silent_and_restores(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = save(transformers.BertForMaskedLM(BERT), tmp_path / "bert")
    edit_config(folder, lambda config: config.update(architectures=["BertForSequenceClassification"]))
    notes = transformers.utils.logging
    before = (notes.get_verbosity(), notes.is_progress_bar_enabled(), list(warnings.filters))
    load(folder)
    assert capfd.readouterr() == ("", "")
    assert (notes.get_verbosity(), notes.is_progress_bar_enabled(), list(warnings.filters)) == before


def test_quiet_restores_after_an_error() -> None:
    notes = transformers.utils.logging
    before = notes.get_verbosity()

    def fail() -> None:
        with quiet():
            warnings.warn("unheard", stacklevel=1)
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    assert notes.get_verbosity() == before
    assert notes.is_progress_bar_enabled()


def test_a_broken_tokenizer_is_refused(llama: Path) -> None:
    (llama / "tokenizer.json").write_text("{}")
    assert "llama cannot be loaded" in refusal(llama)


def test_feed_reads_the_corpus(llama: Path) -> None:
    put_tokenizer(llama)
    loaded = load(llama)
    made = feed(loaded, Corpus.of("letters", ["abc" * 40, "abcd"]), Sampling(max_tokens=32, batch_size=2))
    assert made.name == "letters"
    assert [tuple(batch.inputs["input_ids"].shape) for batch in made] == [(2, 32), (1, 32), (2, 28)]
    assert all(bool((batch.inputs["input_ids"][:, 0] == 0).all()) for batch in made)
    for batch in made:
        loaded.model(**batch.inputs)
    assert feed(loaded, None, Sampling(samples=3)).samples == 3
    assert feed(loaded, None, Sampling(samples=3)).name == "Alice's Adventures in Wonderland (embedded)"


def test_feed_of_a_model_without_a_tokenizer(llama: Path) -> None:
    loaded = load(llama)
    made = feed(loaded, None, Sampling(samples=3, seed=5))
    assert made.name == "random tokens (seed 5)"
    assert [tuple(batch.inputs["input_ids"].shape) for batch in made] == [(3, 64)]
    with pytest.raises(RefusalError, match="has no tokenizer"):
        feed(loaded, Corpus.of("x", ["text"]), Sampling())


def test_feed_of_an_encoder_decoder(tmp_path: Path) -> None:
    T5.save_pretrained(tmp_path)
    loaded = load(tmp_path, random_init=True)
    (batch,) = feed(loaded, None, Sampling(samples=2, max_tokens=8))
    assert batch.inputs["decoder_input_ids"][:, 0].tolist() == [0, 0]
    assert batch.inputs["decoder_input_ids"][:, 1:].tolist() == batch.inputs["input_ids"][:, :-1].tolist()
    loaded.model(**batch.inputs)


def test_feed_refuses_models_that_do_not_read_text(tmp_path: Path) -> None:
    transformers.ViTConfig(**IMAGE).save_pretrained(tmp_path / "vit")
    clip = transformers.CLIPConfig(text_config={**SMALL, "vocab_size": 40}, vision_config=IMAGE)
    clip.save_pretrained(tmp_path / "clip")
    for name, kind in (("vit", "vision"), ("clip", "multimodal")):
        loaded = load(tmp_path / name, random_init=True)
        assert loaded.kind == kind
        with pytest.raises(RefusalError, match="cannot read text alone"):
            feed(loaded, None, Sampling())


def test_padding_is_invisible_without_a_padding_token(llama: Path) -> None:
    put_tokenizer(llama)
    loaded = load(llama)
    assert loaded.pad is None
    together = feed(loaded, Corpus.of("x", ["abcdefgh", "abcdef", "tsr"]), Sampling(batch_size=3)).batches[1]
    alone = feed(loaded, Corpus.of("x", ["tsr"]), Sampling()).batches[0]
    assert together.mask is not None
    row = together.inputs["input_ids"][1][together.mask[1]]
    assert row.tolist() == alone.inputs["input_ids"][0].tolist()
    expected = loaded.model(**alone.inputs).logits[0]
    torch.testing.assert_close(loaded.model(**together.inputs).logits[1, : len(row)], expected)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_every_parameter_has_the_requested_dtype(tmp_path: Path, dtype: str) -> None:
    """XLNet creates its projections in float32, with random weights and with stored ones."""
    config = transformers.XLNetConfig(vocab_size=40, d_model=16, n_layer=2, n_head=4, d_inner=24)
    config.save_pretrained(tmp_path)
    wanted = getattr(torch, dtype)
    loaded = load(tmp_path / "config.json", random_init=True, dtype=dtype)
    assert {p.dtype for p in loaded.model.parameters()} == {wanted}
    assert loaded.provenance["dtype"] == dtype
    torch.manual_seed(4)
    original = transformers.XLNetLMHeadModel(config)
    save(original, tmp_path)
    loaded = load(tmp_path, dtype=dtype)
    assert {p.dtype for p in loaded.model.parameters()} == {wanted}
    parameters = dict(original.named_parameters())
    assert all(torch.equal(p, parameters[name].to(wanted)) for name, p in loaded.model.named_parameters())
    with torch.no_grad():
        assert loaded.model(torch.arange(6)[None]).logits.dtype == wanted


def test_parameters_declared_float32_are_not_cast(tmp_path: Path) -> None:
    torch.manual_seed(5)
    folder = save(transformers.T5ForConditionalGeneration(T5), tmp_path / "t5")
    kept = {n: p.dtype for n, p in load(folder, dtype="float16").model.named_parameters()}
    assert {name for name, dtype in kept.items() if dtype == torch.float32} == {n for n in kept if ".wo." in n}
    assert {p.dtype for p in load(folder, dtype="bfloat16").model.parameters()} == {torch.bfloat16}


def test_buffers_are_widened_and_never_narrowed(llama: Path) -> None:
    for dtype in ("float32", "bfloat16", "float16"):  # rotary frequencies are not weights
        assert {b.dtype for b in load(llama, dtype=dtype).model.buffers()} == {torch.float32}
    exact, plain = load(llama, dtype="float64").model, load(llama).model
    assert {b.dtype for b in exact.buffers()} == {torch.float64}
    assert all(torch.equal(b, other.double()) for b, other in zip(exact.buffers(), plain.buffers(), strict=True))
