"""Laws of the effects of heads: their parts add up, and each equals a slow removal that is easy to check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from attnscope.commands.paths import effects, shortlist
from attnscope.commands.paths.effect_record import Effects
from attnscope.commands.paths.record import PathReport
from attnscope.commands.paths.reference import REPLACEMENTS
from attnscope.commands.paths.run import paths
from attnscope.core.errors import RefusalError
from tests.specimens import byte_tokenizer, tiny_llama, tiny_t5

TEXT = "the dog and the"
QUICK: dict[str, Any] = {"draws": 0, "mlp": False, "top": 1}


def shaken(model: Any) -> Any:
    """Give biases and gains random values, so that leaving one out would show."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model.eval()


def gpt2() -> Any:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=257, n_embd=24, n_layer=3, n_head=3, n_positions=40, initializer_range=0.3)
    return shaken(GPT2LMHeadModel(config))


def bert(kind: Any = BertForMaskedLM) -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = BertConfig(
        vocab_size=257, intermediate_size=48, max_position_embeddings=40, initializer_range=0.3, **sizes
    )
    return shaken(kind(config))


def gptj() -> Any:
    torch.manual_seed(0)
    config = GPTJConfig(vocab_size=257, n_embd=24, n_layer=2, n_head=3, n_positions=40, rotary_dim=4)
    config.initializer_range = 0.3
    return shaken(GPTJForCausalLM(config))


def qwen3() -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=257,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=40,
        initializer_range=0.3,
    )
    return shaken(Qwen3ForCausalLM(config))


def gemma2() -> Any:
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=257,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=40,
        initializer_range=0.3,
        attn_logit_softcapping=5.0,
    )
    return shaken(Gemma2ForCausalLM(config))


MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "llama with grouped heads": (tiny_llama, "model.layers.{}.self_attn.o_proj"),
    "gpt2 with biases": (gpt2, "transformer.h.{}.attn.c_proj"),
    "masked bert with post-norm": (bert, "bert.encoder.layer.{}.attention.output.dense"),
    "gptj, unfused and parallel": (gptj, "transformer.h.{}.attn.out_proj"),
    "gemma2 with capped logits": (gemma2, "model.layers.{}.self_attn.o_proj"),
    "qwen3 with norms of queries": (qwen3, "model.layers.{}.self_attn.o_proj"),
}


def measured(model: Any, by: Any = "zero", **more: Any) -> tuple[PathReport, Effects]:
    report = paths(model, TEXT, tokenizer=byte_tokenizer(), effects=by, **QUICK, **more)
    assert report.effects is not None, report.notes
    return report, report.effects


def ids() -> Tensor:
    return torch.tensor([byte_tokenizer()(TEXT)["input_ids"]])


