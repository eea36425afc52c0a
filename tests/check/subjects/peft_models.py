"""Adapters of ``peft`` beside a frozen decoder of ``transformers``."""

from __future__ import annotations

from typing import Any

import peft
import torch
import transformers
from torch import Tensor, nn


def _decoder() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return transformers.LlamaForCausalLM(config)


def build() -> nn.Module:
    config = peft.LoraConfig(
        r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1, task_type="CAUSAL_LM"
    )
    return peft.get_peft_model(_decoder(), config)


def build_with_head() -> nn.Module:
    """The head is trained as well, beside a copy of itself."""
    config = peft.LoraConfig(
        r=4, target_modules="all-linear", modules_to_save=["lm_head"], task_type="CAUSAL_LM"
    )
    return peft.get_peft_model(_decoder(), config)


def build_dora() -> nn.Module:
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], use_dora=True, task_type="CAUSAL_LM")
    return peft.get_peft_model(_decoder(), config)


def batch(step: int, dp_rank: int, dp_size: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    tokens = torch.randint(64, (2, 8), generator=generator)
    return {"input_ids": tokens, "labels": tokens}


def loss(outputs: Any, _: dict[str, Tensor]) -> Tensor:
    return outputs.loss
