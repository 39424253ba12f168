"""The real Trainer, trained sparsely: groups, clipping, losses, logs, checkpoints and what it refuses."""

from __future__ import annotations

import importlib
import json
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import IterableDataset
from transformers import BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback

import autosparse
from autosparse import DST, STR, AutoSparse, kernels
from autosparse.integrations.transformers import STATE_FILE, sparsify_trainer

from ..states import differences
from .ranks import assert_finished
from .trainer_runs import TUNED, arguments, bert, make, sentences, state

ROOT = Path(__file__).parents[2]
TARGET = AutoSparse(target_sparsity=0.7)


def gpt2(seed: int = 0) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=30, n_positions=12, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    )


def texts() -> list[dict[str, Tensor]]:
    return [{"input_ids": each["input_ids"], "labels": each["input_ids"]} for each in sentences()]


class Peek(TrainerCallback):
    """Copies all gradients before every step, after clipping."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Tensor]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        named = kwargs["model"].named_parameters()
        self.seen.append({name: each.grad.clone() for name, each in named if each.grad is not None})


class StepLosses(Trainer):
    """A user's own Trainer, with his own optimizer, that remembers the loss of every batch."""

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        if self.optimizer is None:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
        return self.optimizer

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        self.batch_losses = [*getattr(self, "batch_losses", []), loss.item()]
        return loss


# ---------------------------------------------------------------------------------------------------- a run


def test_a_run_reaches_its_target_and_logs_it(tmp_path: Path) -> None:
    trainer, sp = make(tmp_path, TARGET)
    assert (sp.epochs, sp.steps_per_epoch) == (4, 3)
    result = trainer.train()
    assert (sp.step, sp.epoch, trainer.state.global_step) == (12, 4, 12)
    assert sp.sparsity() == pytest.approx(0.7, abs=0.005)
    first, *_, last = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert first["step"] == 5
    assert first["alpha"] == pytest.approx(TARGET.annealing().at(5 / 3, 4))
    assert 0.3 < first["sparsity"] < 0.7
    assert 0.3 < last["train_fraction"] < first["train_fraction"] < 1
    assert result.metrics["sparsity"] == sp.sparsity()
    assert result.metrics["train_fraction"] == sp.cost.train_fraction
    assert isinstance(trainer, Trainer)


@pytest.mark.parametrize(("given", "expected"), [(None, 0.02), (0.3, 0.3)])
def test_thresholds_have_a_group_and_a_decay_of_their_own(given: float | None, expected: float, tmp_path: Path) -> None:
    trainer, sp = make(tmp_path, AutoSparse(), sparse={"threshold_decay": given}, max_steps=1)
    trainer.train()
    *others, last = trainer.optimizer.param_groups
    assert [id(each) for each in last["params"]] == [id(each) for each in sp.thresholds()]
    assert last["weight_decay"] == expected
    assert [group["weight_decay"] for group in others] == [0.02, 0.0]
    assert sum(len(group["params"]) for group in others) == len(list(bert().parameters()))


def test_losses_of_epochs_are_the_trainers_own(tmp_path: Path) -> None:
    """Three steps an epoch, of two, two and one batch; the logs of every two steps end elsewhere."""
    trainer, sp = make(tmp_path, TUNED, data=sentences(20), kind=StepLosses, logging_steps=2)
    assert sp.steps_per_epoch == 3
    trainer.train()
    losses = trainer.batch_losses
    assert len(losses) == 20
    means = [sum(losses[5 * epoch : 5 * epoch + 5]) / 3 for epoch in range(4)]
    assert [entry["loss"] for entry in sp.history] == pytest.approx(means, rel=1e-6)
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert sum(logged) / 6 == pytest.approx(sum(means) / 4)
    assert [entry[1] for entry in sp.parts["tuner"].history] == pytest.approx(means[:3], rel=1e-6)
    assert isinstance(trainer.optimizer.optimizer, torch.optim.SGD)
    assert [len(group["params"]) for group in trainer.optimizer.param_groups] == [len(list(bert().parameters())), 14]


