"""The callback in real Trainers: equal to the plain loop, exact after a kill, loud where it cannot work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import GradientAccumulationScheduler, ModelCheckpoint
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, IterableDataset

import autosparse
from autosparse import STR, RigL, kernels

from .lightning_parts import BATCHES, EPOCHS, ManualNet, Net, SparseTraining, data, fit, loader, trainer
from .lightning_resume import CASES, METHODS, ValidatedNet, run
from .ranks import assert_finished

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore:.*treespec.*"),
]
ROOT = Path(__file__).parents[2]
TARGET, TUNED = METHODS["target"], METHODS["autotune"]


def same(left: Any, right: Any) -> bool:
    """Equal bit for bit, through dicts and lists."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else bool(left == right)


def plain_loop(
    method: Any, clip: float | None = None, schedule: Any = None, accumulate: int = 1
) -> tuple[Net, autosparse.Sparsifier]:
    net = Net()
    steps = -(-BATCHES // accumulate)
    sp = autosparse.sparsify(net, method, epochs=EPOCHS, steps_per_epoch=steps)
    opt = torch.optim.SGD(sp.param_groups(weight_decay=1e-2), lr=0.1, momentum=0.9)
    scheduler = schedule(opt) if schedule else None
    sp.bind(opt)
    thresholds = {id(each) for each in sp.thresholds()}
    weights = [each for each in net.parameters() if id(each) not in thresholds]
    for _ in range(EPOCHS):
        total = torch.zeros(())
        for number, (x, y) in enumerate(loader(), 1):
            loss = nn.functional.cross_entropy(net.net(x), y)
            total += loss.detach() * len(y)
            (loss / accumulate).backward()
            if number % accumulate == 0 or number == BATCHES:
                if clip:
                    nn.utils.clip_grad_norm_(weights, clip)
                opt.step()
                opt.zero_grad()
        if scheduler:
            scheduler.step()
        sp.end_epoch(total / 48)
    return net, sp


@pytest.mark.parametrize(
    "method", [TARGET, TUNED, STR(start_sparsity=0.5), RigL(sparsity=0.8)], ids=lambda each: each.about.name
)
def test_a_run_equals_the_plain_loop(method: Any) -> None:
    def schedule(optimizer: Any) -> Any:
        return lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)

    module, sparse = Net(schedule=schedule), SparseTraining(method)
    fit(sparse, module, gradient_clip_val=0.1, accumulate_grad_batches=4)
    net, sp = plain_loop(method, clip=0.1, schedule=schedule, accumulate=4)
    assert sp.step == EPOCHS * 2  # six batches are a step of four and one of two
    assert same(module.state_dict(), net.state_dict())
    assert [each["sparsity"] for each in sparse.sparsifier.history] == [each["sparsity"] for each in sp.history]
    assert [each["loss"] for each in sparse.sparsifier.history] == pytest.approx([each["loss"] for each in sp.history])
    assert sparse.sparsifier.alpha == sp.alpha


def test_clipping_would_have_changed_the_thresholds() -> None:
    net, _ = plain_loop(STR(start_sparsity=0.5))
    clipped, _ = plain_loop(STR(start_sparsity=0.5), clip=0.1)
    assert not same(net.state_dict(), clipped.state_dict())


def test_manual_optimization_equals_automatic() -> None:
    method = STR(start_sparsity=0.5)
    automatic, manual = SparseTraining(method), SparseTraining(method)
    one, two = Net(), ManualNet(clip=manual)
    fit(automatic, one, gradient_clip_val=1e-3)
    fit(manual, two)
    assert same(one.state_dict(), two.state_dict())
    assert same(automatic.sparsifier.state_dict(), manual.sparsifier.state_dict())


def test_sparsity_alpha_and_train_f_are_logged() -> None:
    sparse = SparseTraining(TARGET)
    metrics = fit(sparse, Net()).callback_metrics
    sp = sparse.sparsifier
    assert [(layer.name, layer.macs) for layer in sp.report().layers] == [("net.0", 320), ("net.2", 96)]
    assert metrics["sparsity"] == pytest.approx(sp.sparsity()) == pytest.approx(0.7, abs=0.005)
    assert metrics["alpha"] == pytest.approx(sp.alpha)
    assert metrics["train_fraction"] == pytest.approx(sp.cost.train_fraction)
    assert 0 < sp.cost.train_fraction < 1


class Normed(Net):
    """With a norm, by which a trained net is known."""

    def __init__(self) -> None:
        super().__init__()
        self.net.insert(1, nn.LayerNorm(32))


