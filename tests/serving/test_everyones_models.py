"""Models that nobody here wrote, from configurations of transformers: the plain model's outputs, caches and tokens."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autosparse.kernels import library
from autosparse.serving import Deployed, deploy
from autosparse.serving.agreement import agree
from autosparse.serving.linear import PackedLinear
from autosparse.serving.native import NativeRegion

transformers: Any = pytest.importorskip("transformers")
pytestmark = [pytest.mark.filterwarnings("ignore:deploy"), pytest.mark.usefixtures("native_wins")]
needs_engine = pytest.mark.skipif(library.engine() is None, reason=f"no engine: {library.why_not()}")

Inputs = dict[str, Tensor]
TEXT = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
PICTURE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": 16}
SPEECH = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
WAVES = {"conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2}


def words(batch: int, length: int) -> Inputs:
    ids = torch.randint(3, 60, (batch, length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def pictures(batch: int, _: int) -> Inputs:
    return {"pixel_values": torch.randn(batch, 3, 16, 16)}


def sounds(batch: int, _: int) -> Inputs:
    return {"input_features": torch.randn(batch, 16, 40)}


def waves(batch: int, length: int) -> Inputs:
    return {"input_values": torch.randn(batch, 100 * length)}


def gpt2() -> nn.Module:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 60}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2))


def llama() -> nn.Module:
    config = transformers.LlamaConfig(**TEXT | {"num_hidden_layers": 2}, num_key_value_heads=2)
    return transformers.LlamaForCausalLM(config)


def whisper_encoder() -> nn.Module:
    config = transformers.WhisperConfig(
        **SPEECH, vocab_size=60, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=16, max_source_positions=20,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    encoder: nn.Module = transformers.WhisperModel(config).encoder
    return encoder


def t5_encoder() -> nn.Module:
    sizes = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4}
    return transformers.T5EncoderModel(transformers.T5Config(**sizes))


def swin() -> nn.Module:
    sizes = {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}
    return transformers.SwinModel(transformers.SwinConfig(**sizes))


def of(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(transformers, model)(getattr(transformers, config)(**settings))


DISTIL = {"vocab_size": 60, "dim": 32, "hidden_dim": 48, "n_layers": 1, "n_heads": 4}
CONVNEXT = {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "patch_size": 2}
SEGFORMER = {"hidden_sizes": [16] * 4, "depths": [1] * 4, "num_attention_heads": [1, 1, 2, 2], "sr_ratios": [2, 2, 1, 1]}
RESNET = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}
WAV2VEC = {**TEXT, **WAVES, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], Inputs]]] = {
    "gpt2": (gpt2, words),
    "llama": (llama, words),
    "bert": (of("BertForSequenceClassification", "BertConfig", **TEXT), words),
    "distilbert": (of("DistilBertModel", "DistilBertConfig", **DISTIL), words),
    "roberta": (of("RobertaModel", "RobertaConfig", **TEXT), words),
    "t5 encoder": (t5_encoder, words),
    "vit": (of("ViTForImageClassification", "ViTConfig", **PICTURE, patch_size=4), pictures),
    "swin": (swin, pictures),
    "convnext": (of("ConvNextModel", "ConvNextConfig", **CONVNEXT), pictures),
    "resnet": (of("ResNetForImageClassification", "ResNetConfig", **RESNET), pictures),
    "segformer": (of("SegformerForSemanticSegmentation", "SegformerConfig", **SEGFORMER), pictures),
    "whisper encoder": (whisper_encoder, sounds),
    "wav2vec2": (of("Wav2Vec2Model", "Wav2Vec2Config", **WAV2VEC), waves),
}


def pruned(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    model = build()
    with torch.no_grad():
        for module in model.modules():
            weight = module._parameters.get("weight")
            if weight is not None and weight.dim() > 1 and not isinstance(module, nn.Embedding):
                weight *= torch.rand_like(weight) < 0.2
    return model.eval()


def assert_same(deployed: Deployed, model: nn.Module, inputs: Inputs) -> None:
    with torch.no_grad():
        expected = model(**inputs)
    result = deployed(**inputs)
    assert type(result) is type(expected)
    assert agree(result, expected)


@needs_engine
@pytest.mark.parametrize("name", MODELS)
def test_the_same_outputs_at_other_batches_and_lengths(name: str) -> None:
    build, inputs = MODELS[name]
    model = pruned(build)
    deployed = deploy(model, inputs(2, 6), threads=1)
    for batch, length in ((2, 6), (1, 3), (3, 11)):
        assert_same(deployed, model, inputs(batch, length))
    rows = deployed.layers(inputs(2, 6))
    computed = [row.name for row in rows if row.how != "torch"]
    weights = {key.removesuffix(".weight") for key in model.state_dict()}
    assert computed
    assert all(part in weights for row in rows for part in row.name.split(" + ") if "pos_conv" not in part)
    assert all(row.reason for row in rows if row.how == "torch")


@needs_engine
@pytest.mark.parametrize("build", [gpt2, llama])
def test_decoders_generate_with_their_own_cache(build: Callable[[], nn.Module]) -> None:
    model = pruned(build)
    prompt = words(2, 5)
    deployed = deploy(model, prompt, threads=1)
    linear = [part for part in deployed.modules() if isinstance(part, PackedLinear)]
    assert len(linear) >= 9
    (note,) = deployed.notes
    assert "generate() needs it: everything but its linear layers and convolutions stays in torch" in note
    assert not any(isinstance(part, nn.Linear) for part in deployed.modules())
    for settings in ({}, {"num_beams": 2}):
        options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0, **settings}
        assert torch.equal(deployed.generate(**prompt, **options), model.generate(**prompt, **options))  # type: ignore[operator]


@needs_engine
def test_a_cache_goes_in_and_comes_out() -> None:
    model = pruned(llama)
    deployed = deploy(model, words(1, 4), threads=1)
    ids = words(1, 5)["input_ids"]
    caches = []
    for served in (model, deployed):
        with torch.no_grad():
            first = served(input_ids=ids[:, :4], use_cache=True)
            caches.append(served(input_ids=ids[:, 4:], past_key_values=first.past_key_values))
    assert agree(caches[1], caches[0])
    assert caches[1].past_key_values.get_seq_length() == 5


@needs_engine
def test_a_cache_in_the_example_is_not_extended() -> None:
    model = pruned(llama)
    with torch.no_grad():
        cache = model(**words(1, 3)).past_key_values
    deploy(model, {"input_ids": words(1, 1)["input_ids"], "past_key_values": cache}, threads=1)
    assert cache.get_seq_length() == 3


def test_a_batch_encoding_is_an_example() -> None:
    model = pruned(MODELS["bert"][0])
    batch = transformers.BatchEncoding(words(2, 4))
    assert_same(deploy(model, batch, threads=1), model, dict(batch))


@needs_engine
def test_patch_embeddings_run_natively() -> None:
    """ViT looks at the type of its convolution's weight, Swin at its padding: what stands there answers."""
    for name in ("vit", "swin"):
        build, inputs = MODELS[name]
        deployed = deploy(pruned(build), inputs(2, 0), threads=1)
        regions = [part for part in deployed.modules() if isinstance(part, NativeRegion)]
        assert any("projection" in name for region in regions for name in region.layer_names())


