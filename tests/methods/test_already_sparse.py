"""Keep, Wanda, prune and keep_zeros: scores by hand and in NumPy, zeros that nothing fills."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

import autosparse
from autosparse import GMP, AutoSparse, Keep, Wanda, keep_zeros, prune
from tests.sparse_nets import prune_three_quarters


class Net(nn.Module):
    """A convolution with groups and one without, then blocks of linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)
        self.up = nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)) for _ in range(2))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(torch.relu(self.grouped(x))).mean((2, 3))
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


# ---------------------------------------------------------------------------------------------------------------------- Wanda


def test_wanda_in_numbers() -> None:
    """Columns of norm 1, 5, 2: the scores of the first row are 3, 5, 4, of the second 3, 10, 8."""
    model = nn.Sequential(nn.Linear(3, 2, bias=False))
    model[0].weight.data = torch.tensor([[3.0, 1.0, 2.0], [-3.0, 2.0, -4.0]])
    batches = [torch.tensor([[1.0, 3.0, 0.0]]), torch.tensor([[0.0, 4.0, 2.0]])]
    prune(model, Wanda(sparsity=2 / 3, calibration=batches))
    assert model[0].weight.tolist() == [[0.0, 1.0, 0.0], [0.0, 2.0, 0.0]]


def numpy_scores(weight: np.ndarray, inputs: np.ndarray, layer: nn.Module) -> np.ndarray:
    """|w| times the norm of what it is multiplied with, by loops over a convolution's windows."""
    if isinstance(layer, nn.Linear):
        return np.abs(weight) * np.sqrt((inputs.reshape(-1, inputs.shape[-1]) ** 2).sum(0))
    if isinstance(layer, nn.ConvTranspose2d):
        return np.abs(weight) * np.sqrt((inputs**2).sum((0, 2, 3)))[:, None, None, None]
    assert isinstance(layer, nn.Conv2d)
    (pad, _), (stride, _) = layer.padding, layer.stride
    padded = np.pad(inputs, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    outputs, channels, height, width = weight.shape
    rows = (padded.shape[2] - height) // stride + 1
    columns = (padded.shape[3] - width) // stride + 1
    scores = np.zeros_like(weight)
    for o in range(outputs):
        first = o // (outputs // layer.groups) * channels
        for c in range(channels):
            for i in range(height):
                for j in range(width):
                    window = padded[:, first + c, i : i + stride * rows : stride, j : j + stride * columns : stride]
                    scores[o, c, i, j] = abs(weight[o, c, i, j]) * np.sqrt((window**2).sum())
    return scores


def numpy_mask(scores: np.ndarray, sparsity: float, transposed: bool) -> np.ndarray:
    rows = np.moveaxis(scores, 1, 0) if transposed else scores
    flat = rows.reshape(rows.shape[0], -1)
    remaining = int(np.floor((1 - sparsity) * flat.shape[1] + 0.5))
    mask = np.zeros(flat.shape, bool)
    np.put_along_axis(mask, np.argsort(-flat, axis=1, kind="stable")[:, :remaining], True, axis=1)
    mask = mask.reshape(rows.shape)
    return np.moveaxis(mask, 0, 1) if transposed else mask


def test_wanda_equals_its_numpy_twin_layer_by_layer() -> None:
    """The inputs of every layer come from the net whose earlier blocks are pruned already."""
    torch.manual_seed(0)
    model = Net().double()
    dense = copy.deepcopy(model)
    batches = [torch.randn(3, 4, 6, 6, dtype=torch.float64) for _ in range(2)]
    prune(model, Wanda(sparsity=0.6, calibration=batches))
    blocks = [["grouped"], ["up"], ["blocks.0.0", "blocks.0.2"], ["blocks.1.0", "blocks.1.2"], ["head"]]
    twin = copy.deepcopy(dense).eval()
    for block in blocks:
        modules = {name: twin.get_submodule(name) for name in block}
        inputs: dict[str, list[np.ndarray]] = {name: [] for name in block}
        handles = [
            module.register_forward_pre_hook(lambda _, args, seen=inputs[name]: seen.append(args[0].detach().numpy()))
            for name, module in modules.items()
        ]
        for batch in batches:
            twin(batch)
        for handle in handles:
            handle.remove()
        for name, module in modules.items():
            weight: Tensor = module.weight  # type: ignore[assignment]
            scores = numpy_scores(weight.detach().numpy(), np.concatenate(inputs[name]), module)
            weight.data *= torch.from_numpy(numpy_mask(scores, 0.6, isinstance(module, nn.ConvTranspose2d)))
        for name in block:
            assert torch.equal(model.get_submodule(name).weight, twin.get_submodule(name).weight), name


def test_calibration_that_misses_a_layer_names_it() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    with pytest.raises(ValueError, match="do not reach idle: give batches that use these layers"):
        prune(Idle(), Wanda(calibration=[torch.randn(2, 4)]))


def test_bad_input_of_wanda() -> None:
    linear = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(ValueError, match="linear and convolution layers; weight_ih_l0"):
        prune(nn.LSTM(4, 4), Wanda(calibration=[torch.randn(2, 3, 4)]))
    with pytest.raises(ValueError, match="wanda looks at data: give prune the batches"):
        prune(linear, Wanda())
    assert type(linear[0]) is nn.Linear  # and plain again
    with pytest.raises(ValueError, match="the calibration is empty"):
        prune(copy.deepcopy(linear), Wanda(calibration=[]))
    with pytest.raises(RuntimeError, match="scores of 0 are not finite"):
        prune(copy.deepcopy(linear), Wanda(calibration=[torch.full((1, 4), torch.nan)]))
    with pytest.raises(ValueError, match="allowed: row, layer"):
        Wanda(scope="global")


def test_wanda_leaves_modes_and_statistics_alone_and_takes_dicts() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def forward(self, values: Tensor, scale: float = 1.0) -> Tensor:
            return self.norm(self.linear(values)) * scale

    model = Named()
    mean = model.norm.running_mean.clone()  # type: ignore[union-attr]
    prune(model, Wanda(sparsity=0.5, calibration=({"values": torch.randn(3, 4), "scale": 2.0} for _ in range(2))))
    assert model.training
    assert torch.equal(model.norm.running_mean, mean)  # type: ignore[arg-type]
    assert int((model.linear.weight == 0).sum()) == 8


# ----------------------------------------------------------------------------------------------------------------------- Keep

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01),
}