class Calling(Normed):
    """Calls itself, and so its own forward."""

    def forward(self, inputs: Any) -> Any:
        return self.net(inputs)

    def training_step(self, batch: Any, index: int) -> Any:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])


@pytest.mark.parametrize("kind", [Normed, Calling])
@pytest.mark.parametrize("start", [0.0, 0.8])
def test_a_trained_module_says_what_the_start_costs_it(kind: type[Net], start: float) -> None:
    """Also one whose forward is never called; its MACs are counted once, with the next batch."""
    dense = Normed()
    optimizer = torch.optim.Adam(dense.parameters(), lr=1e-2)
    x, y = data().tensors
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(dense.net(x), y).backward()
        optimizer.step()
    module, sparse = kind(), SparseTraining(STR(start_sparsity=start))
    module.load_state_dict(dense.state_dict())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fit(sparse, module, max_epochs=1)
    found = [str(each.message) for each in said if "in a trained model" in str(each.message)]
    assert len(found) == (start > 0)
    assert all("str starts with 80% zeros in a trained model: the loss of the first batch is" in each for each in found)
    assert [(layer.name, layer.macs) for layer in sparse.sparsifier.report().layers] == [("net.0", 320), ("net.3", 96)]
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in module.children())


# ---------------------------------------------------------------------------------------------------- the optimizer


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda opt: lr_scheduler.LambdaLR(opt, lambda step: 0.9**step),
    "multiplicative": lambda opt: lr_scheduler.MultiplicativeLR(opt, lambda step: 0.9),
    "step": lambda opt: lr_scheduler.StepLR(opt, 1, 0.5),
    "cosine": lambda opt: lr_scheduler.CosineAnnealingLR(opt, 24),
    "restarts": lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, 5),
    "one cycle": lambda opt: lr_scheduler.OneCycleLR(opt, 0.2, total_steps=24),
    "cyclic": lambda opt: lr_scheduler.CyclicLR(opt, 0.05, 0.2, step_size_up=3),
    "sequential": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.LinearLR(opt, 0.1, total_iters=3), lr_scheduler.PolynomialLR(opt, 20)], [3]
    ),
    "chained": lambda opt: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(opt), lr_scheduler.ExponentialLR(opt, 0.9)]),
}


class Rates(Callback):
    """The learning rate and momentum of every group at every step."""

    def __init__(self) -> None:
        self.seen: list[list[tuple[float, float]]] = []

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.seen.append([(group["lr"], group["momentum"]) for group in optimizer.param_groups])


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_move_the_thresholds_rate_with_the_weights(name: str) -> None:
    def every_step(optimizer: Any) -> Any:
        return {"scheduler": SCHEDULES[name](optimizer), "interval": "step"}

    rates, dense = Rates(), Rates()
    fit(SparseTraining(TARGET), Net(schedule=every_step), rates, max_epochs=2)
    trainer(None, dense, max_epochs=2).fit(Net(schedule=every_step), loader())
    assert [weights for weights, _ in rates.seen] == [weights for (weights,) in dense.seen]
    assert all(weights == thresholds for weights, thresholds in rates.seen)
    assert len(set(rates.seen[0] + rates.seen[4] + rates.seen[11])) > 1


def test_a_plateau_moves_both_groups() -> None:
    def plateau(optimizer: Any) -> Any:
        return {"scheduler": lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=1.0), "monitor": "train_loss"}

    made = fit(SparseTraining(TARGET), Net(schedule=plateau))
    assert made.optimizers[0].param_groups[0]["lr"] == made.optimizers[0].param_groups[1]["lr"] < 0.1


class GroupedNet(Net):
    """A module that makes groups by itself."""

    def __init__(self, make: Callable[[Any], torch.optim.Optimizer]) -> None:
        super().__init__()
        self.make = make

    def configure_optimizers(self) -> Any:
        return self.make(self)


def groups_of(make: Callable[[Any], torch.optim.Optimizer], **options: Any) -> list[tuple[list[str], dict[str, Any]]]:
    sparse = SparseTraining(STR(start_sparsity=0.5), **options)
    module = GroupedNet(make)
    made = fit(sparse, module, max_epochs=1, limit_train_batches=1)
    names = {id(each): name for name, each in module.named_parameters()}
    return [([names[id(each)] for each in group["params"]], group) for group in made.optimizers[0].param_groups]


THRESHOLDS = ["net.0.parametrizations.weight.0.threshold", "net.2.parametrizations.weight.0.threshold"]


