"""MobileSAM (arXiv:2306.14289) as a SamModel of transformers: SAM's two-way decoder behind a TinyViT.

    model = mobile_sam()                        SamModel; prompt encoder and mask decoder are SAM's own
    batch = prompted(picture, [(x, y)])         {"pixel_values", "input_points"} for it
    model(**batch).pred_masks, .iou_scores

transformers has no TinyViT (arXiv:2207.10666), so it is implemented here, from the paper and from the shapes in the
state dict: convolutions reduce the picture to an eighth, then blocks attend within windows, with a convolution between
attention and MLP. Loading is strict: a parameter that is missing or left over is an error. For development only, as
everything in tools/.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from tools import fetch_models
from tools.real_models import renamed

SIDE = 1024  # pixels; a picture that is not square is padded below or to the right
WIDTHS, DEPTHS, HEADS, WINDOWS = (64, 128, 160, 320), (2, 2, 6, 2), (2, 4, 5, 10), (0, 7, 14, 7)
STRIDES = (2, 2, 1)  # between stages: the last keeps its 64 x 64 positions
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


class Folded(nn.Sequential):
    """A convolution without bias, and its batch norm."""

    def __init__(self, read: int, made: int, size: int = 1, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.c = nn.Conv2d(read, made, size, stride, size // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(made)


class Inverted(nn.Module):
    """An inverted bottleneck: widen, convolve each channel, narrow again, and add the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = Folded(width, 4 * width)
        self.conv2 = Folded(4 * width, 4 * width, 3, groups=4 * width)
        self.conv3 = Folded(4 * width, width)

    def forward(self, x: Float[Tensor, "batch width row column"]) -> Float[Tensor, "batch width row column"]:
        return F.gelu(x + self.conv3(F.gelu(self.conv2(F.gelu(self.conv1(x))))))


class Merging(nn.Module):
    """The transition between stages: fewer positions, more channels."""

    def __init__(self, read: int, made: int, stride: int) -> None:
        super().__init__()
        self.conv1 = Folded(read, made)
        self.conv2 = Folded(made, made, 3, stride, groups=made)
        self.conv3 = Folded(made, made)

    def forward(self, x: Float[Tensor, "batch width row column"]) -> Float[Tensor, "batch wider lower narrower"]:
        merged: Tensor = self.conv3(F.gelu(self.conv2(F.gelu(self.conv1(x)))))
        return merged


class Windowed(nn.Module):
    """Attention among the positions of one window, with a learned bias for each distance in rows and columns."""

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.norm, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.attention_biases = nn.Parameter(torch.zeros(heads, window * window))
        places = torch.cartesian_prod(torch.arange(window), torch.arange(window))
        apart = (places[:, None] - places[None]).abs()
        self.distances: Tensor
        self.register_buffer("distances", apart[..., 0] * window + apart[..., 1], persistent=False)

    def forward(self, x: Float[Tensor, "window place width"]) -> Float[Tensor, "window place width"]:
        windows, places, width = x.shape
        each = self.qkv(self.norm(x)).view(windows, places, self.heads, -1).transpose(1, 2)
        query, key, value = each.chunk(3, dim=-1)  # within a head: queries, then keys, then values
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=self.attention_biases[:, self.distances])
        projected: Tensor = self.proj(mixed.transpose(1, 2).reshape(windows, places, width))
        return projected