@pytest.mark.parametrize(
    "wrong",
    [
        {"input_ids": torch.randint(3, 60, (2, 6)).float()},
        {"input_ids": torch.randint(3, 60, (2, 2, 6))},
        {"input_ids": torch.full((2, 6), 60)},
        {"inputs_embeds": torch.randn(2, 6, 31)},
        {"input_ids": torch.randint(3, 60, (2, 6)), "token_type_ids": torch.zeros(2, 6)},
        {"input_ids": [[3, 4]]},
        {"no_such_argument": torch.ones(2, 6)},
        {},
    ],
    ids=["float", "rank", "unknown word", "width", "types", "list", "name", "nothing"],
)
def test_wrong_keyword_inputs_are_refused_as_by_the_plain_model(wrong: dict[str, Any]) -> None:
    model = pruned(MODELS["bert"][0])
    deployed = deploy(model, words(2, 6), threads=1)
    with pytest.raises(Exception) as expected, torch.no_grad():  # noqa: PT011  whatever the plain model raises
        model(**wrong)
    with pytest.raises(type(expected.value)) as raised:
        deployed(**wrong)
    assert str(raised.value) == str(expected.value)


@needs_engine
def test_threads_share_a_deployed_encoder() -> None:
    model = pruned(MODELS["bert"][0])
    deployed = deploy(model, words(2, 6), threads=1)
    batches = [words(batch, length) for batch in (1, 2, 5) for length in range(2, 10)]
    with torch.no_grad():
        expected = [model(**batch) for batch in batches]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda batch: deployed(**batch), batches * 4))
    assert all(agree(result, wanted) for result, wanted in zip(results, expected * 4, strict=True))


def test_without_the_library_everything_stays_in_torch(choose_kernels: Callable[[str], None]) -> None:
    choose_kernels("off")
    model = pruned(MODELS["vit"][0])
    deployed = deploy(model, pictures(2, 0), threads=1)
    assert_same(deployed, model, pictures(3, 0))
    assert any("all layers run in dense torch" in note for note in deployed.notes)


class Skipping(nn.Module):
    """One layer is for other inputs than the example's, another is read and never called, a third has a weight norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rare, self.read = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(6, 6, 3, padding=1))
        self.taps = nn.Conv1d(6, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(self.conv(x).transpose(1, 2)) @ self.read.weight * self.taps.weight.mean()
        return y if float(y.abs().max()) < 1e3 else self.rare(y)


@needs_engine
def test_layers_that_are_read_or_not_reached() -> None:
    torch.manual_seed(0)
    model, x = Skipping().eval(), torch.randn(2, 6, 9)
    deployed = deploy(model, x, threads=1)
    for value in (x, x * 1e5):
        with torch.no_grad():
            assert agree(deployed(value), model(value))
    rows = {row.name: row for row in deployed.layers(x)}
    assert rows.keys() == {"first", "rare", "read", "conv", "taps"}
    assert rows["conv"].how != "torch"
    for name in ("rare", "read", "taps"):
        assert rows[name].reason == "the example does not call it; Skipping may compute with its weight itself"


def test_the_parametrizations_of_others_become_weights_in_the_copy_alone() -> None:
    """Wav2Vec2 has a weight norm, which the plain model keeps."""
    model = pruned(MODELS["wav2vec2"][0])
    keys = list(model.state_dict())
    deploy(model, waves(1, 6), threads=1)
    assert list(model.state_dict()) == keys
    model(**waves(1, 6))