def test_thresholds_leave_the_weights_group_and_decay_decoupled_under_adam() -> None:
    weights, thresholds = groups_of(lambda net: torch.optim.Adam(net.parameters(), 1e-2, weight_decay=0.03, betas=(0.8, 0.9)))
    assert not set(THRESHOLDS) & set(weights[0])
    assert len(weights[0]) == 4
    assert thresholds[0] == THRESHOLDS
    found = {key: thresholds[1][key] for key in ("lr", "betas", "weight_decay", "decoupled_weight_decay")}
    assert found == {"lr": 1e-2, "betas": (0.8, 0.9), "weight_decay": 0.03, "decoupled_weight_decay": True}
    assert not weights[1]["decoupled_weight_decay"]


def test_named_parameters_and_a_decay_of_ones_own() -> None:
    _, (names, group) = groups_of(lambda net: torch.optim.SGD(net.named_parameters(), 0.1), threshold_decay=0.5)
    assert names == THRESHOLDS
    assert group["weight_decay"] == 0.5
    assert len(group["param_names"]) == 2


def test_thresholds_follow_the_rate_of_their_own_layer() -> None:
    def make(net: Net) -> Any:
        layers = [{"params": net.net[0].parameters(), "lr": 0.01}, {"params": net.net[2].parameters(), "lr": 0.2}]
        return torch.optim.SGD(layers, momentum=0.9, weight_decay=0.1)

    groups = groups_of(make)
    assert [(names, group["lr"]) for names, group in groups[2:]] == [(THRESHOLDS[:1], 0.01), (THRESHOLDS[1:], 0.2)]


def test_a_group_of_thresholds_alone_stays_as_the_user_made_it() -> None:
    def make(net: Net) -> Any:
        sp = net.trainer.callbacks[0].sparsifier
        return torch.optim.SGD(sp.param_groups(weight_decay=0.1, threshold_decay=0.4), 0.1)

    groups = groups_of(make)
    assert len(groups) == 2
    assert groups[1][0] == THRESHOLDS
    assert groups[1][1]["weight_decay"] == 0.4


def test_several_optimizers_step_as_one() -> None:
    class Two(ManualNet):
        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.net[part].parameters(), 0.1, momentum=0.9, weight_decay=1e-2) for part in (0, 2)]

        def training_step(self, batch: Any, index: int) -> None:
            loss = Net.training_step(self, batch, index)
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
                optimizer.zero_grad()

    both, one = SparseTraining(STR(start_sparsity=0.5)), SparseTraining(STR(start_sparsity=0.5))
    two, module = Two(), Net()
    made = fit(both, two)
    fit(one, module)
    assert both.sparsifier.step == EPOCHS * BATCHES
    assert [len(optimizer.param_groups) for optimizer in made.optimizers] == [2, 2]
    assert same(two.state_dict(), module.state_dict())


def test_a_penalty_is_added_once_a_step() -> None:
    method = autosparse.DST(penalty_weight=1e-2)
    sparse, module = SparseTraining(method), Net()
    fit(sparse, module)
    net = Net()
    sp = autosparse.sparsify(net, method, epochs=EPOCHS, steps_per_epoch=BATCHES)
    opt = torch.optim.SGD(sp.param_groups(weight_decay=1e-2), lr=0.1, momentum=0.9)
    sp.bind(opt)
    for _ in range(EPOCHS):
        for x, y in loader():
            opt.zero_grad()
            (nn.functional.cross_entropy(net.net(x), y) + sp.penalty()).backward()
            opt.step()
        sp.end_epoch()
    assert sp.sparsity() > 0.01
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, net.state_dict()[name])


# ---------------------------------------------------------------------------------------------------- kill and resume


