"""Quantization-aware fine-tuning: zeros stay, runs resume exactly, plain models come out."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import autosparse
from autosparse.quantization.affine import quantize_weight, weight_scales

from ..conftest import Loop, small_net
from ..states import differences

METHODS = [
    autosparse.AutoSparse(alpha=0.75, target_sparsity=0.6, target_ramp=0.5),
    autosparse.GMP(sparsity=0.6, end=0.5),
    autosparse.RigL(sparsity=0.6),
]


def loop_of(method: autosparse.methods.Method, seed: int = 0) -> Loop:
    torch.manual_seed(seed)
    return Loop(small_net(), method, epochs=4, steps=4, exclude=("4",))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.about.name)
def test_zeros_stay_and_finalize_gives_weights_that_quantize_to_themselves(method):
    loop = loop_of(method)
    keys = list(small_net().state_dict())
    loop.epoch()
    loop.epoch()
    autosparse.quantize_aware(loop.sp, [loop.x, (loop.x, loop.y)])
    losses = [loop.epoch(), loop.epoch()]
    assert all(map(math.isfinite, losses))
    sparsity = loop.sp.sparsity()
    assert sparsity == pytest.approx(0.6, abs=0.02)
    # what the forward pass sees, before and after
    seen = {
        name: module.weight.detach().clone() for name, module in loop.model.named_modules() if isinstance(module, nn.Linear)
    }
    dense = loop.sp.dense_state_dict()
    active = {layer.name: layer.active().clone() for layer in loop.sp.layers}
    model = loop.sp.finalize()
    assert list(model.state_dict()) == keys == list(dense)
    assert differences(dict(model.state_dict()), dense) == []
    for name, weight in seen.items():
        assert torch.equal(model.get_submodule(name).weight, weight)
        scales = weight_scales(weight)
        assert torch.equal(quantize_weight(weight, scales).float() * scales[:, None], weight)
        if name in active:
            assert bool((weight[~active[name]] == 0).all())
    assert all(
        type(module) in (nn.Sequential, nn.Linear, nn.ReLU) and not module._forward_pre_hooks for module in model.modules()
    )


def test_training_feels_the_quantization():
    loop = loop_of(METHODS[0])
    plain = loop.model(loop.x)
    autosparse.quantize_aware(loop.sp, [loop.x])
    rounded = loop.model(loop.x)
    assert 0 < float((rounded - plain).detach().abs().max()) < 0.1 * float(plain.detach().abs().max())
    before = loop.model[0].parametrizations.weight.original.detach().clone()
    loop.step()
    assert not torch.equal(loop.model[0].parametrizations.weight.original, before)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.about.name)
def test_resume_is_exact(method):
    whole = loop_of(method)
    whole.epoch()
    autosparse.quantize_aware(whole.sp, [whole.x])
    whole.epoch()
    saved = copy.deepcopy((whole.model.state_dict(), whole.opt.state_dict(), whole.sp.state_dict()))
    expected = [whole.epoch(), whole.epoch()]

    resumed = loop_of(method, seed=5)
    autosparse.quantize_aware(resumed.sp, [torch.randn(2, 10)])  # the saved ranges take the place of these
    resumed.model.load_state_dict(saved[0])
    resumed.opt.load_state_dict(saved[1])
    resumed.sp.load_state_dict(saved[2])
    assert [resumed.epoch(), resumed.epoch()] == expected
    assert differences(dict(resumed.model.state_dict()), dict(whole.model.state_dict())) == []


def test_a_plain_model_and_ranges():
    model, x = small_net(), torch.rand(8, 10)
    aware = autosparse.quantize_aware(model, [x], exclude=("4",))
    assert list(aware.ranges) == ["0", "2"]
    assert aware.ranges["0"] == (float(x.min()), float(x.max()))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).square().sum().backward()
    opt.step()
    plain = aware.finalize()
    assert plain is model
    assert list(plain.state_dict()) == list(small_net().state_dict())
    autosparse.deploy(plain.eval(), x, threads=1)


def test_averaged_copies_are_made_plain_too():
    loop = loop_of(METHODS[0])
    autosparse.quantize_aware(loop.sp, [loop.x])
    average = torch.optim.swa_utils.AveragedModel(loop.model)
    loop.epoch()
    average.update_parameters(loop.model)
    plain = loop.sp.finalize_average(average)
    assert list(plain.state_dict()) == list(small_net().state_dict())
    loop.epoch()  # the run itself goes on


def test_what_is_refused(tmp_path):
    with pytest.raises(ValueError, match="calibration is empty"):
        autosparse.quantize_aware(small_net(), [])
    with pytest.raises(ValueError, match="0: the calibration data give NaN"):
        autosparse.quantize_aware(small_net(), [torch.full((2, 10), math.nan)])
    with pytest.raises(ValueError, match="'fc' matches no linear"):
        autosparse.quantize_aware(small_net(), [torch.ones(2, 10)], exclude=("fc",))
    with pytest.raises(ValueError, match="reach no linear"):
        autosparse.quantize_aware(nn.Sequential(nn.ReLU()), [torch.ones(2, 10)])
    with pytest.raises(TypeError, match="a model or a Sparsifier"):
        autosparse.quantize_aware("net", [torch.ones(2, 10)])
    model = small_net()
    autosparse.quantize_aware(model, [torch.ones(2, 10)])
    with pytest.raises(ValueError, match="already"):
        autosparse.quantize_aware(model, [torch.ones(2, 10)])
    for use in (
        lambda: autosparse.save_sparse(model, tmp_path / "file"),
        lambda: autosparse.deploy(model, torch.ones(2, 10)),
    ):
        with pytest.raises(ValueError, match="fake quantization: call finalize"):
            use()


def test_models_of_transformers_and_their_tied_weights():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    keys = list(model.state_dict())
    sp = autosparse.sparsify(model, METHODS[0], epochs=2, steps_per_epoch=2, exclude=("lm_head",))
    batch = {"input_ids": torch.randint(50, (2, 8))}
    aware = autosparse.quantize_aware(sp, [batch])
    assert {"transformer.h.0.attn.c_attn", "lm_head"} <= set(aware.ranges)
    opt = torch.optim.AdamW(sp.param_groups(), lr=1e-3)
    sp.bind(opt)
    for _ in range(2):
        model(**batch, labels=batch["input_ids"]).loss.backward()
        opt.step()
        opt.zero_grad()
    plain = sp.finalize()
    assert list(plain.state_dict()) == keys
    assert plain.lm_head.weight is plain.transformer.wte.weight
