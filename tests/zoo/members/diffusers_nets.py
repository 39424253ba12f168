"""Networks of diffusers: U-Nets that denoise images, and an autoencoder."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel, UNet2DModel

from ..member import Member, Task, regression


def unet() -> Task:
    model = UNet2DModel(
        sample_size=16, block_out_channels=(64, 128), layers_per_block=1, norm_num_groups=16,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    noisy, times = torch.randn(4, 3, 16, 16), torch.tensor([1, 50, 200, 900])
    return Task(model, (noisy, times), regression(torch.randn(4, 3, 16, 16)))


def conditional_unet() -> Task:
    model = UNet2DConditionModel(
        sample_size=16, block_out_channels=(64, 128), layers_per_block=1, norm_num_groups=16, cross_attention_dim=64,
        attention_head_dim=8, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    noisy, times, text = torch.randn(2, 4, 16, 16), torch.tensor([1, 900]), torch.randn(2, 7, 64)
    return Task(model, (noisy, times, text), regression(torch.randn(2, 4, 16, 16)))


def autoencoder() -> Task:
    model = AutoencoderKL(
        block_out_channels=(32, 64), norm_num_groups=16, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    image = torch.randn(4, 3, 32, 32)
    return Task(model, (image,), regression(image))


MEMBERS = [
    Member("diffusion U-Net", "diffusers", "convolution", unet, 0.02),
    Member("Stable Diffusion's U-Net", "diffusers", "convolution", conditional_unet, 0.02),
    Member("AutoencoderKL", "diffusers", "convolution", autoencoder, 0.02),
]
