"""Networks that are already sparse, in other people's loops: Keep under Trainer and Lightning, and peft's merged adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import autosparse
from autosparse import Keep

from .lightning_parts import Net, SparseTraining, fit
from .trainer_runs import bert, make

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore:.*treespec.*"),
]


def with_zeros(model: Any) -> Any:
    """Three quarters of every linear weight are zero, as in a sparse checkpoint."""
    generator = torch.Generator().manual_seed(5)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data *= torch.rand(module.weight.shape, generator=generator) < 0.25
    return model


def linear_weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: module.weight.detach().clone() for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def assert_trained_on(model: nn.Module, before: dict[str, Tensor]) -> None:
    """Other weights, and exactly the zeros that were there."""
    after = linear_weights(model)
    assert after.keys() == before.keys()
    for name, weight in after.items():
        assert torch.equal(weight == 0, before[name] == 0), name
        assert not torch.equal(weight, before[name]), name


def test_trainer_keeps_the_zeros_and_resumes_with_them(tmp_path: Path) -> None:
    before = linear_weights(with_zeros(bert()))
    trainer, sp = make(tmp_path, Keep(), model=with_zeros(bert()), save_strategy="steps", save_steps=4)
    trainer.train()
    resumed, again = make(tmp_path, Keep(), model=with_zeros(bert()))
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    for run in (sp, again):
        assert_trained_on(run.finalize(), before)
    ends = [linear_weights(run.model) for run in (sp, again)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in before)


def test_lightning_keeps_the_zeros() -> None:
    module = with_zeros(Net())
    before = linear_weights(module)
    sparse = SparseTraining(Keep())
    fit(sparse, module)
    assert_trained_on(sparse.sparsifier.finalize(), before)


def sparse_gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "n_positions": 12, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**sizes))
    tokens = torch.randint(30, (8, 12))
    return autosparse.prune(model, autosparse.Wanda(sparsity=0.5, calibration=[{"input_ids": tokens}]))


def adapted(model: GPT2LMHeadModel) -> Any:
    """A language model with an adapter that has learned for three steps."""
    adapter = get_peft_model(model, LoraConfig(r=2, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True))
    optimizer = torch.optim.AdamW([weight for weight in adapter.parameters() if weight.requires_grad], lr=0.1)
    tokens = torch.randint(30, (8, 12), generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        optimizer.zero_grad()
        adapter(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    return adapter


@pytest.mark.parametrize("held", [True, False], ids=["keep_zeros", "plainly"])
def test_an_adapter_of_a_language_model_is_merged(held: bool) -> None:
    model = sparse_gpt2()
    before = {
        name: module.weight.detach().clone() for name, module in model.named_modules() if name.endswith(("c_attn", "c_fc"))
    }
    adapter = adapted(model)
    if held:
        with autosparse.keep_zeros(adapter):
            merged = adapter.merge_and_unload()
    else:
        merged = adapter.merge_and_unload()
    assert len(before) == 4
    for name, weight in before.items():
        after = merged.get_submodule(name).weight
        assert not torch.equal(after, weight), name
        assert torch.equal(after == 0, weight == 0) == held, name
        assert 0.49 < float((weight == 0).float().mean()) < 0.51