class MlpBound(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... width"]:
        made: Tensor = self.fc2(F.gelu(self.fc1(self.norm(x))))
        return made


class Block(nn.Module):
    """Attention within windows, a convolution over them, and an MLP. Windows that reach beyond the picture are filled
    with zeros, which are attended to like any other position."""

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.attn, self.mlp = Windowed(width, heads, window), MlpBound(width)
        self.local_conv = Folded(width, width, 3, groups=width)

    def forward(self, x: Float[Tensor, "batch width row column"]) -> Float[Tensor, "batch width row column"]:
        batch, width, rows, columns = x.shape
        size = self.attn.window
        below, right = -rows % size, -columns % size
        tiles = F.pad(x, (0, right, 0, below)).unfold(2, size, size).unfold(3, size, size)
        down, across = tiles.shape[2:4]
        flat = tiles.permute(0, 2, 3, 4, 5, 1).reshape(-1, size * size, width)
        mixed = self.attn(flat).view(batch, down, across, size, size, width).permute(0, 5, 1, 3, 2, 4)
        x = x + mixed.reshape(batch, width, rows + below, columns + right)[:, :, :rows, :columns]
        x = self.local_conv(x)
        more: Tensor = self.mlp(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return x + more


class Stage(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        width, heads, window = WIDTHS[number], HEADS[number], WINDOWS[number]
        made = [Block(width, heads, window) if window else Inverted(width) for _ in range(DEPTHS[number])]
        self.blocks = nn.Sequential(*made)
        wider = WIDTHS[number + 1 : number + 2]
        self.downsample = Merging(width, wider[0], STRIDES[number]) if wider else nn.Identity()

    def forward(self, x: Float[Tensor, "batch width row column"]) -> Float[Tensor, "batch wider lower narrower"]:
        made: Tensor = self.downsample(self.blocks(x))
        return made


class Channels(nn.LayerNorm):
    """A layer norm over the channels of a picture."""

    def forward(self, x: Float[Tensor, "batch width row column"]) -> Float[Tensor, "batch width row column"]:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class TinyViT(nn.Module):
    """Encode a picture of 1024 x 1024 pixels as 64 x 64 positions of 256 channels, as SAM's decoder reads them."""

    def __init__(self) -> None:
        super().__init__()
        half = WIDTHS[0] // 2
        self.patch_embed = nn.Sequential(Folded(3, half, 3, 2), nn.GELU(), Folded(half, WIDTHS[0], 3, 2))
        self.layers = nn.Sequential(*(Stage(number) for number in range(len(WIDTHS))))
        made = 256
        self.neck = nn.Sequential(
            nn.Conv2d(WIDTHS[-1], made, 1, bias=False),
            Channels(made, eps=1e-6),
            nn.Conv2d(made, made, 3, padding=1, bias=False),
            Channels(made, eps=1e-6),
        )

    def get_input_embeddings(self) -> nn.Module:
        return self.patch_embed

    def forward(self, pixel_values: Float[Tensor, "batch 3 row column"], **ignored: Any) -> SimpleNamespace:
        made = self.neck(self.layers(self.patch_embed(pixel_values)))
        return SimpleNamespace(last_hidden_state=made, hidden_states=None, attentions=None)


class MaskAt(nn.Module):
    """A model that returns the logits of SAM's masks at one of its 256 x 256 positions: a number to explain."""

    def __init__(self, sam: Any, row: int, column: int) -> None:
        super().__init__()
        self.sam, self.row, self.column = sam, row, column

    def forward(
        self, image_embeddings: Float[Tensor, "batch width row column"], input_points: Float[Tensor, "batch 1 point 2"]
    ) -> Float[Tensor, "batch mask"]:
        masks: Tensor = self.sam(image_embeddings=image_embeddings, input_points=input_points).pred_masks
        return masks[:, 0, :, self.row, self.column]


_ENCODER_NAMES = ((r"^image_encoder\.", ""), (r"^patch_embed\.seq\.", "patch_embed."))
_DECODER_NAMES = (
    (r"\.norm_final_attn\.", ".layer_norm_final_attn."),
    (r"\.norm(\d)\.", r".layer_norm\1."),
    (r"\.point_embeddings\.", ".point_embed."),
    (r"\.pe_layer\.positional_encoding_gaussian_matrix$", ".shared_embedding.positional_embedding"),
    (r"\.mask_downscaling\.0\.", ".mask_embed.conv1."),
    (r"\.mask_downscaling\.1\.", ".mask_embed.layer_norm1."),
    (r"\.mask_downscaling\.3\.", ".mask_embed.conv2."),
    (r"\.mask_downscaling\.4\.", ".mask_embed.layer_norm2."),
    (r"\.mask_downscaling\.6\.", ".mask_embed.conv3."),
    (r"\.output_upscaling\.0\.", ".upscale_conv1."),
    (r"\.output_upscaling\.1\.", ".upscale_layer_norm."),
    (r"\.output_upscaling\.3\.", ".upscale_conv2."),
    (r"(mlps\.\d|head)\.layers\.0\.", r"\1.proj_in."),
    (r"(mlps\.\d|head)\.layers\.1\.", r"\1.layers.0."),
    (r"(mlps\.\d|head)\.layers\.2\.", r"\1.proj_out."),
)


def mobile_sam() -> Any:
    from transformers import SamConfig, SamModel

    stored = torch.load(fetch_models.path("mobile_sam"), weights_only=True, map_location="cpu")
    encoder = {name: tensor for name, tensor in stored.items() if name.startswith("image_encoder.")}
    for name in [name for name in encoder if re.match(r"image_encoder\.(norm_head|head)\.", name)]:
        del encoder[name]  # the head of the classifier that TinyViT was pretrained as
    own = TinyViT()
    own.load_state_dict(renamed(encoder, _ENCODER_NAMES), strict=True)
    # SAM's own encoder is not built: a block of the smallest width is the placeholder until TinyViT replaces it.
    model: Any = SamModel(
        SamConfig(vision_config={"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1})
    )
    model.vision_encoder = own
    rest = renamed({name: t for name, t in stored.items() if not name.startswith("image_encoder.")}, _DECODER_NAMES)
    position = "shared_embedding.positional_embedding"
    rest[f"shared_image_embedding.{position.split('.')[1]}"] = rest[f"prompt_encoder.{position}"]
    rest |= {f"vision_encoder.{name}": tensor for name, tensor in own.state_dict().items()}
    model.load_state_dict(rest, strict=True)
    return model.eval().requires_grad_(False)


def prompted(picture: np.ndarray[Any, Any], points: list[tuple[float, float]]) -> dict[str, Float[Tensor, ...]]:
    """Return the input of `mobile_sam` for a picture `[row, column, colour]` (0 to 255) and points (column, row) in it.
    The longer side becomes 1024 pixels, and the rest is filled with the mean colour."""
    scale = SIDE / max(picture.shape[:2])
    pixels = torch.from_numpy(picture.copy()).permute(2, 0, 1)[None].float()
    size = [round(side * scale) for side in picture.shape[:2]]
    grown = F.interpolate(pixels, size, mode="bilinear", antialias=True)
    mean, std = (torch.tensor(numbers).view(1, 3, 1, 1) for numbers in (MEAN, STD))
    filled = F.pad((grown - mean) / std, (0, SIDE - size[1], 0, SIDE - size[0]))
    return {"pixel_values": filled, "input_points": torch.tensor([[points]]) * scale}
