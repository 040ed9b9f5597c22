"""`explain` on pictures, sounds and pairs of inputs: numbers against those of small models, and refusals."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from torch import Tensor

import attnscope
from attnscope.explanations.integrated_gradients import NEAR
from tests.command import attnscope as command
from tests.explanations.test_two_streams import clip
from tests.hf.families import FAMILIES, TEXT, VISION
from tests.specimens import byte_tokenizer, tiny_llama

BY_NAME = {family.name: family for family in FAMILIES}
PIXELS = np.random.default_rng(0).integers(0, 255, (40, 30, 3), dtype=np.uint8)
QUICK = "gradient_input"


@cache
def classifier() -> Any:
    torch.manual_seed(0)
    names = {0: "cat", 1: "dog", 2: "bird"}
    model = hf.ViTForImageClassification(
        hf.ViTConfig(**VISION, id2label=names, label2id={n: i for i, n in names.items()})
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


@cache
def backbone() -> Any:
    return BY_NAME["DINOv2 with registers"].model()


@cache
def whisper() -> Any:
    """Return a tiny Whisper that reads 20 frames of 8 bands in steps of 20 ms."""
    return BY_NAME["Whisper"].model()


class Ears:
    """A feature extractor for tiny Whisper: 40 frames of 8 bands."""

    sampling_rate, hop_length, chunk_length = 8000, 160, 0.8

    def __call__(self, raw_speech: np.ndarray, sampling_rate: int, return_tensors: str) -> dict[str, Tensor]:
        assert sampling_rate == self.sampling_rate
        frames = np.zeros(40 * self.hop_length, dtype=np.float32)
        frames[: len(raw_speech)] = raw_speech
        bands = torch.from_numpy(frames).view(40, 8, 20).abs().mean(-1).T
        return {"input_features": bands[None].clone()}


def pixels_of(model: Any, array: np.ndarray = PIXELS, mean: float = 0.5) -> Tensor:
    """Preprocess by hand as the configuration says: scale to 24 x 24, with mean and deviation of 0.5."""
    scaled = np.asarray(Image.fromarray(array).resize((24, 24), Image.Resampling.BICUBIC), dtype=np.float32) / 255
    return torch.from_numpy((scaled - mean) / 0.5).permute(2, 0, 1)[None]


def test_a_picture_is_classified_and_its_patches_are_explained() -> None:
    found = attnscope.explain(classifier(), PIXELS, methods="relevance,gradient_input,rollout,path_contribution")
    with torch.no_grad():
        logits = classifier()(pixel_values=pixels_of(classifier())).logits[0]
    assert found.value == pytest.approx(float(logits.max()), abs=1e-5)
    assert found.asked.word == ("cat", "dog", "bird")[int(logits.argmax())]
    (read,) = found.inputs
    assert (read.kind, read.grid, read.before) == ("image", (3, 3), 1)
    assert read.tokens[:3] == ("[CLS]", "patch 0,0", "patch 0,1")
    assert read.shown is not None
    assert read.shown.startswith("data:image/jpeg;base64,")
    assert all(len(one.scores[0]) == 10 for one in found.methods)
    assert any("has no preprocessor_config.json: the picture is scaled to 24 x 24" in note for note in found.notes)
    other = attnscope.explain(classifier(), PIXELS, target="bird", against="cat", methods=QUICK)
    assert other.value == pytest.approx(float(logits[2] - logits[0]), abs=1e-5)


@pytest.mark.parametrize("name", ["ViT", "DINOv2 with registers"])
def test_relevance_of_patches_equals_the_rule_on_full_maps(name: str) -> None:
    model: Any = BY_NAME[name].model().double()
    batch = {"pixel_values": BY_NAME[name].batch()["pixel_values"][:1].double()}
    head = torch.randn(2, 32, generator=torch.Generator().manual_seed(0)).double()
    found = attnscope.explain(model, batch, head=head, target=1, methods="relevance", dtype="float64")
    model.set_attn_implementation("eager")
    with torch.enable_grad():
        answer = model(**batch, output_attentions=True)
        number = answer.last_hidden_state[0, 0] @ head[1]
        gradients = torch.autograd.grad(number, answer.attentions)
    R = torch.eye(answer.attentions[0].shape[-1], dtype=torch.float64)
    for pattern, gradient in zip(answer.attentions, gradients, strict=True):
        R = R + (pattern * gradient)[0].clamp_min(0).mean(0).detach() @ R
    expected = R[0] - torch.eye(len(R)).double()[0]
    assert found.value == pytest.approx(float(number.detach()), rel=1e-6)
    # Some eager models compute softmax in float32: a few thousand rounding errors.
    near = 4e3 * torch.finfo(torch.float32).eps * float(expected.max())
    assert found.scores("relevance") == pytest.approx(expected.tolist(), abs=near)
    assert float(expected.max()) > 0
    assert found.inputs[0].grid == (3, 3)
    assert found.inputs[0].before == len(R) - 9


def test_integrated_gradients_of_a_picture_are_complete() -> None:
    """They add up to the answer minus that of a picture of the mean colour."""
    model = classifier()
    found = attnscope.explain(model, PIXELS, methods="integrated_gradients,occlusion", dtype="float64", target="dog")
    with torch.no_grad():
        empty = float(model(pixel_values=torch.zeros(1, 3, 24, 24)).logits[0, 1])
    total = found.method("integrated_gradients").total
    assert total == pytest.approx(found.value - empty, rel=NEAR, abs=1e-5)  # computed in float32 here
    assert found.baseline == "that of a picture of one mean colour"
    blank = attnscope.explain(model, np.full((40, 30, 3), 0.5), methods="occlusion", target="dog")
    # 127.5 is rounded, so this picture is nearly the mean colour and all scores are small.
    assert max(map(abs, blank.scores("occlusion"))) < 0.1 * max(map(abs, found.scores("occlusion")))


def test_backbone_is_explained_by_norm_similarity_or_head(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = backbone()
    batch = {"pixel_values": torch.randn(1, 3, 24, 24, generator=torch.Generator().manual_seed(0))}
    with torch.no_grad():
        state = model(**batch).last_hidden_state[0, 0]
    found = attnscope.explain(model, batch, methods=QUICK)
    assert found.value == pytest.approx(float(state.norm()), rel=1e-5)
    assert found.target == "norm of the state of [CLS]"
    assert found.inputs[0].tokens[: found.inputs[0].before][0] == "[CLS]"
    weight, bias = torch.randn(2, 32, generator=torch.Generator().manual_seed(1)), torch.tensor([0.5, -0.5])
    save_file({"weight": weight, "bias": bias}, tmp_path / "head.safetensors", {"labels": '["fine", "torn"]'})
    for head in (tmp_path / "head.safetensors", {"weight": weight, "bias": bias, "labels": ["fine", "torn"]}):
        one = attnscope.explain(model, batch, head=head, target="torn", methods=QUICK)
        assert one.value == pytest.approx(float(weight[1] @ state + bias[1]), rel=1e-4, abs=1e-4)
        assert one.target == "logit of 'torn' of the head on the state of [CLS]"
    both = attnscope.explain(model, PIXELS, PIXELS[::-1].copy(), methods=QUICK)
    assert [(read.name, read.kind) for read in both.inputs] == [("first", "image"), ("second", "image")]
    one = attnscope.explain(model, PIXELS, against=PIXELS[::-1].copy(), methods=QUICK)
    assert both.value == one.value
    assert both.method(QUICK).scores[0] == one.method(QUICK).scores[0]


def test_two_texts_are_explained_on_both_sides() -> None:
    torch.manual_seed(0)
    model = BY_NAME["BERT"].model()
    found = attnscope.explain(model, "5 6 7", "8 9 10 11", methods="relevance,gradient_input")
    assert [(read.name, read.tokens) for read in found.inputs] == [
        ("first", ("5", "6", "7")),
        ("second", ("8", "9", "10", "11")),
    ]
    back = attnscope.explain(model, "8 9 10 11", against="5 6 7", methods="relevance,gradient_input")
    assert found.value == pytest.approx(back.value, rel=1e-5)
    assert found.method("relevance").scores[1] == back.method("relevance").scores[0]
    assert found.target == "likeness of '5 6 7' and '8 9 10 11'"
    assert found.trial is not None
    assert {word.input for word in found.trial.words} == {"first", "second"}
    assert "their likeness" in found.sentences()[0]


def test_every_method_of_two_texts_has_a_page_and_a_record_that_loads(tmp_path: Path) -> None:
    """Lengths of paths belong to one side and are left out. The record survives a save, and .html writes the page."""
    torch.manual_seed(0)
    model = BY_NAME["BERT"].model()
    found = attnscope.explain(model, "5 6 7", "8 9 10 11", methods=("path_contribution", "operator"))
    assert found.lengths is None
    assert attnscope.load(found.save(tmp_path / "explanation.json")) == found
    assert found.save(tmp_path / "page.html").read_text("utf-8").lower().startswith("<!doctype html")
    assert not any(sentence.startswith("By operator, tokens add up") for sentence in found.sentences())


def test_a_picture_and_a_text_for_two_towers() -> None:
    found = attnscope.explain(clip().float(), (PIXELS, "1 7 8 2"), methods="relevance,gradient_input")
    assert [(read.name, read.kind, len(read.tokens)) for read in found.inputs] == [
        ("image", "image", 10),
        ("text", "text", 4),
    ]
    assert found.target == "likeness of picture and text, as the model scales it"
    assert [len(row) for row in found.method("relevance").scores] == [10, 4]
    with pytest.raises(attnscope.RefusalError, match=r"rollout follows one stack .* has text and vision"):
        attnscope.explain(clip().float(), (PIXELS, "1 7 8 2"), methods="rollout")


def test_sound_is_explained_by_the_text_of_the_decoder() -> None:
    sound = np.sin(np.arange(3200) / 3)
    found = attnscope.explain(
        whisper(), sound, "5 6 7", processor=Ears(), methods="relevance,gradient_input,raw_attention", dtype="float64"
    )
    heard, read = found.inputs
    assert (heard.kind, heard.seconds, heard.window, len(heard.tokens)) == ("sound", 0.4, 0.8, 20)
    assert heard.tokens[3] == "0.12 s"
    assert read.tokens == ("1", "5", "6")  # the last one is predicted and not read
    assert [step.word for step in found.steps] == ["5", "6", "7"]
    assert sum(step.value for step in found.steps) == pytest.approx(found.value, rel=1e-9)
    # Gradients are linear in the target: scores of single tokens add up to those of the continuation.
    summed = found.matrix("gradient_input").sum(axis=1)
    assert list(summed) == pytest.approx(list(found.scores("gradient_input")), abs=1e-9)
    assert found.matrix("relevance").shape == (23, 3)
    word = attnscope.explain(
        whisper(), sound, "5 6 7", processor=Ears(), target=6, methods="relevance", dtype="float64"
    )
    assert word.value == pytest.approx(found.steps[1].value, rel=1e-9)
    assert word.method("relevance").scores[0] == pytest.approx(found.steps[1].of("relevance")[0], abs=1e-12)
    assert word.target == "logit of '6' after token 1"


@pytest.mark.parametrize(
    ("model", "given", "options", "message"),
    [
        (tiny_llama, PIXELS, {}, r"reads text and no pictures: give a text, or choose a model that reads pictures"),
        (tiny_llama, np.zeros(100), {}, "reads text and no sounds"),
        (classifier, "a text", {}, "reads pictures: give the file of a picture"),
        (classifier, np.zeros(100), {}, "reads pictures and no sounds"),
        (classifier, (PIXELS, "a text"), {}, "reads pictures alone: leave the text out"),
        (classifier, "nowhere.png", {}, "There is no file 'nowhere.png'"),
        (classifier, PIXELS, {"target": "fish"}, "There is no class 'fish': choose one of 0 .cat., 1 .dog., 2 .bird."),
        (classifier, PIXELS, {"generate": 3}, "writes no text: omit `generate=`"),
        (backbone, PIXELS, {"head": torch.zeros(2, 5)}, "The head expects 5 numbers, and the state of .CLS. .* has 32"),
        (backbone, PIXELS, {"head": "nowhere.safetensors"}, "There is no file 'nowhere.safetensors'"),
        (backbone, PIXELS, {"head": {"weight": torch.zeros(2, 32), "labels": ["a"]}}, "2 classes and 1 labels"),
        (clip, PIXELS, {"dtype": "float64"}, "reads a picture and a text together: give both"),
        (clip, "a text", {"dtype": "float64"}, "reads pictures and text: give the file of a picture and a text"),
        (whisper, np.zeros(90000), {"processor": Ears()}, "lasts 11.2 seconds and .* reads at most 0.8: shorten it"),
        (whisper, PIXELS, {}, "reads sounds and no pictures: give a WAV file"),
        (tiny_llama, "which", {"generate": 0}, "`generate=` must be 1 to 256 tokens, not 0"),
        (tiny_llama, "which", {"generate": 3, "target": "a"}, "omit one of them"),
        (tiny_llama, "which", {"generate": 80}, "shorten the text, or generate fewer"),
        (
            tiny_llama,
            "which",
            {"target": "one is", "against": "a"},
            "tokens here, and a continuation is explained as a whole",
        ),
        (tiny_llama, "which", {"target": "one is " * 12}, "reads at most 64: shorten one of them"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(model: Any, given: Any, options: dict[str, Any], message: str) -> None:
    tokenizer = byte_tokenizer() if model is tiny_llama else None
    with pytest.raises(attnscope.RefusalError, match=message):
        attnscope.explain(model(), given, methods=QUICK, tokenizer=tokenizer, **options)


def test_patches_in_a_random_order_are_refused() -> None:
    """ViLT shuffles patches in every run."""
    torch.manual_seed(0)
    model = hf.ViltModel(hf.ViltConfig(**TEXT, image_size=24, patch_size=8)).eval()
    with pytest.raises(attnscope.RefusalError, match="shuffles the patches in every run"):
        attnscope.explain(model, (PIXELS, "5 6 7"), methods=QUICK)


def test_note_on_equally_likely_answers() -> None:
    model = tiny_llama()
    with torch.no_grad():
        model.lm_head.weight[70] = model.lm_head.weight[71]
        model.lm_head.weight[70:72] *= 100 * (1 if float(model(torch.tensor([[5]])).logits[0, -1, 70]) > 0 else -1)
    found = attnscope.explain(model, {"input_ids": torch.tensor([[5]])}, methods=QUICK, tokenizer=byte_tokenizer())
    assert any("2 answers are equally likely" in note for note in found.notes)
    assert any("single token" in note for note in found.notes)


def test_nan_gradient_names_its_block() -> None:
    """The slope of the square root is infinite at 0, and times 0 it is NaN, although all values are finite."""
    model = tiny_llama()
    last = model.model.layers[1].mlp
    original = last.forward

    def rooted(x: Tensor) -> Tensor:
        return original(x) + (x * 0).abs().sqrt() * 0

    last.forward = rooted
    with pytest.raises(attnscope.RefusalError, match=r"NaN or infinite at the attention of block 1 \(model\)"):
        attnscope.explain(model, "which", methods=QUICK, tokenizer=byte_tokenizer())


def test_quantised_weights_have_no_gradient() -> None:
    model = tiny_llama()
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().to(torch.int8), requires_grad=False)
    with pytest.raises(attnscope.RefusalError, match="is quantised"):
        attnscope.explain(model, "which", methods=QUICK, tokenizer=byte_tokenizer())


def test_command_reads_a_picture_and_refuses_other_files(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    classifier().save_pretrained(folder)
    Image.fromarray(PIXELS).save(tmp_path / "photo.png")
    (tmp_path / "text.png").write_text("a text")
    done = command(
        "explain", str(folder), str(tmp_path / "photo.png"), "--method", QUICK, "--out", str(tmp_path / "out")
    )
    assert done.returncode == 0, done.stderr
    assert "The picture: Measured effect" in done.stdout
    assert "3 x 3 patches" in done.stdout
    page = (tmp_path / "out" / "explanation-photo.html").read_text()
    assert "Which part of the picture decided in " in page
    assert page.count('data-reading="patch ') == 2 * 9  # measured, and by the method
    refused = command("explain", str(folder), str(tmp_path / "text.png"), "--out", str(tmp_path / "none"))
    assert refused.returncode == 2
    assert "is not a picture that can be read" in refused.stderr
    assert not (tmp_path / "none").exists()
