"""Networks chosen when everything else was done, twice five, and tried once: `python -m tests.zoo --library later`."""

from __future__ import annotations

from functools import partial

import torch

from ..member import Member, Task, regression
from .timm_nets import build
from .transformers_nets import TEXT, language_model, text_classifier

DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 32}
MIXTRAL = {**TEXT, "num_key_value_heads": 2, "num_local_experts": 4}
MAMBA = {"vocab_size": 500, "hidden_size": 96, "num_hidden_layers": 2, "state_size": 8}


def diffusion_transformer() -> Task:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=4, attention_head_dim=32, num_layers=2, in_channels=4, out_channels=4, sample_size=16,
        num_embeds_ada_norm=100, norm_num_groups=4,
    )  # fmt: skip
    noisy, times, classes = torch.randn(4, 4, 16, 16), torch.tensor([1, 5, 20, 90]), torch.tensor([1, 2, 3, 4])
    return Task(model, (noisy, times, classes), regression(torch.randn(4, 4, 16, 16)))


def joint_diffusion_transformer() -> Task:
    from diffusers import SD3Transformer2DModel

    model = SD3Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=32, num_attention_heads=4,
        joint_attention_dim=64, caption_projection_dim=128, pooled_projection_dim=48, pos_embed_max_size=16,
    )  # fmt: skip
    named = {
        "hidden_states": torch.randn(4, 4, 16, 16), "encoder_hidden_states": torch.randn(4, 7, 64),
        "pooled_projections": torch.randn(4, 48), "timestep": torch.tensor([1, 5, 20, 90]),
    }  # fmt: skip
    return Task(model, (), regression(torch.randn(4, 4, 16, 16)), named)


FIRST_FIVE = [
    Member("rexnet_100", "later", "convolution", partial(build, "rexnet_100", 64, 4)),
    Member("cait_xxs24_224", "later", "attention", partial(build, "cait_xxs24_224", 64, 4, img_size=64, depth=2)),
    Member("Mamba", "later", "other", partial(language_model, "MambaForCausalLM", "MambaConfig", **MAMBA), 0.05),
    Member(
        "DeBERTa v2", "later", "attention",
        partial(text_classifier, "DebertaV2ForSequenceClassification", "DebertaV2Config", **DEBERTA, **TEXT),
    ),
    Member("DiT", "later", "attention", diffusion_transformer),
]  # fmt: skip
SECOND_FIVE = [
    Member("fastvit_t8", "later", "convolution", partial(build, "fastvit_t8", 64, 4)),
    Member("xcit_nano_12_p16_224", "later", "attention", partial(build, "xcit_nano_12_p16_224", 64, 4, img_size=64, depth=3)),
    Member(
        "ALBERT", "later", "attention",
        partial(text_classifier, "AlbertForSequenceClassification", "AlbertConfig", embedding_size=64, **TEXT),
    ),
    Member("Mixtral", "later", "attention", partial(language_model, "MixtralForCausalLM", "MixtralConfig", **MIXTRAL)),
    Member("Stable Diffusion 3's transformer", "later", "attention", joint_diffusion_transformer),
]  # fmt: skip
MEMBERS = FIRST_FIVE + SECOND_FIVE