def test_a_short_run_can_be_divided_into_more_epochs(tmp_path: Path) -> None:
    trainer, sp = make(tmp_path, AutoSparse(target_sparsity=0.6), sparse={"epochs": 4}, num_train_epochs=1,
                       gradient_accumulation_steps=1)  # fmt: skip
    trainer.train()
    assert [entry["step"] for entry in sp.history] == [2, 4, 6]
    assert sp.alpha < 0.01


def test_an_epoch_that_is_cut_short_is_closed(tmp_path: Path) -> None:
    trainer, sp = make(tmp_path, TARGET, max_steps=7)
    assert (sp.epochs, sp.steps_per_epoch) == (3, 3)
    trainer.train()
    assert [entry["step"] for entry in sp.history] == [3, 6, 7]


def test_clipping_leaves_thresholds_out(tmp_path: Path) -> None:
    seen = {}
    for limit in (0.0, 1e-3):
        peek = Peek()
        trainer, _ = make(tmp_path, AutoSparse(), callbacks=[peek], max_grad_norm=limit, max_steps=1, logging_steps=1)
        trainer.train()
        seen[limit] = peek.seen[0]
    free, clipped = seen.values()
    thresholds = [name for name in free if name.endswith(".threshold")]
    assert len(thresholds) == 14
    assert all(torch.equal(free[name], clipped[name]) and free[name].any() for name in thresholds)

    def norm(gradients: dict[str, Tensor]) -> float:
        return float(torch.cat([each.flatten() for name, each in gradients.items() if name not in thresholds]).norm())

    assert norm(clipped) == pytest.approx(1e-3, rel=1e-2)
    assert trainer.state.log_history[0]["grad_norm"] == pytest.approx(norm(free), rel=1e-5)


def test_a_penalty_counts_once_a_step(tmp_path: Path) -> None:
    before, after = Peek(), Peek()
    trainer, sp = make(tmp_path, DST(penalty_weight=0.5), callbacks=[before], max_steps=1)
    trainer.add_callback(after)
    names, parameters = zip(*sp.model.named_parameters(), strict=True)
    expected = torch.autograd.grad(sp.penalty(), parameters, allow_unused=True)
    trainer.train()
    moved = 0
    for name, gradient in zip(names, expected, strict=True):
        if name in after.seen[0]:
            plain = before.seen[0].get(name, torch.zeros(()))
            torch.testing.assert_close(after.seen[0][name], plain if gradient is None else plain + gradient)
            moved += gradient is not None and bool(gradient.any())
    assert moved == 14


@pytest.mark.parametrize("cast", [False, True], ids=["autocast", "bfloat16 model"])
def test_bf16(cast: bool, tmp_path: Path) -> None:
    model = bert().bfloat16() if cast else bert()
    trainer, sp = make(tmp_path, TARGET, model=model, bf16=not cast, max_grad_norm=1.0)
    on_kernels = not cast and kernels.available(torch.bfloat16)
    if on_kernels:
        sp.compute("sparse")
    trainer.train()
    assert any(plan.precision == "bfloat16" and plan.passes for plan in sp.layer_plans()) == on_kernels
    assert trainer.accelerator.mixed_precision == ("no" if cast else "bf16")
    assert {each.dtype for each in sp.thresholds()} == {torch.float32}
    assert sp.layers[0].stored.dtype == (torch.bfloat16 if cast else torch.float32)
    assert sp.sparsity() == pytest.approx(0.7, abs=0.01)


# ---------------------------------------------------------------------------------------------------- saving and resuming