@contextmanager
def zeroed(model: Any, module: str, head: int, width: int) -> Iterator[None]:
    """Set a head to zero with a plain hook."""

    def hook(_: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        changed = args[0].clone()
        changed[..., head * width : (head + 1) * width] = 0
        return (changed,)

    handle = model.get_submodule(module).register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize("name", MODELS)
def test_an_effect_is_that_of_a_plain_hook_on_the_model(name: str) -> None:
    make, path = MODELS[name]
    report, found = measured(make())
    model = make().double()
    with torch.no_grad():
        own = model(input_ids=ids()).logits[0, report.position]
        entry = int(own.argmax())
        assert found.value == pytest.approx(float(own[entry]), abs=1e-6)  # norms of Llama compute in float32
        for one in found.heads:
            projection = path.format(one.block)
            weight = dict(model.named_parameters())[f"{projection}.weight"]
            width = (weight.shape[0] if "c_proj" in path else weight.shape[1]) // len(report.head_values[0])
            with zeroed(model, projection, one.head, width):
                left = model(input_ids=ids()).logits[0, report.position]
            assert one.total == pytest.approx(float(own[entry] - left[entry]), abs=2e-6)
            assert one.probability == pytest.approx(float(left.softmax(-1)[entry]), abs=1e-6)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("by", REPLACEMENTS)
def test_parts_of_an_effect_add_up(name: str, by: Any) -> None:
    report, found = measured(MODELS[name][0](), by)
    assert not any("not split" in note for note in report.notes)
    unknown = "capped" in name  # the query of such a head is not a plain run of outputs of its projection
    assert any("Edges between heads are not measured" in note for note in report.notes) <= unknown
    assert len(found.heads) == found.of_heads == sum(map(len, report.head_values))
    for one in found.heads:
        assert one.values is not None
        assert one.patterns is not None
        assert one.norms_and_gates is not None
        assert one.values + one.patterns + one.norms_and_gates == pytest.approx(one.total, abs=1e-12)
    last = [one for one in found.heads if one.block == max(x.block for x in found.heads)]
    assert all(abs(one.patterns or 0.0) < 1e-12 for one in last)  # no pattern comes after the last block
    assert max(abs(one.patterns or 0.0) for one in found.heads) > 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_values_are_what_the_frozen_network_loses(name: str) -> None:
    """Replacing a head by zero removes all paths through it from the frozen network, and nothing else."""
    report, found = measured(MODELS[name][0]())
    for one in found.heads:
        assert one.values == pytest.approx(sum(report.head_lengths[one.block][one.head]), abs=1e-9)


def test_patterns_respond_while_norms_and_gates_are_frozen() -> None:
    """Compare with a Llama whose norms and gates are replaced by their values on the text, by hand."""
    _, found = measured(tiny_llama())
    model: Any = tiny_llama().double()
    norms = [module for name, module in model.named_modules() if name.endswith("norm")]
    gates = [layer.mlp for layer in model.model.layers]
    kept: dict[Any, Tensor] = {}

    def keep_norm(module: Any, args: tuple[Tensor, ...], _: Any) -> None:
        kept[module] = (args[0].square().mean(-1, keepdim=True) + module.variance_epsilon).rsqrt()

    def keep_gate(module: Any, args: tuple[Tensor, ...], _: Any) -> None:
        kept[module] = module.act_fn(module.gate_proj(args[0]))

    handles = [module.register_forward_hook(keep_norm) for module in norms]
    handles += [module.register_forward_hook(keep_gate) for module in gates]

    def frozen_norm(module: Any) -> Any:
        return lambda x: module.weight * x * kept[module]

    def frozen_gate(module: Any) -> Any:
        return lambda x: module.down_proj(kept[module] * module.up_proj(x))

    def exact_norm(module: Any) -> Any:
        return lambda x: module.weight * x * (x.square().mean(-1, keepdim=True) + module.variance_epsilon).rsqrt()

    for module in norms:  # the norms themselves compute in float32
        module.forward = exact_norm(module)
    with torch.no_grad():
        own = model(input_ids=ids()).logits[0, -1]
        for handle in handles:
            handle.remove()
        for module in norms:
            module.forward = frozen_norm(module)
        for module in gates:
            module.forward = frozen_gate(module)
        entry = int(own.argmax())
        assert float(model(input_ids=ids()).logits[0, -1, entry]) == pytest.approx(float(own[entry]), abs=1e-10)
        for one in found.heads:
            with zeroed(model, f"model.layers.{one.block}.self_attn.o_proj", one.head, 8):
                left = model(input_ids=ids()).logits[0, -1, entry]
            assert one.values is not None
            assert one.patterns is not None
            assert one.values + one.patterns == pytest.approx(float(own[entry] - left), abs=1e-9)


def test_an_edge_is_that_of_a_plain_replacement_of_queries_keys_or_values() -> None:
    report, found = measured(gpt2())
    model: Any = gpt2().double()
    width, heads = 24, 3
    assert found.edges
    with torch.no_grad():
        own = model(input_ids=ids()).logits[0, -1]
        entry = int(own.argmax())
        for edge in found.edges:
            block, head = edge.reader
            attention = model.transformer.h[block].attn
            seen: list[Tensor] = []
            handle = attention.c_attn.register_forward_hook(lambda _, __, out, seen=seen: seen.append(out))
            with zeroed(model, f"transformer.h.{edge.sender[0]}.attn.c_proj", edge.sender[1], width // heads):
                model(input_ids=ids())
            handle.remove()
            first = width * ("query", "key", "value").index(edge.by) + head * (width // heads)
            mine = slice(first, first + width // heads)

            def put(_: Any, __: Any, out: Tensor, mine: slice = mine, seen: list[Tensor] = seen) -> Tensor:
                changed = out.clone()
                changed[..., mine] = seen[0][..., mine]
                return changed

            handle = attention.c_attn.register_forward_hook(put)
            left = model(input_ids=ids()).logits[0, -1]
            handle.remove()
            assert edge.total == pytest.approx(float(own[entry] - left[entry]), abs=1e-9)
            assert edge.probability == pytest.approx(float(left.softmax(-1)[entry]), abs=1e-9)
    assert report.effects is found


def test_heads_are_chosen_by_the_difference_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 9 heads one is measured: with a difference that of its largest derivative, else that of log p."""
    monkeypatch.setattr(shortlist, "ALL", 0)
    monkeypatch.setattr(shortlist, "MOST", 1)
    _, difference = measured(gpt2(), target="e", against="t")
    _, single = measured(gpt2(), target="e")
    assert (difference.follows, single.follows) == ("target", "probability")
    model: Any = gpt2().double()
    first, second = (int(byte_tokenizer()(word)["input_ids"][-1]) for word in ("e", "t"))
    of_difference: dict[tuple[int, int], float] = {}
    of_log_p: dict[tuple[int, int], float] = {}
    share = 1e-5  # of the head that is taken out
    with torch.no_grad():
        own = model(input_ids=ids()).logits[0, -1]
        for block, head in ((b, h) for b in range(3) for h in range(3)):

            def shrink(_: Any, args: tuple[Tensor, ...], head: int = head) -> tuple[Tensor, ...]:
                changed = args[0].clone()
                changed[..., head * 8 : head * 8 + 8] *= 1 - share
                return (changed,)

            handle = model.transformer.h[block].attn.c_proj.register_forward_pre_hook(shrink)
            left = model(input_ids=ids()).logits[0, -1]
            handle.remove()
            of_difference[block, head] = abs(float((left - own)[first] - (left - own)[second]))
            of_log_p[block, head] = abs(float((left.log_softmax(-1) - own.log_softmax(-1))[first]))
    expected, other = (max(sizes, key=sizes.__getitem__) for sizes in (of_difference, of_log_p))
    assert expected != other
    assert [one.place for one in difference.heads] == [expected]
    assert [one.place for one in single.heads] == [other]
    assert difference.value == pytest.approx(float(own[first] - own[second]), abs=1e-9)


def test_of_many_heads_the_largest_effects_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    _, whole = measured(gpt2())
    monkeypatch.setattr(shortlist, "ALL", 0)
    monkeypatch.setattr(shortlist, "SOME", 4)
    monkeypatch.setattr(shortlist, "MOST", 8)
    monkeypatch.setattr(effects, "SPLIT", 3)
    _, some = measured(gpt2())
    assert len(some.heads) == 8
    assert (some.of_heads, some.whole) == (9, False)
    known = {one.place: one for one in whole.heads}
    split = [one for one in some.heads if one.values is not None]
    assert split == [known[one.place] for one in split]
    assert sorted(map(some.size, split)) == sorted(map(some.size, some.heads))[:3]
    for one in some.heads:
        assert one.total == pytest.approx(known[one.place].total, abs=1e-12)


def test_an_edge_into_a_shared_key_changes_one_head_only() -> None:
    """Four heads of this Llama share two heads of keys and values."""
    _, found = measured(tiny_llama())
    model: Any = tiny_llama().double()
    assert {edge.by for edge in found.edges} & {"key", "value"}
    with torch.no_grad():
        own = model(input_ids=ids()).logits[0, -1]
        entry = int(own.argmax())
        for edge in found.edges:
            block, head = edge.reader
            attention = model.model.layers[block].self_attn
            projection = {"query": attention.q_proj, "key": attention.k_proj, "value": attention.v_proj}[edge.by]
            seen: list[Tensor] = []
            handle = projection.register_forward_hook(lambda _, __, out, seen=seen: seen.append(out))
            with zeroed(model, f"model.layers.{edge.sender[0]}.self_attn.o_proj", edge.sender[1], 8):
                model(input_ids=ids())
            handle.remove()
            mixed: list[Tensor] = []
            handles = [projection.register_forward_hook(lambda _, __, ___, seen=seen: seen[0])]
            handles += [attention.o_proj.register_forward_pre_hook(lambda _, a, mixed=mixed: mixed.append(a[0]))]
            model(input_ids=ids())
            for one in handles:
                one.remove()

            def put(_: Any, args: Any, head: int = head, mixed: list[Tensor] = mixed) -> tuple[Tensor, ...]:
                changed = args[0].clone()
                changed[..., 8 * head : 8 * head + 8] = mixed[0][..., 8 * head : 8 * head + 8]
                return (changed,)

            handle = attention.o_proj.register_forward_pre_hook(put)
            left = model(input_ids=ids()).logits[0, -1]
            handle.remove()
            assert edge.total == pytest.approx(float(own[entry] - left[entry]), abs=5e-6)  # its norms are float32


@pytest.mark.parametrize("by", REPLACEMENTS)
def test_the_model_is_left_bit_equal_and_without_hooks(by: Any) -> None:
    model = tiny_llama().double()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    own = model(input_ids=ids()).logits
    report = paths(model, TEXT, tokenizer=byte_tokenizer(), effects=by, **QUICK)
    assert report.effects is not None
    assert report.effects.replacement == by
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(own, model(input_ids=ids()).logits)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_means_are_taken_over_other_texts() -> None:
    _, found = measured(tiny_llama(), "mean")
    assert found.reference == "32 windows of 16 tokens from the embedded book"


def test_norms_and_classes_have_effects_too() -> None:
    _, classes = measured(bert(BertForSequenceClassification), "mean")
    assert classes.probability is not None
    _, norms = measured(bert(BertModel), "mean")
    assert norms.probability is None
    assert all(one.probability is None for one in norms.heads)
    _, decoder = measured(tiny_t5(), "mean")
    assert decoder.reference == "the other tokens of the input"


def test_a_single_block_has_no_later_patterns_and_no_edges() -> None:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=257, n_embd=24, n_layer=1, n_head=3, n_positions=40, initializer_range=0.3)
    _, found = measured(GPT2LMHeadModel(config).eval(), "resample")
    assert [one.patterns for one in found.heads] == [0.0] * 3
    assert found.edges == ()


def test_what_cannot_be_taken_out_is_said_in_a_note() -> None:
    config = AlbertConfig(
        vocab_size=257,
        embedding_size=24,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=48,
        max_position_embeddings=40,
    )
    report = paths(AlbertForMaskedLM(config).eval(), TEXT, tokenizer=byte_tokenizer(), **QUICK)
    assert report.effects is None
    assert any("No head was taken out" in note and "share their weights" in note for note in report.notes)
    assert "head" not in report.sentences()[0].replace("path", "")


def test_none_takes_nothing_out_and_other_words_are_refused() -> None:
    report = paths(tiny_llama(), TEXT, tokenizer=byte_tokenizer(), effects=None, **QUICK)
    assert report.effects is None
    assert "block" not in report.sentences()[0]
    with pytest.raises(RefusalError, match="effects"):
        paths(tiny_llama(), TEXT, tokenizer=byte_tokenizer(), effects="median", **QUICK)
