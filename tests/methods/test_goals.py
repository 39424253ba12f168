"""Targets other than zeros: multiply-adds, bytes, a loss budget. Each is reached in one run, or refused before it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import autosparse
from autosparse import STR, AutoSparse, AutoTune
from autosparse.cost.size import bytes_of
from autosparse.methods.families.base import layer_parts
from autosparse.methods.loss_budget import AIM, GAIN, MOST, LossController
from autosparse.methods.target import TargetController
from autosparse.methods.target_steering import steer
from autosparse.parametrizations import SoftThreshold

EPOCHS, STEPS = 8, 10


class ConvNet(nn.Module):
    """Layers whose weights cost very different numbers of multiply-adds; the first one may stay dense."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(12)
        self.conv2 = nn.Conv2d(12, 32, 3, stride=2, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(32)
        self.fc = nn.Linear(32 * 4 * 4, 10)

    def forward(self, x):
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.fc(x.flatten(1))


def mlp(width: int = 48) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def wide_mlp() -> nn.Module:
    return mlp(256)


OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=3e-3),
}


def trained(model, method, optimizer="sgd", epochs=EPOCHS, example=True, **options):
    """A run on noise with a bright row; gives its Sparsifier and the mean losses of the epochs."""
    torch.manual_seed(0)
    x, y = torch.randn(256, 1, 8, 8), torch.randint(0, 8, (256,))
    x[torch.arange(256), 0, y] += 1.5
    sp = autosparse.sparsify(
        model, method, epochs=epochs, steps_per_epoch=STEPS, example_input=x[:1] if example else None, **options
    )
    opt = OPTIMIZERS[optimizer](sp.param_groups(weight_decay=1e-4))
    sp.bind(opt)
    losses = []
    for _ in range(epochs):
        total = 0.0
        for step in range(STEPS):
            rows = torch.arange(step * 25, step * 25 + 25)
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows], label_smoothing=0.2)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item() / STEPS
        sp.end_epoch(loss=total)
        losses.append(total)
    return sp, losses


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(1)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("net", [ConvNet, mlp])
@pytest.mark.parametrize("target", [0.4, 0.15])
def test_multiply_adds_are_reached(net, target, optimizer):
    sp, _ = trained(net(), AutoSparse(target_flops=target), optimizer)
    assert sp.cost.test_fraction == pytest.approx(target, abs=0.005)
    assert sp.at_target
    assert f"target_flops {target:.2%}" in str(sp.report())


@pytest.mark.parametrize("method", [STR(target_flops=0.3), AutoSparse(target_flops=0.3, threshold="shared")])
def test_dense_layers_count_and_macs_may_come_with_the_first_step(method):
    sp, _ = trained(ConvNet(), method, example=False, exclude=("fc",))
    assert sp.cost.test_fraction == pytest.approx(0.3, abs=0.005)


def test_the_order_statistic_is_weighted():
    model = mlp()
    with torch.no_grad():
        model[1].weight.mul_(3)  # keeps more than the others
    sp = autosparse.sparsify(model, AutoSparse(threshold="shared"), epochs=1, steps_per_epoch=10)
    layers, units = layer_parts(sp, SoftThreshold), [20.0, 1.0, 1.0]
    steps = TargetController(0.6, 0.1, 10)
    steps.start(0.3)
    steer(layers, steps, 5, 0.0, sp.generator, units)
    kept = sum(unit * int(layer.count_active()) for unit, (layer, _) in zip(units, layers, strict=True))
    assert kept / sum(unit * layer.numel for unit, (layer, _) in zip(units, layers, strict=True)) == pytest.approx(
        0.4, abs=0.005
    )
    assert 1 - sp.sparsity() < 0.35, "by number fewer are left"


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("net", "part", "precision"),
    [
        (ConvNet, 0.6, "float32"),
        (mlp, 0.35, "float32"),
        (wide_mlp, 0.3, "bfloat16"),
        (wide_mlp, 0.6, "int8"),
        (wide_mlp, 0.2, "int8"),
    ],
)
def test_the_file_is_never_larger_and_hardly_smaller(net, part, precision, optimizer, tmp_path):
    model = net()
    autosparse.save_sparse(model, tmp_path / "dense", dtype=precision)
    size = int(part * (tmp_path / "dense").stat().st_size)
    sp, _ = trained(model, AutoSparse(target_size=size, precision=precision), optimizer)
    sp.finalize()
    autosparse.save_sparse(model, tmp_path / "sparse", dtype=precision)
    assert 0.98 * size <= (tmp_path / "sparse").stat().st_size <= size


def test_a_network_of_transformers_reaches_its_goals(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=8, patch_size=4,
        num_channels=1, num_labels=10,
    )  # fmt: skip

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = transformers.ViTForImageClassification(config)

        def forward(self, x):
            return self.net(x).logits

    sp, _ = trained(Logits(), AutoSparse(target_flops=0.3), "adamw")
    assert sp.cost.test_fraction == pytest.approx(0.3, abs=0.005)
    model = Logits()
    sp, _ = trained(model, AutoSparse(target_size="40 kB"), "adamw")
    sp.finalize()
    autosparse.save_sparse(model, tmp_path / "sparse")
    assert 39_200 <= (tmp_path / "sparse").stat().st_size <= 40_000


def test_sizes_are_read():
    assert bytes_of("4 MB") == 4_000_000
    assert bytes_of("1.5kB") == 1500
    assert bytes_of(12) == 12
    for bad in ("4", "4 MiB", "-4 MB", "MB", True, "0 MB"):
        with pytest.raises(ValueError, match="target_size is"):
            bytes_of(bad)