def test_a_killed_run_continues_bit_for_bit(tmp_path: Path) -> None:
    """Killed at step 6; its checkpoint of step 4 lies in the middle of an epoch whose loss auto-tuning needs."""
    command = [sys.executable, "-m", "tests.integrations.trainer_runs", "killed", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    whole = make(tmp_path / "whole", TUNED, save_strategy="steps", save_steps=4)
    whole[0].train()
    resumed = make(tmp_path, TUNED, model=bert(seed=5), save_strategy="steps", save_steps=4)
    resumed[0].train(resume_from_checkpoint=True)
    assert resumed[0].state.global_step == 12
    assert len(resumed[1].parts["tuner"].history) == 3
    assert differences(state(*resumed), state(*whole)) == []


@pytest.mark.parametrize("step", [3, 5])
def test_runs_resume_at_and_within_epochs(step: int, tmp_path: Path) -> None:
    whole = make(tmp_path, TARGET, save_strategy="steps", save_steps=step, bf16=True)
    whole[0].train()
    resumed = make(tmp_path, TARGET, model=bert(seed=5), bf16=True)
    resumed[0].train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    assert differences(state(*resumed), state(*whole)) == []


@pytest.mark.slow
def test_two_processes_agree_and_resume(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, "-m", "tests.integrations.trainer_runs", "rank", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert_finished(done)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in range(2))
    assert differences(first, second) == []
    assert differences(first["resumed"], first["whole"]) == []
    assert first["whole"]["sp"]["step"] == 12
    logs = json.loads((tmp_path / "checkpoint-12" / "trainer_state.json").read_text())["log_history"]
    assert [entry["loss"] for entry in logs] == pytest.approx(first["losses"], rel=1e-6)  # of both ranks
    assert len(first["whole"]["sp"]["tuner"]["history"]) == 3
    assert set(load_file(tmp_path / "checkpoint-12" / "model.safetensors")) == set(bert().state_dict())


def test_saved_models_are_plain(tmp_path: Path) -> None:
    trainer, sp = make(tmp_path, TARGET, save_strategy="epoch")
    trainer.train()
    trainer.save_model(str(tmp_path / "final"))
    assert not (tmp_path / "final" / STATE_FILE).exists()
    inputs = {"input_ids": torch.arange(8)[None]}
    report, expected = sp.report(), sp.finalize().eval()(**inputs).logits
    assert type(sp.model) is BertForSequenceClassification
    for folder in ("final", "checkpoint-12"):
        stored = load_file(tmp_path / folder / "model.safetensors")
        assert stored.keys() == bert().state_dict().keys()
        assert {layer.name: int((stored[f"{layer.name}.weight"] == 0).sum()) for layer in report.layers} == {
            layer.name: layer.zeros for layer in report.layers
        }
        loaded, notes = BertForSequenceClassification.from_pretrained(tmp_path / folder, output_loading_info=True)
        assert not notes["missing_keys"]
        assert not notes["unexpected_keys"]
        kept = sp.model.state_dict()
        assert all(torch.equal(value, kept[name]) for name, value in loaded.state_dict().items())
        # mapped from a file the weights lie on other boundaries, which changes how sums are rounded
        torch.testing.assert_close(loaded.eval()(**inputs).logits, expected, rtol=1e-5, atol=1e-7)


def test_embeddings_tied_to_the_head_are_left_alone(tmp_path: Path) -> None:
    with pytest.warns(autosparse.SparsityWarning, match="lm_head is left dense: its weight is tied to transformer.wte.weight"):
        trainer, sp = make(tmp_path, TARGET, model=gpt2(), data=texts(), save_strategy="epoch")
    assert [layer.name.split(".")[-1] for layer in sp.layers] == ["c_attn", "c_proj", "c_fc", "c_proj"]
    trainer.train()
    assert trainer.model.lm_head.weight is trainer.model.transformer.wte.weight
    for folder in ("checkpoint-3", "checkpoint-12"):
        stored = load_file(tmp_path / folder / "model.safetensors")
        assert "lm_head.weight" not in stored
        assert bool(stored["transformer.wte.weight"].all())
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path / "checkpoint-12").eval()
    tokens = torch.arange(8)[None]
    assert torch.equal(loaded(tokens).logits, sp.finalize().eval()(tokens).logits)
    with pytest.warns(autosparse.SparsityWarning, match="tied"):
        resumed = make(tmp_path, TARGET, model=gpt2(seed=5), data=texts())
    resumed[0].train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert torch.equal(resumed[1].finalize().eval()(tokens).logits, loaded(tokens).logits)


