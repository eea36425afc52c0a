"""Models of ``timm``, without their weights."""

from __future__ import annotations

import timm
import torch
from torch import Tensor, nn


def build_vit() -> nn.Module:
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=32, embed_dim=24, depth=2, num_heads=3, num_classes=4
    )


def build_resnet() -> nn.Module:
    return timm.create_model("resnet10t", channels=(8, 8, 16, 16), num_classes=4)


def build_convnext() -> nn.Module:
    return timm.create_model(
        "convnext_atto", depths=(1, 1, 1, 1), dims=(8, 8, 16, 16), num_classes=4
    )


def build_mobilenet() -> nn.Module:
    return timm.create_model("mobilenetv3_small_050", num_classes=4)


def build_swin() -> nn.Module:
    return timm.create_model(
        "swin_tiny_patch4_window7_224",
        img_size=32,
        window_size=4,
        embed_dim=12,
        depths=(2, 2),
        num_heads=(2, 2),
        num_classes=4,
    )


def batch(step: int, dp_rank: int, dp_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return torch.randn(2, 3, 32, 32, generator=generator)


def loss(logits: Tensor, _: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, torch.arange(len(logits), device=logits.device) % 4)
