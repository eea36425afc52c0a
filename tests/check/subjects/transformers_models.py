"""Models of ``transformers``, small, from configurations: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn

VOCABULARY = 64
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}


def build_llama() -> nn.Module:
    config = transformers.LlamaConfig(**GROUPED, tie_word_embeddings=True)
    return transformers.LlamaForCausalLM(config)


def build_qwen3() -> nn.Module:
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**GROUPED, head_dim=8))


def build_gemma2() -> nn.Module:
    return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**GROUPED, head_dim=8))


def build_mixtral() -> nn.Module:
    config = transformers.MixtralConfig(**GROUPED, num_local_experts=4, output_router_logits=True)
    return transformers.MixtralForCausalLM(config)


def build_gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=32,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def build_bert() -> nn.Module:
    return transformers.BertForMaskedLM(transformers.BertConfig(**SMALL))


def build_roberta() -> nn.Module:
    return transformers.RobertaForMaskedLM(transformers.RobertaConfig(**SMALL))


def build_distilbert() -> nn.Module:
    config = transformers.DistilBertConfig(
        vocab_size=VOCABULARY, dim=32, hidden_dim=64, n_layers=2, n_heads=4
    )
    return transformers.DistilBertForMaskedLM(config)


def build_albert() -> nn.Module:
    config = transformers.AlbertConfig(**SMALL, embedding_size=16)
    return transformers.AlbertForMaskedLM(config)


def build_t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def build_mamba() -> nn.Module:
    config = transformers.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=32, state_size=4, num_hidden_layers=2
    )
    return transformers.MambaForCausalLM(config)


def build_mistral() -> nn.Module:
    config = transformers.MistralConfig(**GROUPED, head_dim=8, sliding_window=4)
    return transformers.MistralForCausalLM(config)


def build_qwen2() -> nn.Module:
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**GROUPED))


def build_gemma() -> nn.Module:
    return transformers.GemmaForCausalLM(transformers.GemmaConfig(**GROUPED, head_dim=8))


def build_phi() -> nn.Module:
    return transformers.PhiForCausalLM(transformers.PhiConfig(**GROUPED))


def build_gpt_neox() -> nn.Module:
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**SMALL))


def build_opt() -> nn.Module:
    config = transformers.OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        word_embed_proj_dim=16,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
        layerdrop=0.0,
    )
    return transformers.OPTForCausalLM(config)


def build_bloom() -> nn.Module:
    config = transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4)
    return transformers.BloomForCausalLM(config)


def build_electra() -> nn.Module:
    config = transformers.ElectraConfig(**SMALL, embedding_size=16)
    return transformers.ElectraForMaskedLM(config)


def build_bart() -> nn.Module:
    config = transformers.BartConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=32,
    )
    return transformers.BartForConditionalGeneration(config)


def batch(step: int, dp_rank: int, dp_size: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    tokens = torch.randint(3, VOCABULARY, (2, 8), generator=generator)
    return {"input_ids": tokens, "labels": tokens}


def loss(outputs: Any, _: dict[str, Tensor]) -> Tensor:
    return outputs.loss


def build_vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=16,
        patch_size=8,
    )
    return transformers.ViTForImageClassification(config)


def batch_vit(step: int, dp_rank: int, dp_size: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator)}


def loss_vit(outputs: Any, _: dict[str, Tensor]) -> Tensor:
    return outputs.logits.square().mean()


def build_clip() -> nn.Module:
    towers = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config = transformers.CLIPConfig(
        text_config={**towers, "vocab_size": VOCABULARY, "max_position_embeddings": 32},
        vision_config={**towers, "image_size": 16, "patch_size": 8},
        projection_dim=16,
    )
    return transformers.CLIPModel(config)


def batch_clip(step: int, dp_rank: int, dp_size: int) -> dict[str, Any]:
    tokens = batch(step, dp_rank, dp_size)["input_ids"]
    return {"input_ids": tokens, **batch_vit(step, dp_rank, dp_size), "return_loss": True}


def loss_clip(outputs: Any, _: dict[str, Any]) -> Tensor:
    return outputs.loss


def build_whisper() -> nn.Module:
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=32,
        num_mel_bins=8,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=8,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return transformers.WhisperForConditionalGeneration(config)


def batch_whisper(step: int, dp_rank: int, dp_size: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step * dp_size + dp_rank)
    sounds = torch.randn(2, 8, 16, generator=generator)
    return {"input_features": sounds, "labels": batch(step, dp_rank, dp_size)["labels"]}


def loss_whisper(outputs: Any, _: dict[str, Tensor]) -> Tensor:
    return outputs.loss
