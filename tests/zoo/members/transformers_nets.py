"""Hugging Face networks from small configurations of their own classes; nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn

from ..member import Member, Task, its_own

TEXT = {
    "vocab_size": 500,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "max_position_embeddings": 64,
}
IMAGE = {"image_size": 64, "num_labels": 10}


def build(name: str, config: str, **options: Any) -> nn.Module:
    """`name` is the class of the model, `config` that of its configuration."""
    model: nn.Module = getattr(transformers, name)(getattr(transformers, config)(**options))
    return model


def tokens(length: int = 32, rows: int = 8) -> Tensor:
    return torch.randint(5, 500, (rows, length))


def text_classifier(name: str, config: str, **options: Any) -> Task:
    """Called with a mask, as a tokenizer gives it: the second half of the rows is shorter."""
    ids, mask = tokens(), torch.ones(8, 32, dtype=torch.long)
    mask[4:, 24:] = 0
    model = build(name, config, num_labels=10, **options)
    return Task(model, (), its_own, {"input_ids": ids, "attention_mask": mask}, {"labels": torch.randint(10, (8,))})


def language_model(name: str, config: str, **options: Any) -> Task:
    """With its default cache of keys and values."""
    ids = tokens()
    return Task(build(name, config, **options), (), its_own, {"input_ids": ids}, {"labels": ids})


def t5() -> Task:
    options = {"vocab_size": 500, "d_model": 128, "d_kv": 32, "d_ff": 512, "num_layers": 2, "num_heads": 4}
    source, target = tokens(24), tokens(16)
    model = build("T5ForConditionalGeneration", "T5Config", decoder_start_token_id=0, **options)
    return Task(model, (), its_own, {"input_ids": source, "decoder_input_ids": target}, {"labels": target})


def bart() -> Task:
    layers = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes = {"vocab_size": 500, "d_model": 128, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512, "max_position_embeddings": 64}
    source, target = tokens(24), tokens(16)
    model = build("BartForConditionalGeneration", "BartConfig", **sizes, **layers)
    return Task(model, (), its_own, {"input_ids": source, "decoder_input_ids": target}, {"labels": target})


def image_classifier(name: str, config: str, size: int = 64, rows: int = 8, **options: Any) -> Task:
    model = build(name, config, num_labels=10, **options)
    pixels = torch.randn(rows, 3, size, size)
    return Task(model, (), its_own, {"pixel_values": pixels}, {"labels": torch.randint(10, (rows,))})


def whisper() -> Task:
    layers = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes = {"d_model": 128, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512, "vocab_size": 500, "max_source_positions": 100}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    model = build("WhisperForConditionalGeneration", "WhisperConfig", max_target_positions=32, **sizes, **layers, **special)
    words = tokens(16, 4)
    named = {"input_features": torch.randn(4, 80, 200), "decoder_input_ids": words}
    return Task(model, (), its_own, named, {"labels": words})


def wav2vec2() -> Task:
    text = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
    sound = {"conv_dim": (64,) * 3, "conv_stride": (5, 4, 4), "conv_kernel": (10, 8, 4), "num_conv_pos_embeddings": 16}
    more = {"num_conv_pos_embedding_groups": 4, "num_feat_extract_layers": 3, "vocab_size": 32, "mask_time_prob": 0.0}
    model = build("Wav2Vec2ForCTC", "Wav2Vec2Config", **text, **sound, **more)
    return Task(model, (), its_own, {"input_values": torch.randn(4, 4000)}, {"labels": torch.randint(1, 32, (4, 10))})


def segformer() -> Task:
    sizes = {
        "hidden_sizes": [32, 64, 96, 128],
        "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 2, 3, 4],
        "decoder_hidden_size": 96,
    }
    model = build("SegformerForSemanticSegmentation", "SegformerConfig", num_labels=5, **sizes)
    return Task(model, (), its_own, {"pixel_values": torch.randn(4, 3, 96, 96)}, {"labels": torch.randint(5, (4, 96, 96))})


def boxes(rows: int = 4) -> list[dict[str, Tensor]]:
    return [{"class_labels": torch.randint(5, (2,)), "boxes": torch.rand(2, 4) * 0.4 + 0.3} for _ in range(rows)]


def yolos() -> Task:
    sizes = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 384}
    more = {"image_size": [96, 96], "patch_size": 16, "num_detection_tokens": 10, "num_labels": 5}
    model = build("YolosForObjectDetection", "YolosConfig", **sizes, **more)
    return Task(model, (), its_own, {"pixel_values": torch.randn(4, 3, 96, 96)}, {"labels": boxes()})


def detr() -> Task:
    backbone = transformers.ResNetConfig(
        embedding_size=32, hidden_sizes=[32, 64, 128, 256], depths=[1, 1, 1, 1], layer_type="basic", out_features=["stage4"]
    )
    layers = {"encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes = {"d_model": 96, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256, "num_queries": 10, "num_labels": 5}
    model = build(
        "DetrForObjectDetection",
        "DetrConfig",
        use_timm_backbone=False,
        backbone=None,
        backbone_config=backbone,
        **sizes,
        **layers,
    )
    return Task(model, (), its_own, {"pixel_values": torch.randn(4, 3, 128, 128)}, {"labels": boxes()})


def gpt2() -> Task:
    return language_model("GPT2LMHeadModel", "GPT2Config", vocab_size=500, n_positions=64, n_embd=128, n_layer=2, n_head=4)


def distilbert() -> Task:
    sizes = {"vocab_size": 500, "dim": 128, "n_layers": 2, "n_heads": 4, "hidden_dim": 512, "max_position_embeddings": 64}
    return text_classifier("DistilBertForSequenceClassification", "DistilBertConfig", **sizes)


def vit() -> Task:
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
    return image_classifier("ViTForImageClassification", "ViTConfig", image_size=64, patch_size=16, **sizes)


def swin() -> Task:
    sizes = {"embed_dim": 32, "depths": [1, 1, 2], "num_heads": [1, 2, 4], "window_size": 4}
    return image_classifier("SwinForImageClassification", "SwinConfig", image_size=64, **sizes)


def convnext() -> Task:
    return image_classifier(
        "ConvNextForImageClassification", "ConvNextConfig", hidden_sizes=[48, 96, 192, 256], depths=[1, 1, 2, 1]
    )


def resnet() -> Task:
    sizes = {"embedding_size": 64, "hidden_sizes": [128, 256], "depths": [2, 2], "layer_type": "bottleneck"}
    return image_classifier("ResNetForImageClassification", "ResNetConfig", **sizes)


MEMBERS = [
    Member("BERT", "transformers", "attention", lambda: text_classifier("BertForSequenceClassification", "BertConfig", **TEXT),
           all_precisions=True, compiles="aot_eager", in_two_processes=True),
    Member("DistilBERT", "transformers", "attention", distilbert),
    Member("RoBERTa", "transformers", "attention",
           lambda: text_classifier("RobertaForSequenceClassification", "RobertaConfig", pad_token_id=1, **TEXT)),
    Member("GPT-2", "transformers", "attention", gpt2, 0.05, all_precisions=True, in_two_processes=True),
    Member("Llama", "transformers", "attention",
           lambda: language_model("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2, **TEXT), 0.1,
           all_precisions=True, compiles="aot_eager", in_two_processes=True),
    Member("Mistral", "transformers", "attention",
           lambda: language_model("MistralForCausalLM", "MistralConfig", num_key_value_heads=2, **TEXT), 0.1),
    Member("T5", "transformers", "attention", t5, 0.05),
    Member("BART", "transformers", "attention", bart, 0.05),
    Member("ViT (transformers)", "transformers", "attention", vit, 0.01, all_precisions=True, compiles="aot_eager"),
    Member("Swin (transformers)", "transformers", "attention", swin, 0.01),
    Member("ConvNext (transformers)", "transformers", "convolution", convnext, 0.02, in_two_processes=True),
    Member("ResNet (transformers)", "transformers", "convolution", resnet),
    Member("Whisper", "transformers", "attention", whisper, 0.05),
    Member("Wav2Vec2", "transformers", "attention", wav2vec2, 1e-4, 1e-4),
    Member("SegFormer (segmentation)", "transformers", "attention", segformer, 0.02),
    Member("YOLOS (detection)", "transformers", "attention", yolos, 0.002),
    Member("DETR (detection)", "transformers", "attention", detr, 0.002, 1e-4),
]  # fmt: skip