def train(model: nn.Module, sp: autosparse.Sparsifier, opt: torch.optim.Optimizer, steps: int, seed: int = 1) -> None:
    torch.manual_seed(seed)
    for _ in range(steps):
        loss = model(torch.randn(4, 4, 6, 6)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_zeros_stay_through_decay_momentum_averages_and_resume(name: str) -> None:
    torch.manual_seed(0)
    model = Net()
    prune_three_quarters(model)
    zeros = {key: value == 0 for key, value in model.state_dict().items() if value.dim() > 1}
    before = copy.deepcopy(model.state_dict())
    sp = autosparse.sparsify(model, Keep(), epochs=2, steps_per_epoch=4)
    opt = OPTIMIZERS[name](sp.param_groups(weight_decay=0.1))
    sp.bind(opt)
    average = AveragedModel(nn.ModuleDict({"net": Net()}))
    train(model, sp, opt, 4)
    saved = copy.deepcopy((model.state_dict(), opt.state_dict(), sp.state_dict()))
    average.update_parameters(nn.ModuleDict({"net": _plain(sp)}))
    train(model, sp, opt, 4, seed=2)
    average.update_parameters(nn.ModuleDict({"net": _plain(sp)}))
    resumed = Net()
    resumed.load_state_dict(before)
    again = autosparse.sparsify(resumed, Keep(), epochs=2, steps_per_epoch=4)
    other = OPTIMIZERS[name](again.param_groups(weight_decay=0.1))
    again.bind(other)
    for target, state in zip((resumed, other, again), saved, strict=True):
        target.load_state_dict(state)
    train(resumed, again, other, 4, seed=2)
    for net in (sp.finalize(), again.finalize(), average.module["net"]):
        for key, value in net.state_dict().items():
            if key in zeros:
                assert torch.equal(value == 0, zeros[key]), key
                assert not torch.equal(value, before[key])
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), resumed.parameters(), strict=True))


def _plain(sp: autosparse.Sparsifier) -> nn.Module:
    net = Net()
    net.load_state_dict(sp.dense_state_dict())
    return net


def test_keep_names_layers_without_zeros_and_refuses_a_dense_model() -> None:
    with pytest.raises(ValueError, match="keep holds the zeros that a model has, and this one has none"):
        autosparse.sparsify(Net(), Keep(), epochs=1, steps_per_epoch=1)
    model = Net()
    model.head.weight.data[0] = 0
    sp = autosparse.sparsify(model, Keep(), epochs=1, steps_per_epoch=1)
    assert "no zeros to keep in grouped, up, blocks.0.0" in str(sp.report())


def test_a_sparse_file_trains_on(tmp_path: Path) -> None:
    model = Net()
    prune_three_quarters(model)
    autosparse.save_sparse(model, tmp_path / "net.safetensors")
    fresh = Net()
    fresh.load_state_dict(autosparse.load_sparse(tmp_path / "net.safetensors"))
    sp = autosparse.sparsify(fresh, Keep(), epochs=1, steps_per_epoch=1)
    assert sp.sparsity() == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize("method", [GMP(sparsity=0.8, begin=0.0, update_every=1), AutoSparse(target_sparsity=0.8)])
def test_what_wanda_pruned_is_a_start_for_other_methods(method: autosparse.methods.Method) -> None:
    torch.manual_seed(0)
    model = Net()
    prune(model, Wanda(sparsity=0.5, calibration=[torch.randn(4, 4, 6, 6)]))
    sp = autosparse.sparsify(model, method, epochs=4, steps_per_epoch=10, exclude=("head",), guard=None)
    opt = torch.optim.SGD(sp.param_groups(), lr=0.01)
    sp.bind(opt)
    for epoch in range(4):
        train(model, sp, opt, 10, seed=epoch)
        sp.end_epoch(loss=1.0)
    assert sp.sparsity() > 0.6


# ----------------------------------------------------------------------------------------------------------------- keep_zeros


def test_keep_zeros_puts_back_what_was_zero() -> None:
    model = Net()
    prune_three_quarters(model)
    before = copy.deepcopy(model.state_dict())
    with keep_zeros(model) as watched:
        assert watched is model
        for weight in model.parameters():
            weight.data += 1
    for key, value in model.state_dict().items():
        changed = before[key] + 1
        assert torch.equal(value, torch.where(before[key] == 0, 0, changed) if value.dim() > 1 else changed)


def test_keep_zeros_lets_a_fresh_adapter_learn_and_refuses_a_dense_model() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="no weight with zeros to keep"), keep_zeros(model):
        pass
    prune_three_quarters(model)
    model[1].weight.data.zero_()
    with keep_zeros(model):
        model[1].weight.data += 1
    assert bool((model[1].weight == 1).all())
