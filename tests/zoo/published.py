"""Networks at their published sizes, for timing; none is downloaded, all weights are random."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from .member import Task, classification
from .members import torch_nets


def image_net(name: str, rows: int, size: int = 224) -> Task:
    from .members.timm_nets import timm

    return Task(timm.create_model(name), (torch.randn(rows, 3, size, size),), classification(torch.randint(1000, (rows,))))


def text_net(name: str, config: str, rows: int, length: int = 128, **sizes: int) -> Task:
    import transformers

    from .member import its_own

    model = getattr(transformers, name)(getattr(transformers, config)(**sizes))
    ids = torch.randint(5, 10_000, (rows, length))
    labels = ids if "LM" in name else torch.randint(2, (rows,))
    return Task(model, (), its_own, {"input_ids": ids}, {"labels": labels})


def llama() -> Task:
    """Llama's architecture at the size of GPT-2 small (llama-160m)."""
    sizes = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    return text_net("LlamaForCausalLM", "LlamaConfig", 2, **sizes)


def t5_small() -> Task:
    import transformers

    from .member import its_own

    model = transformers.T5ForConditionalGeneration(transformers.T5Config(decoder_start_token_id=0))
    source, target = torch.randint(5, 10_000, (4, 128)), torch.randint(5, 10_000, (4, 128))
    return Task(model, (), its_own, {"input_ids": source, "decoder_input_ids": target}, {"labels": target})


def whisper_tiny() -> Task:
    import transformers

    from .member import its_own

    words = torch.randint(5, 10_000, (1, 64))
    named = {"input_features": torch.randn(1, 80, 3000), "decoder_input_ids": words}
    return Task(
        transformers.WhisperForConditionalGeneration(transformers.WhisperConfig()), (), its_own, named, {"labels": words}
    )


def unet() -> Task:
    images, labels = torch.randn(4, 3, 128, 128), torch.randint(5, (4, 128, 128))
    return Task(torch_nets.UNet(64), (images,), classification(labels))


# At batches of these sizes a plain step takes at least 200 ms on one core.
PUBLISHED: dict[str, Callable[[], Task]] = {
    "resnet18": partial(image_net, "resnet18", 8),
    "resnet50": partial(image_net, "resnet50", 4),
    "resnext50_32x4d": partial(image_net, "resnext50_32x4d", 4),
    "vgg16_bn": partial(image_net, "vgg16_bn", 2),
    "densenet121": partial(image_net, "densenet121", 4),
    "regnety_032": partial(image_net, "regnety_032", 4),
    "mobilenetv2_100": partial(image_net, "mobilenetv2_100", 16),
    "mobilenetv3_large_100": partial(image_net, "mobilenetv3_large_100", 16),
    "efficientnet_b0": partial(image_net, "efficientnet_b0", 8),
    "convnext_tiny": partial(image_net, "convnext_tiny", 4),
    "vit_small_patch16_224": partial(image_net, "vit_small_patch16_224", 4),
    "swin_tiny_patch4_window7_224": partial(image_net, "swin_tiny_patch4_window7_224", 4),
    "mixer_b16_224": partial(image_net, "mixer_b16_224", 4),
    "BERT base": partial(text_net, "BertForSequenceClassification", "BertConfig", 4),
    "DistilBERT": partial(text_net, "DistilBertForSequenceClassification", "DistilBertConfig", 4),
    "GPT-2 small": partial(text_net, "GPT2LMHeadModel", "GPT2Config", 2),
    "Llama, 160 million": llama,
    "T5 small": t5_small,
    "Whisper tiny": whisper_tiny,
    "U-Net": unet,
}