def module_in_a_process(name: str, folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", f"tests.integrations.{name}", str(folder)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert_finished(done)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    module_in_a_process("lightning_resume", folder)
    return folder


@pytest.mark.parametrize(("method", "cut"), CASES)
def test_a_killed_and_resumed_run_equals_the_unbroken_one(method: str, cut: str, killed: Path) -> None:
    number = CASES.index((method, cut))
    assert (killed / f"{number}.status").read_text() == str(-signal.SIGKILL)
    steps = [int(path.stem.split("step=")[1]) for path in (killed / str(number)).glob("*.ckpt")]
    assert max(steps) == (8 if cut == "inside an epoch" else 2 * BATCHES)
    (saved,) = (killed / str(number)).glob(f"*step={max(steps)}.ckpt")
    unbroken, resumed = run(method, cut), run(method, cut, seed=5, path=saved)  # another seed: all must come from the file
    assert unbroken["sp"]["epoch"] == EPOCHS
    assert same(unbroken, resumed)


def checkpoint(path: Path, method: Any) -> Path:
    made = fit(SparseTraining(method), Net(), max_epochs=2)
    made.save_checkpoint(path / "other.ckpt")
    return path / "other.ckpt"


def test_a_checkpoint_of_another_method_is_refused(tmp_path: Path) -> None:
    for other in (STR(start_sparsity=0.5), RigL(sparsity=0.8)):
        with pytest.raises(ValueError, match=f"its method is {other.about.name}, this one's autosparse"):
            fit(SparseTraining(TARGET), Net(), path=checkpoint(tmp_path, other))


def test_a_dense_checkpoint_is_refused(tmp_path: Path) -> None:
    made = trainer(None, max_epochs=1)
    made.fit(Net(), loader())
    made.save_checkpoint(tmp_path / "dense.ckpt")
    with pytest.raises(ValueError, match="no checkpoint of a sparse run"):
        fit(SparseTraining(TARGET), Net(), path=tmp_path / "dense.ckpt")


def test_the_best_checkpoint_comes_back_for_a_test(tmp_path: Path) -> None:
    class Tested(ValidatedNet):
        def test_step(self, batch: Any, index: int) -> None:
            self.log("zeros", self.trainer.callbacks[0].sparsifier.sparsity())

    sparse, keep = SparseTraining(TARGET), ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    module = Tested()
    made = fit(sparse, module, keep)
    history = sparse.sparsifier.history
    (found,) = made.test(module, loader(), ckpt_path=tmp_path / "epoch=1.ckpt", verbose=False)
    assert found["zeros"] == pytest.approx(history[1]["sparsity"])
    assert history[1]["sparsity"] != history[3]["sparsity"]


# ---------------------------------------------------------------------------------------------------- what is refused


def test_an_optimizer_without_the_layers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no optimizer trains net\.2: .*exclude"):
        groups_of(lambda net: torch.optim.SGD(net.net[0].parameters(), 0.1))


def test_an_optimizer_made_before_gets_the_thresholds() -> None:
    module = GroupedNet(lambda net: net.early)
    module.early = torch.optim.SGD(module.parameters(), 0.1, weight_decay=0.1)
    made = fit(SparseTraining(TARGET), module)
    assert len(made.optimizers[0].param_groups[1]["params"]) == 2


def test_steps_that_accumulation_makes_wrong_are_refused() -> None:
    with pytest.raises(ValueError, match="4 epochs of 2 optimizer steps, but was sparsified for 4 of 6"):
        fit(SparseTraining(TARGET, steps_per_epoch=BATCHES), Net(), accumulate_grad_batches=3)
    with pytest.raises(ValueError, match="accumulate_grad_batches changes during the run"):
        fit(SparseTraining(TARGET), Net(), GradientAccumulationScheduler({0: 1, 2: 3}))
    sparse = SparseTraining(TARGET)
    fit(sparse, Net(), GradientAccumulationScheduler({0: 3}))
    assert (sparse.sparsifier.steps_per_epoch, sparse.sparsifier.step) == (2, 8)


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([data for data in loader().dataset])  # type: ignore[attr-defined]


def test_data_without_a_length_needs_the_steps() -> None:
    stream = DataLoader(Endless(), batch_size=8)
    with pytest.raises(ValueError, match="no length: pass SparseTraining"):
        fit(SparseTraining(TARGET), Net(), train=stream)
    sparse = SparseTraining(TARGET, steps_per_epoch=BATCHES)
    fit(sparse, Net(), train=stream)
    assert sparse.sparsifier.sparsity() == pytest.approx(0.7, abs=0.005)


def test_a_run_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="need the length of the run"):
        fit(SparseTraining(TARGET), Net(), max_epochs=-1)


def test_a_run_is_as_long_as_its_nearest_limit() -> None:
    sparse = SparseTraining(TARGET)
    fit(sparse, Net(), max_epochs=10, max_steps=15)
    assert (sparse.sparsifier.epochs, sparse.sparsifier.step) == (3, 15)


def test_a_second_run_on_the_same_module_is_refused() -> None:
    sparse, module = SparseTraining(TARGET), Net()
    fit(sparse, module)
    with pytest.raises(RuntimeError, match="begins at step 0, the Sparsifier stands at step 24"):
        fit(sparse, module)


