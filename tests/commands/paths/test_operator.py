"""`attnscope.operator`: what it takes, its repr and notes, and what it refuses."""

from typing import Any

import pytest
import torch

import attnscope
from attnscope.core.errors import RefusalError
from tests.hf.families import FAMILIES
from tests.specimens import byte_tokenizer, tiny_llama, tiny_t5

BY_NAME = {family.name: family for family in FAMILIES}


def test_text_gives_words_and_the_model_is_unchanged() -> None:
    model = tiny_llama()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    stages: list[str] = []
    op = attnscope.operator(model, "a dog", tokenizer=byte_tokenizer(), progress=lambda stage, *_: stages.append(stage))
    found = op.map("contribution")
    assert found.tokens == found.rows == ("<bos>", *"a dog")
    assert found.part == "the whole model"
    assert found.provenance["bos"]["begins"] is True
    assert stages[:2] == ["loading", "freezing"]
    assert op.input.dtype == torch.float64
    assert next(model.parameters()).dtype == torch.float32
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    above = [value for i, row in enumerate(found.values) for value in row[i + 1 :]]
    assert above == [0.0] * len(above)  # a causal model does not depend on later tokens


def test_an_image_has_numbered_tokens() -> None:
    family = BY_NAME["ViT"]
    image = {"pixel_values": family.batch()["pixel_values"][:1]}
    op = attnscope.operator(family.model(), image, dtype="float32")
    assert op.words == tuple(map(str, range(10)))  # nine patches and [CLS]
    assert op.difference <= 1e-4
    assert op.map("input").rows == op.words


def test_of_two_stacks_each_has_an_operator() -> None:
    tokenizer, pair = byte_tokenizer(), ("a source", "a target")
    decoder = attnscope.operator(tiny_t5(), pair, tokenizer=tokenizer)
    encoder = attnscope.operator(tiny_t5(), pair, tokenizer=tokenizer, stack="encoder")
    assert (decoder.about.stack, encoder.about.stack) == ("decoder", "encoder")
    assert any("contributions of encoder are in the offset" in note for note in decoder.map("output").notes)
    for op in (decoder, encoder.stream):
        assert op.difference <= 1e-6  # T5's own norms compute in float32
    assert decoder.offset_share > 0  # no bias anywhere: all of it is what cross-attention brings


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("a dog", {"dtype": "float16"}, "`dtype=` cannot be 'float16': choose one of float64, float32"),
        ("a dog", {"stack": "encodr"}, "no stack called 'encodr'"),
        ("", {}, "The text is empty"),
        ({"input_ids": torch.ones(2, 4, dtype=torch.long)}, {}, "Operators take one sequence"),
        ("a dog " * 40, {}, "shorten the text"),
        ("a dog", {"bos": "perhaps"}, "`bos=` cannot be 'perhaps'"),
    ],
)
def test_bad_input_of_an_operator_is_refused(text: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(RefusalError, match=said) as caught:
        attnscope.operator(tiny_llama(), text, tokenizer=byte_tokenizer(), **options)
    assert "\n" not in str(caught.value)