def test_a_goal_resumes_exactly():
    for fields in ({"target_flops": 0.2}, {"target_size": "16 kB"}, {"max_loss_increase": 0.2, "reference": [1.0] * EPOCHS}):
        whole, _ = trained(ConvNet(), AutoSparse(**fields))
        again = autosparse.sparsify(
            ConvNet(), AutoSparse(**fields), epochs=EPOCHS, steps_per_epoch=STEPS, example_input=torch.zeros(1, 1, 8, 8)
        )
        again.load_state_dict(whole.state_dict())
        assert again.parts["controller"].state_dict() == whole.parts["controller"].state_dict()


def controller(budget=0.1, losses=(1.0,) * 10):
    found = LossController(budget, losses, 10, 5, 0.99)
    found.start(0.3)
    return found


def test_the_density_follows_the_gap():
    found = controller()
    assert found.sparsity_at(0) == pytest.approx(0.3)
    assert found.sparsity_at(5) == pytest.approx(1 - 0.7 * 2.718281828**-MOST)
    now = 1 - found.sparsity_at(5)
    found.observe(0, 1.05, 5)
    move = GAIN * (0.05 / (AIM * 0.1) - 1)
    assert 1 - found.sparsity_at(10) == pytest.approx(now * 2.718281828**move)
    assert found.sparsity_at(5) < found.sparsity_at(7) < found.sparsity_at(10)
    now = 1 - found.sparsity_at(10)
    found.observe(1, 2.0, 10)
    assert 1 - found.sparsity_at(15) == pytest.approx(now * 2.718281828 ** (MOST * 10 / 50)), "too dear: denser again"


def test_the_density_stays_without_a_reference_and_at_the_end():
    short = controller(losses=(1.0,))
    short.observe(0, 1.0, 5)
    found = short.sparsity_at(10)
    short.observe(1, 9.0, 10)
    assert short.sparsity_at(50) == pytest.approx(found)
    late = controller()
    for epoch in range(9):
        late.observe(epoch, 1.0, 5 * epoch + 5)
    assert late.sparsity_at(50) == pytest.approx(late.sparsity_at(45))


def test_a_loss_budget_is_kept_and_reported():
    _, dense = trained(mlp(), AutoSparse(start_sparsity=0.3, target_sparsity=0.3), epochs=16)
    found = {}
    for budget in (0.1, 0.9):
        torch.manual_seed(1)
        method = AutoSparse(max_loss_increase=budget, reference=dense)
        sp, losses = trained(mlp(), method, epochs=16)
        found[budget] = sp.sparsity()
        assert sp.sparsity() == pytest.approx(sp.parts["controller"].sparsity_at(16 * STEPS), abs=0.005)
        assert losses[-1] / dense[-1] - 1 < budget
        assert "zeros: " in str(sp.report())
        assert sp.parts["controller"].increase == pytest.approx(losses[-1] / dense[-1] - 1)
        assert sp.cost.train_fraction > 1, "the dense run is paid for"
    assert found[0.1] < found[0.9]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target_flops": 0.2, "target_sparsity": 0.9}, "target_sparsity and target_flops both decide how sparse"),
        ({"target_flops": 0.2, "max_loss_increase": 0.1}, "target_flops and max_loss_increase both decide"),
        ({"target_size": "1 MB", "autotune": AutoTune(epochs=1, reference=[1.0])}, "target_size and autotune both decide"),
        ({"target_flops": 15}, "0.15 means 15 %"),
        ({"max_loss_increase": 0}, "0.01 means a loss 1 % above"),
        ({"target_size": "4 MiB"}, "such as '4 MB'"),
        ({"reference": [1.0]}, "reference holds the losses that max_loss_increase compares with"),
        ({"max_loss_increase": 0.1, "reference": [0.0]}, "losses must be finite numbers above 0"),
        ({"max_loss_increase": 0.1, "reference": "nowhere.json"}, "does not exist"),
        ({"target_flops": 0.2, "g": "identity"}, "target_flops cannot steer a learned threshold"),
    ],
)
def test_bad_goals(fields, message):
    with pytest.raises(ValueError, match=message):
        AutoSparse(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target_flops": 0.05}, "layers that stay dense, and the density floor"),
        ({"target_size": "1 kB"}, "target_size = 0.001 MB cannot be met: in float32 the file takes 0.00"),
        ({"max_loss_increase": 0.1}, "needs the losses of a dense run"),
    ],
)
def test_what_a_run_refuses(fields, message):
    with pytest.raises(ValueError, match=message):
        autosparse.sparsify(
            ConvNet(), AutoSparse(**fields), epochs=2, steps_per_epoch=2, exclude=("conv1",),
            example_input=torch.zeros(1, 1, 8, 8),
        )  # fmt: skip


def test_a_loss_budget_needs_losses():
    sp = autosparse.sparsify(mlp(), AutoSparse(max_loss_increase=0.1, reference=[1.0]), epochs=2, steps_per_epoch=1)
    opt = torch.optim.SGD(sp.param_groups(), lr=0.1)
    sp.bind(opt)
    sp.model(torch.zeros(2, 64)).sum().backward()
    opt.step()
    with pytest.raises(ValueError, match=r"sp\.end_epoch\(loss=\.\.\.\)"):
        sp.end_epoch()


def test_broken_weights_are_named_under_a_size_in_int8():
    model = wide_mlp()
    sp = autosparse.sparsify(model, AutoSparse(target_size="30 kB", precision="int8"), epochs=1, steps_per_epoch=4)
    optimizer = torch.optim.SGD(sp.param_groups(), lr=0.1)
    sp.bind(optimizer)
    with torch.no_grad():
        sp.layers[1].stored[0, 0] = torch.nan
    model(torch.randn(8, 1, 8, 8)).square().mean().backward()
    with pytest.raises(ValueError, match=f"{sp.layers[1].name}.*(?i:nan|finite)"):
        optimizer.step()