def test_auto_tuning_without_an_epochs_mean_is_refused() -> None:
    for net in (Net(on_step=True, on_epoch=False), Net()):
        name = "train_loss" if net.log_options.get("on_step") else "other"
        with pytest.raises(ValueError, match=f"auto-tuning needs the epoch's mean of '{name}'"):
            fit(SparseTraining(TUNED, loss=name), net)


def test_auto_tuning_reads_the_mean_that_the_module_logs() -> None:
    sparse, module = SparseTraining(TUNED), Net(on_step=True, on_epoch=True)
    fit(sparse, module)
    means = torch.tensor(module.losses).view(EPOCHS, BATCHES).mean(1).tolist()
    assert [each["loss"] for each in sparse.sparsifier.history] == pytest.approx(means)
    assert [loss for _, loss, _, _ in sparse.sparsifier.parts["tuner"].history] == pytest.approx(means[:3])


# ---------------------------------------------------------------------------------------------------- other ways to run


def test_bf16_mixed_keeps_thresholds_exact_and_bf16_true_is_refused() -> None:
    sparse, module = SparseTraining(TARGET), Net()
    fit(sparse, module, precision="bf16-mixed")
    planned = {plan.precision for plan in sparse.sparsifier.layer_plans()}
    assert planned == {"bfloat16" if kernels.available(torch.bfloat16) else "float32"}
    assert all(each.dtype == torch.float32 for each in sparse.sparsifier.thresholds())
    assert sparse.sparsifier.sparsity() == pytest.approx(0.7, abs=0.005)
    with pytest.raises(ValueError, match=r"bf16-true.*use 'bf16-mixed'"):
        fit(SparseTraining(STR(start_sparsity=0.5)), Net(), precision="bf16-true")


def test_layers_and_data_that_are_made_in_hooks() -> None:
    class Late(Net):
        def __init__(self) -> None:
            super().__init__()
            del self.net

        def setup(self, stage: str) -> None:
            self.rows = loader()

        def configure_model(self) -> None:
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))

        def train_dataloader(self) -> Any:
            return self.rows

    late, net, sparse = Late(), Net(), SparseTraining(TARGET)
    trainer(sparse).fit(late)
    fit(SparseTraining(TARGET), net)
    assert same(late.state_dict(), net.state_dict())
    assert not {"configure_model", "on_load_checkpoint", "training_step"} & set(vars(late))


class Elsewhere(SingleDeviceStrategy):
    """Lightning's init context of an accelerator, with a device on which no number can be read."""

    @contextmanager
    def tensor_init_context(self, empty_init: bool | None = None) -> Iterator[None]:
        with torch.device("meta"):
            yield


def test_the_accelerators_init_context_does_not_reach_the_thresholds() -> None:
    module, net = Net(), Net()
    fit(SparseTraining(TARGET), module, strategy=Elsewhere("cpu"))
    fit(SparseTraining(TARGET), net)
    assert same(module.state_dict(), net.state_dict())


def test_the_module_is_plain_at_the_end_if_asked() -> None:
    module, keys = Net(), list(Net().state_dict())
    sparse = SparseTraining(TARGET, finalize=True)
    fit(sparse, module)
    assert list(module.state_dict()) == keys
    assert type(module.net[0]) is nn.Linear
    zeros = sum(int((layer.weight == 0).sum()) for layer in (module.net[0], module.net[2]))
    assert zeros == sparse.sparsifier.report().zeros == round(0.7 * 416)


@pytest.mark.slow
def test_two_processes_are_bit_identical(tmp_path: Path) -> None:
    module_in_a_process("lightning_worker", tmp_path)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1))
    assert (second["target"]["rank"], second["target"]["ranks"]) == (1, 2)
    for name in first:
        assert same(first[name]["model"], second[name]["model"]), name
        assert same(first[name]["sp"], second[name]["sp"]), name
    assert first["target"]["sp"]["step"] == EPOCHS * 2  # 3 batches a process, accumulated by two
    assert same(first["autotune"]["model"], first["resumed"]["model"])
    assert same(first["autotune"]["sp"], first["resumed"]["sp"])


@pytest.mark.slow
def test_the_example_runs() -> None:
    path = ROOT / "examples" / "lightning_digits.py"
    assert len(path.read_text().splitlines()) < 80
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(path), "2"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "80.0% zeros" in done.stdout


def test_a_missing_extra_names_the_command() -> None:
    code = "import sys; sys.modules['lightning'] = None; import autosparse.integrations.lightning"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'pip install "autosparse[lightning]"' in done.stderr


def test_the_package_does_not_import_lightning() -> None:
    code = "import sys, autosparse; autosparse.sparsify; import autosparse.integrations; sys.exit('lightning' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
