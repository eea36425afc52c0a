"""Models of ``diffusers``, small, from arguments: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from torch import Tensor, nn

CHANNELS, SIZE, WIDTH = 4, 8, 16


def build_unet() -> nn.Module:
    return diffusers.UNet2DConditionModel(
        sample_size=SIZE,
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=4,
        cross_attention_dim=WIDTH,
        attention_head_dim=8,
    )


def batch(step: int, dp_rank: int, dp_size: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1 + step * dp_size + dp_rank)
    return {
        "timestep": torch.randint(100, (2,), generator=generator),
        "encoder_hidden_states": torch.randn(2, 5, WIDTH, generator=generator),
        "sample": torch.randn(2, CHANNELS, SIZE, SIZE, generator=generator),
    }


def build_pixart() -> nn.Module:
    return diffusers.PixArtTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        num_layers=2,
        cross_attention_dim=16,
        caption_channels=WIDTH,
        sample_size=SIZE,
        patch_size=2,
        use_additional_conditions=False,
    )


def batch_pixart(step: int, dp_rank: int, dp_size: int) -> dict[str, Any]:
    noised = batch(step, dp_rank, dp_size)
    added = {"resolution": None, "aspect_ratio": None}
    return {"hidden_states": noised.pop("sample"), "added_cond_kwargs": added, **noised}


def build_vae() -> nn.Module:
    return diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        latent_channels=CHANNELS,
        sample_size=SIZE,
    )


def batch_vae(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(1 + step * dp_size + dp_rank)
    return torch.randn(2, 3, SIZE, SIZE, generator=generator)