class Tied(nn.Module):
    """Not of transformers: two tied layers, and a loss of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        self.first, self.second, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 2)
        self.second.weight = self.first.weight

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.second(torch.tanh(self.first(self.embed(input_ids).mean(1)))))
        logits = self.head(hidden)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_a_model_of_ones_own_with_tied_layers(tmp_path: Path) -> None:
    trainer, sp = make(tmp_path, TARGET, model=Tied())
    trainer.train()
    trainer.save_model(str(tmp_path / "final"))
    stored = load_file(tmp_path / "final" / "model.safetensors")
    plain = Tied()
    plain.load_state_dict(stored)
    assert differences(plain.state_dict(), sp.finalize().state_dict()) == []
    assert (stored["second.weight"] == 0).float().mean() > 0.5


# ------------------------------------------------------------------------------------------------------ pretrained models


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A net that was trained densely, and saved as `save_pretrained` does."""
    folder = tmp_path_factory.mktemp("pretrained")
    model = bert()
    options = {"num_train_epochs": 30, "gradient_accumulation_steps": 1, "learning_rate": 3e-3, "logging_strategy": "no"}
    Trainer(model=model, args=arguments(folder, **options), train_dataset=sentences()).train()
    model.save_pretrained(folder)
    return folder


def said(trainer: Trainer) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train()
    return [str(each.message) for each in caught if "in a trained model" in str(each.message)]


def test_a_pretrained_model_starts_without_a_jump(pretrained: Path, tmp_path: Path) -> None:
    model = BertForSequenceClassification.from_pretrained(pretrained).eval()
    inputs = {key: torch.stack([each[key] for each in sentences()]) for key in ("input_ids", "labels")}
    expected = model(**inputs).loss
    assert expected < 0.2
    trainer, sp = make(tmp_path, TARGET, model=model)
    assert sp.method == AutoSparse(target_sparsity=0.7, start_sparsity=0.0)
    torch.testing.assert_close(model(**inputs).loss, expected, rtol=1e-2, atol=0)
    assert said(trainer) == []
    assert sp.sparsity() == pytest.approx(0.7, abs=0.005)


@pytest.mark.parametrize(
    "method", [AutoSparse(start_sparsity=0.5), AutoSparse(s_init=-3.0), autosparse.RigL(sparsity=0.8)], ids=str
)
def test_a_start_that_was_asked_for_stays_and_is_measured(method: Any, pretrained: Path, tmp_path: Path) -> None:
    model = BertForSequenceClassification.from_pretrained(pretrained)
    trainer, sp = make(tmp_path, method, model=model, max_steps=2)
    assert sp.method == method
    (message,) = said(trainer)
    assert re.search(r"the loss of the first batch is [\d.]+, that of the plain model 0\.\d+", message)


def test_a_run_of_a_pretrained_model_resumes_wherever_its_model_comes_from(pretrained: Path, tmp_path: Path) -> None:
    whole = make(tmp_path, TARGET, model=BertForSequenceClassification.from_pretrained(pretrained), save_strategy="epoch")
    whole[0].train()
    for model in (bert(seed=5), BertForSequenceClassification.from_pretrained(pretrained)):
        resumed = make(tmp_path / "resumed", TARGET, model=model)
        resumed[0].train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
        ours, theirs = state(*resumed), state(*whole)
        ours["sp"]["fields"] = theirs["sp"]["fields"]
        assert differences(ours, theirs) == []


# ---------------------------------------------------------------------------------------------------- what is refused


