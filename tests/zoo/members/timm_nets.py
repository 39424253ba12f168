"""Networks of timm, most of them with fewer blocks than published: names, stages and widths are timm's own."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ..member import Member, Task, classification
from ..torchvision_stand_in import torchvision_or_stand_in

with torchvision_or_stand_in():
    import timm

SHALLOW = {"layers": (1, 1, 1, 1)}


def build(name: str, size: int, rows: int, **options: Any) -> Task:
    model = timm.create_model(name, num_classes=10, **options)
    return Task(model, (torch.randn(rows, 3, size, size),), classification(torch.randint(10, (rows,))))


def convolution(name: str, size: int = 64, rows: int = 4, traits: dict[str, Any] | None = None, **options: Any) -> Member:
    return Member(name, "timm", "convolution", partial(build, name, size, rows, **options), **(traits or {}))


def attention(name: str, size: int = 64, rows: int = 4, traits: dict[str, Any] | None = None, **options: Any) -> Member:
    return Member(name, "timm", "attention", partial(build, name, size, rows, **options), **(traits or {}))


def mixing(name: str, size: int = 64, rows: int = 4, **options: Any) -> Member:
    return Member(name, "timm", "other", partial(build, name, size, rows, **options), 0.01)


MEMBERS = [
    convolution("resnet18", traits={"all_precisions": True, "compiles": "aot_eager", "in_two_processes": True}, **SHALLOW),
    convolution("resnet50", traits={"all_precisions": True, "in_two_processes": True}, **SHALLOW),
    convolution("resnext50_32x4d", **SHALLOW),
    convolution("seresnet50", **SHALLOW),
    convolution("resnetv2_50", **SHALLOW),
    convolution("res2net50_26w_4s", **SHALLOW),
    convolution("skresnet18", **SHALLOW),
    convolution("resnetblur18", **SHALLOW),
    convolution("regnetx_002"),
    convolution("regnety_002"),
    convolution("densenet121", block_config=(2, 4, 4, 2)),
    convolution("vgg11_bn", mlp_ratio=0.05),
    convolution("repvgg_a0"),
    convolution("xception41", rows=2),
    convolution("efficientnet_b0", traits={"all_precisions": True, "in_two_processes": True}),
    convolution("mobilenetv2_100", traits={"all_precisions": True}),
    convolution("mobilenetv3_large_100"),
    convolution("ghostnet_100", size=96),
    convolution("hrnet_w18_small"),
    convolution("eca_nfnet_l0", rows=2, traits={"sgd_rate": 0.002}, depths=(1, 1, 1, 1)),
    convolution("convnext_atto", traits={"compiles": "aot_eager"}),
    attention("vit_tiny_patch16_224", img_size=64, depth=3, traits={"compiles": "aot_eager"}),
    attention("deit_tiny_distilled_patch16_224", img_size=64, depth=3),
    attention("swin_tiny_patch4_window7_224", img_size=64, window_size=4, embed_dim=48, depths=(1, 1, 1), num_heads=(2, 4, 8)),
    attention("maxvit_nano_rw_256", img_size=64),
    attention("levit_128s", size=224, rows=2),
    attention("mobilevit_xxs"),
    attention("efficientvit_b0"),
    mixing("mixer_s32_224", img_size=64),
    mixing("resmlp_12_224", img_size=64),
    mixing("gmlp_ti16_224", img_size=64),
    mixing("poolformer_s12"),
]
