"""Profile of whole models: published facts, what profiling leaves untouched, and its errors."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from autosparse import models
from autosparse.cost import LayerCost, Profile, profile


@pytest.fixture(scope="module")
def resnet50() -> Profile:
    with torch.device("meta"):
        return profile(models.resnet50(), torch.empty(1, 3, 224, 224))


class Shrink(nn.Module):
    """A parametrization with a parameter and products of its own."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.threshold = nn.Parameter(torch.zeros(1))
        self.register_buffer("turn", torch.eye(rows))

    def forward(self, weight: Tensor) -> Tensor:
        flat = self.turn @ weight.flatten(1)
        return flat.view_as(weight) - self.threshold


def test_resnet50_facts(resnet50: Profile) -> None:
    assert len(resnet50.layers) == 54
    assert resnet50.params == 25_502_912
    assert resnet50.macs == 4_089_184_256
    assert [layer.name for layer in resnet50.layers if layer.first] == ["conv1"]
    assert "layer1.0.conv1" in {layer.name for layer in resnet50.layers}


def test_mobilenet_v1_facts() -> None:
    with torch.device("meta"):
        counted = profile(models.mobilenet_v1(), torch.empty(2, 3, 224, 224))
    assert (len(counted.layers), counted.params, counted.macs) == (28, 4_209_088, 568_740_352)


@pytest.mark.parametrize(("sparsity", "fraction"), [(0.8, 0.2231), (0.9, 0.1260), (0.95, 0.0774)])
def test_uniform_sparsity_with_a_dense_first_layer(resnet50: Profile, sparsity: float, fraction: float) -> None:
    densities = {layer.name: 1 - sparsity for layer in resnet50.layers if not layer.first}
    assert resnet50.inference_fraction(densities) == pytest.approx(fraction, abs=5e-5)


def test_inference_fraction_of_named_layers() -> None:
    counted = Profile((LayerCost("a", "linear", 10, 30), LayerCost("b", "linear", 10, 70)))
    assert counted.inference_fraction({}) == 1
    assert counted.inference_fraction({"a": 0.5, "b": 0.1}) == pytest.approx(0.22)
    assert counted.inference_fraction({"a": 0.0}) == 0.7


def test_unknown_names_and_bad_densities(resnet50: Profile) -> None:
    with pytest.raises(ValueError, match=r"no layer 'layer1\.0\.conv11'; did you mean .*'layer1\.0\.conv1'"):
        resnet50.inference_fraction({"layer1.0.conv11": 0.5})
    for density in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=r"density of 'conv1' is .*\[0, 1\]"):
            resnet50.inference_fraction({"conv1": density})


def test_table_is_aligned_and_totals_are_last() -> None:
    lines = str(profile(nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 7)), torch.rand(1, 30))).splitlines()
    assert lines[2].split() == ["0", "linear", "40x30", "1,200", "1,200"]
    assert lines[-1].split() == ["total", "1,480", "1,480"]
    assert len({len(line) for line in lines}) == 1


def test_layers_are_frozen(resnet50: Profile) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        resnet50.layers[0].macs = 1


def _mixed() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 4, 3, padding=1)
            self.lstm = nn.LSTM(4, 6, bidirectional=True, batch_first=True)
            self.attn = nn.MultiheadAttention(12, 3, batch_first=True)
            self.kernel = nn.Parameter(torch.rand(12, 12))

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x).flatten(2).mT
            x = self.lstm(x)[0]
            x = self.attn(x, x, x, need_weights=False)[0]
            return F.linear(x, self.kernel) @ self.kernel.t()

    return Net()


def test_parametrized_model_has_the_same_profile() -> None:
    model, x = _mixed(), torch.rand(2, 2, 3, 3)
    plain = profile(model, x)
    for owner, name in [
        (model.conv, "weight"),
        (model.lstm, "weight_hh_l0"),
        (model.attn, "in_proj_weight"),
        (model.attn.out_proj, "weight"),
        (model, "kernel"),
    ]:
        rows = getattr(owner, name).shape[0]
        parametrize.register_parametrization(owner, name, Shrink(rows))
    assert profile(model, x) == plain
    with parametrize.cached():
        model(x)
        assert profile(model, x) == plain


def test_weight_norm_and_tied_parametrized_weights() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    model[1].weight = model[0].weight
    plain = profile(model, torch.rand(2, 4))
    parametrizations.weight_norm(model[2])
    shared = Shrink(4)
    for layer in model[:2]:
        parametrize.register_parametrization(layer, "weight", shared)
    assert profile(model, torch.rand(2, 4)) == plain
    assert plain.params == 16 + 12


def test_macs_are_per_sample() -> None:
    model = _mixed()
    results = {profile(model, torch.rand(batch, 2, 3, 3)) for batch in (1, 2, 5)}
    assert len(results) == 1


def test_tuple_dict_and_given_batch_size() -> None:
    model = nn.MultiheadAttention(8, 2)
    x = torch.rand(5, 3, 8)
    by_position = profile(model, (x, x, x), batch_size=3)
    assert profile(model, {"query": x, "key": x, "value": x}, batch_size=3) == by_position
    assert by_position.macs == 5 * 4 * 64 + 2 * 5 * 5 * 8


def test_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(36, 2))
    model.train()
    model[1].eval()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    profile(model, torch.ones(2, 3, 5, 5))
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model] == [True, False, True, True, True]
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


def test_random_numbers_in_the_forward_pass_do_not_move_the_state() -> None:
    class Noisy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + torch.rand_like(x))

    model = Noisy(3, 4)
    state = torch.get_rng_state()
    assert profile(model, torch.ones(2, 3)).macs == 12
    assert torch.equal(torch.get_rng_state(), state)


def test_rejected_input_names_shapes_and_cause_and_restores() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout()).train()
    with pytest.raises(ValueError, match=r"rejected the example input \[\(2, 5\)\]: RuntimeError: mat1") as caught:
        profile(model, torch.rand(2, 5))
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(ValueError, match=r"\[tokens=\(2, 3\)\]: TypeError: .*tokens"):
        profile(model, {"tokens": torch.rand(2, 3)})
    assert all(module.training for module in model.modules())
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert not torch.overrides._is_torch_function_mode_enabled()
    assert profile(model, torch.rand(2, 3)).macs == 12


def test_bad_arguments() -> None:
    model = nn.Linear(3, 4)
    with pytest.raises(TypeError, match=r"torch\.nn\.Module, not str"):
        profile("model", torch.rand(2, 3))
    with pytest.raises(TypeError, match=r"tensor, a tuple .* not list"):
        profile(model, [torch.rand(2, 3)])
    with pytest.raises(ValueError, match=r"no sample: \[\(0, 3\)\]"):
        profile(model, torch.rand(0, 3))
    with pytest.raises(ValueError, match="batch_size must be at least 1, not 0"):
        profile(model, torch.rand(2, 3), batch_size=0)


def test_compiled_model_is_profiled_eagerly() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))
    plain = profile(model, torch.rand(2, 3))
    assert profile(torch.compile(model, backend="eager"), torch.rand(2, 3)) == plain
    model[0].compile(backend="eager")
    model[1] = torch.compile(model[1], backend="eager")
    assert profile(model, torch.rand(2, 3)) == plain