def test_an_optimizer_without_the_thresholds_is_refused(tmp_path: Path) -> None:
    model = bert()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model=model, args=arguments(tmp_path), train_dataset=sentences(), optimizers=(optimizer, None))
    with pytest.raises(ValueError, match=r"lacks them: leave optimizers=\.\.\. out, or set trainer\.optimizer"):
        sparsify_trainer(trainer, TARGET)
    assert not any("parametrizations" in name for name in model.state_dict())
    trainer.optimizer = None
    sp = sparsify_trainer(trainer, TARGET)
    trainer.optimizer = optimizer
    with pytest.raises(ValueError, match="the optimizer lacks 14 of 14 learned thresholds"):
        trainer.train()
    trainer.optimizer = torch.optim.SGD(sp.param_groups(weight_decay=0.1), lr=0.1)
    trainer.train()
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.1, 0.0]


def test_an_accumulation_that_changed_is_refused(tmp_path: Path) -> None:
    trainer, _ = make(tmp_path, TARGET)
    trainer.args.gradient_accumulation_steps = 3
    with pytest.raises(ValueError, match="4 epochs of 2 optimizer steps, but was sparsified for 4 of 3"):
        trainer.train()


def test_checkpoints_of_other_runs_are_refused(tmp_path: Path) -> None:
    make(tmp_path, STR(start_sparsity=0.5), save_strategy="epoch", num_train_epochs=1)[0].train()
    folder = str(tmp_path / "checkpoint-3")
    trainer, sp = make(tmp_path, TARGET)
    before = {name: value.clone() for name, value in sp.model.state_dict().items()}
    with pytest.raises(ValueError, match="its method is str, this one's autosparse"):
        trainer.train(resume_from_checkpoint=folder)
    assert differences(sp.model.state_dict(), before) == []
    with pytest.raises(ValueError, match="epochs was 1, is 4"):
        make(tmp_path, STR(start_sparsity=0.5))[0].train(resume_from_checkpoint=folder)
    torch.save({"sparsifier": Path("x")}, Path(folder, STATE_FILE))
    with pytest.raises(ValueError, match=r"not a file of autosparse.*nothing in it was executed"):
        make(tmp_path, TARGET)[0].train(resume_from_checkpoint=folder)
    Path(folder, STATE_FILE).unlink()
    with pytest.raises(ValueError, match=f"has no {STATE_FILE}: it is no checkpoint of a sparse run"):
        make(tmp_path, TARGET)[0].train(resume_from_checkpoint=folder)


def test_a_second_run_needs_a_new_model(tmp_path: Path) -> None:
    trainer, _ = make(tmp_path, TARGET)
    trainer.train()
    with pytest.raises(RuntimeError, match="begins at step 0, the Sparsifier stands at step 12"):
        trainer.train()


def test_trainers_that_would_change_the_run_are_refused(tmp_path: Path) -> None:
    late = Trainer(model_init=lambda: bert(), args=arguments(tmp_path), train_dataset=sentences())
    with pytest.raises(ValueError, match=r"model_init .* pass model=\.\.\. instead"):
        sparsify_trainer(late, TARGET)
    with pytest.raises(ValueError, match="auto_find_batch_size"):
        make(tmp_path, TARGET, auto_find_batch_size=True)


def test_a_stream_of_data_needs_epochs(tmp_path: Path) -> None:
    class Stream(IterableDataset[dict[str, Tensor]]):
        def __iter__(self) -> Any:
            return iter(sentences())

    with pytest.raises(ValueError, match=r"no length: say into how many epochs the run is divided, epochs=\.\.\."):
        make(tmp_path, TARGET, data=Stream(), max_steps=6)
    trainer, sp = make(tmp_path, TARGET, data=Stream(), max_steps=6, sparse={"epochs": 3})
    trainer.train()
    assert [entry["step"] for entry in sp.history] == [2, 4, 6]
    assert sp.sparsity() == pytest.approx(0.7, abs=0.02)


def test_a_missing_extra_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "autosparse.integrations.transformers")
    with pytest.raises(ImportError, match=r'pip install "autosparse\[transformers\]"'):
        importlib.import_module("autosparse.integrations.transformers")


def test_the_package_imports_no_framework() -> None:
    frameworks = "{'transformers', 'accelerate', 'lightning', 'pytorch_lightning'}"
    code = f"import sys, autosparse, autosparse.integrations; print({frameworks} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
