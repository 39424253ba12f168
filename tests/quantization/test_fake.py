"""What fake quantization does to numbers and gradients, by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autosparse.quantization.affine import dequantize_weight, quantize_weight, weight_scales
from autosparse.quantization.fake import FakeQuantizedInput, FakeQuantizedWeight, attach_input, attach_weight, remove


@pytest.mark.parametrize("channel_dim", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_what_quantizing_and_back_gives(channel_dim, dtype):
    weight = (torch.randn(6, 5, 3, 3) * (torch.rand(6, 5, 3, 3) < 0.5)).to(dtype)
    weight[2] = 0
    rounded = FakeQuantizedWeight(channel_dim)(weight)
    rows = weight.movedim(channel_dim, 0)
    scales = weight_scales(rows)
    expected = dequantize_weight(quantize_weight(rows, scales), scales).to(dtype).movedim(0, channel_dim)
    assert torch.equal(rounded, expected)
    assert bool((rounded[weight == 0] == 0).all())


def test_every_weight_receives_its_gradient():
    weight = torch.tensor([[1.27, 0.004, 0.0, -0.5]], requires_grad=True)
    (FakeQuantizedWeight()(weight) * torch.tensor([[1.0, 2.0, 3.0, 4.0]])).sum().backward()
    assert weight.grad.tolist() == [[1, 2, 3, 4]]


def test_inputs_by_hand():
    quantizer = FakeQuantizedInput(-1.0, 254.0, torch.device("cpu"))  # a step of 1, zero point 1
    x = torch.tensor([-7.0, -1.0, 0.4, 0.6, 254.0, 300.0], requires_grad=True)
    rounded = quantizer(x)
    assert rounded.tolist() == [-1, -1, 0, 1, 254, 254]
    rounded.sum().backward()
    assert x.grad.tolist() == [0, 1, 1, 1, 1, 0]
    assert quantizer(torch.tensor([0.4], dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_remove_leaves_rounded_weights_in_the_models_own_order():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    keys, ids = list(model.state_dict()), [id(parameter) for parameter in model.parameters()]
    attach_weight(model[0], "weight", 0)
    attach_input(model[0], 0.0, 1.0)
    expected = model[0].weight.detach().clone()
    x = torch.rand(5, 4)
    assert not torch.equal(model(x), nn.functional.linear(x, model[0].weight, model[0].bias).relu() @ model[2].weight.T)
    remove(model)
    assert list(model.state_dict()) == keys
    assert [id(parameter) for parameter in model.parameters()] == ids
    assert torch.equal(model[0].weight, expected)
    assert not model[0]._forward_pre_hooks
    assert type(model[0]) is nn.Linear
