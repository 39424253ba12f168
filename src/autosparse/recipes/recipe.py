"""A recipe: everything that decides a run, from YAML, checked before any work begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from autosparse.common.precisions import long_spelling
from autosparse.data import config
from autosparse.data.config import DataConfig, TranslationData
from autosparse.recipes.errors import Problems
from autosparse.recipes.method_block import DENSE, build_method, check_method

__all__ = ["DENSE", "Recipe", "build_method"]

GOALS = ("target_sparsity", "target_flops", "target_size", "target_latency", "max_loss_increase")  # each moves thresholds


class Block(config.Block):
    """A frozen block whose unknown keys, infinite numbers and truth values in place of numbers are errors."""

    model_config = ConfigDict(allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        kinds = str(cls.model_fields[info.field_name or ""].annotation)
        if isinstance(value, bool) and "bool" not in kinds and ("int" in kinds or "float" in kinds):
            raise ValueError(f"must be a number, got {str(value).lower()}")
        return value


class ModelBlock(Block):
    """The network."""

    name: str = Field(description="A built-in model, or package.module:function that returns an nn.Module.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Arguments of the model or function.")


class SparsifyBlock(Block):
    """Where the method works, and what protects the layers."""

    include: tuple[str, ...] | None = Field(None, description="Layers to sparsify, as names or patterns; all by default.")
    exclude: tuple[str, ...] | None = Field(None, description="Layers that stay dense.")
    density_floor: float = Field(0.01, ge=0, lt=1, description="Density that the guard keeps in every layer.")
    guard: Literal["hold", "warn", "stop"] | None = "hold"
    convention: str = Field("paper", description="How training FLOPs are counted; see `autosparse docs what-is-real`.")
    baseline_epochs: int | None = Field(None, ge=1, description="Epochs of the dense run that Train F compares with.")

    @field_validator("include", "exclude", mode="before")
    @classmethod
    def _one_pattern(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class OptimizerBlock(Block):
    """The optimizer and the decay of weights and thresholds."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = Field(gt=0)
    momentum: float = Field(0.9, ge=0, lt=1, description="SGD's.")
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    norm_decay: bool = Field(True, description="Whether norms and biases take the weight decay too, as in the paper.")
    threshold_decay: float | None = Field(None, ge=0, description="Decay of the thresholds; that of the weights by default.")
    threshold_decay_total: float | None = Field(
        None,
        ge=0,
        description="Instead: nats by which decay shrinks s over the whole run; 3 is about 80 % zeros, 8 about 89 %.",
    )
    threshold_decay_kind: Literal["decoupled", "coupled"] = Field(
        "decoupled",
        description="Adam's decay of the thresholds: apart from the gradient, or part of it, which moves s by about lr a step.",
    )

    @model_validator(mode="after")
    def _one_decay(self) -> OptimizerBlock:
        if self.threshold_decay is not None and self.threshold_decay_total is not None:
            raise ValueError("give threshold_decay or threshold_decay_total, not both")
        coupled = self.threshold_decay_kind == "coupled"
        if coupled and self.name != "adam":
            raise ValueError(f"threshold_decay_kind: coupled needs name: adam; the decay of {self.name} has one kind only")
        if coupled and self.threshold_decay_total is not None:
            raise ValueError(
                "threshold_decay_total counts decoupled decay; with threshold_decay_kind: coupled give threshold_decay"
            )
        return self


class ScheduleBlock(Block):
    """The learning rate over time."""

    name: Literal["cosine", "inverse-sqrt", "steps", "constant"] = "cosine"
    warmup_epochs: float = Field(0.0, ge=0)
    warmup_steps: int = Field(0, ge=0)
    by: Literal["step", "epoch"] = Field("step", description="Whether the rate changes every step or every epoch.")
    milestones: tuple[int, ...] = Field((), description="Epochs at which `steps` multiplies the rate by gamma.")
    gamma: float = Field(0.1, gt=0, lt=1)
    retrain_rate: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Share of the rate in rounds after the first; by default the method's: 0.1 for prune_retrain, else 1.",
    )

    @model_validator(mode="after")
    def _fits(self) -> ScheduleBlock:
        if self.warmup_epochs and self.warmup_steps:
            raise ValueError("give warmup_epochs or warmup_steps, not both")
        if bool(self.milestones) != (self.name == "steps"):
            raise ValueError("schedule.milestones belongs to name: steps, which needs it")
        if self.name == "inverse-sqrt" and not (self.warmup_steps or self.warmup_epochs):
            raise ValueError("schedule inverse-sqrt needs warmup_steps (or warmup_epochs): the rate falls from there")
        return self


class TrainBlock(Block):
    """The loop."""

    epochs: int = Field(ge=1)
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    clip: float | None = Field(None, gt=0, description="Largest norm of the weights' gradients; thresholds are left out.")
    accumulate: int = Field(1, ge=1, description="Batches a step is split into, to save memory; the result is the same step.")
    precision: Annotated[Literal["float32", "bfloat16"], BeforeValidator(long_spelling)] = Field(
        "float32", description="bfloat16 (or bf16) runs the forward pass under autocast."
    )
    quantize_aware: int = Field(
        0, ge=0, description="Last epochs that train with weights and inputs rounded as in int8, for models that lose in int8."
    )
    compile: bool = Field(False, description="torch.compile the model.")
    compute: Literal["auto", "dense", "sparse"] = Field("auto", description="How sparse layers run on a CPU; auto measures.")
    channels_last: bool = False
    strategy: Literal["ddp", "fsdp"] = Field("ddp", description="For several processes; fsdp shards large models.")
    exchange: Annotated[Literal["float32", "bfloat16"], BeforeValidator(long_spelling)] = Field(
        "float32",
        description="Precision in which ddp's processes on CPUs exchange gradients; bfloat16 halves the bytes and rounds.",
    )
    sync_batch_norm: bool = Field(
        False, description="Batch norms share their statistics over all processes; torch can do so on GPUs only."
    )
    device: str = Field("auto", description="cpu, cuda, cuda:1, mps; auto takes the accelerator that is there.")
    threads: int | None = Field(None, ge=1, description="torch's threads per process; torch's choice by default.")
    save_minutes: float = Field(10.0, gt=0, description="Longest time between checkpoints; every epoch ends with one too.")
    dense_beside: bool = Field(False, description="Train the dense model of the same length too, to compare with.")
    score_batches: int = Field(4, ge=1, description="Batches that SNIP, GraSP and SynFlow look at before training.")


class PaperBlock(Block):
    """The row of the paper's tables that a recipe stands for."""

    table: Literal["resnet50_main", "resnet50_back_sparse", "mobilenetv1", "wmt_transformer", "autotune", "text_only_results"]
    row: int = Field(ge=0, description="Position in the table, from 0.")


class Recipe(Block):
    """Everything that decides a run."""

    name: str
    description: str = ""
    paper: PaperBlock | None = None
    seed: int = Field(0, ge=0)
    model: ModelBlock
    initial_weights: str | None = Field(
        None, description="Start from these weights: the folder of a finished run, a .safetensors file, or a sparse file."
    )
    initial_zeros: bool = Field(False, description="Let the method start with the zeros of initial_weights as pruned weights.")
    data: DataConfig
    method: Annotated[dict[str, Any], AfterValidator(check_method)] = Field(
        description="`name` (dense trains without sparsity; see `autosparse methods`) and its fields."
    )
    sparsify: SparsifyBlock = SparsifyBlock.model_validate({})
    optimizer: OptimizerBlock
    schedule: ScheduleBlock = ScheduleBlock.model_validate({})
    train: TrainBlock

    @field_validator("model", "method", mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("data", mode="before")
    @classmethod
    def _images_by_default(cls, value: Any) -> Any:
        return {"kind": "images", **value} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _fits(self) -> Recipe:
        lines = [line for line in (*self._times(), *self._combinations()) if line]
        if lines:
            raise Problems(lines)
        return self

    def _times(self) -> Iterator[str]:
        epochs, method = self.train.epochs, self.method
        if self.schedule.warmup_epochs > epochs:
            yield f"schedule.warmup_epochs: {self.schedule.warmup_epochs:g} is longer than the run of {epochs} epochs"
        late = [epoch for epoch in self.schedule.milestones if epoch >= epochs]
        if late:
            yield f"schedule.milestones: {late} lie beyond the run of {epochs} epochs"
        for place, block in (("method", method), ("method.ga", method.get("ga") or {})):
            zero = block.get("zero_epoch")
            if isinstance(zero, int) and zero > epochs:
                yield f"{place}.zero_epoch: {zero} lies beyond the run of {epochs} epochs"
        for field in ("hard_epoch", "rewind_epoch"):
            if (method.get(field) or 0) >= epochs:
                yield f"method.{field}: {method[field]} lies beyond the run of {epochs} epochs"
        tuning = (method.get("autotune") or {}).get("epochs", 9 if method.get("autotune") else 0)
        if tuning >= epochs:
            yield f"method.autotune.epochs: {tuning} epochs of tuning leave none of the run of {epochs} epochs"

    def _combinations(self) -> Iterator[str]:
        train, method = self.train, self.method
        if not isinstance(self.data, TranslationData) and self.data.batch_size % train.accumulate:
            yield f"train.accumulate: {train.accumulate} does not split a batch of {self.data.batch_size} samples evenly"
        if train.quantize_aware > train.epochs:
            yield f"train.quantize_aware: {train.quantize_aware} is more than the run's {train.epochs} epochs"
        if train.quantize_aware and (train.compile or train.strategy == "fsdp"):
            yield "train.quantize_aware: layers change while the run goes on, which compile and strategy: fsdp do not allow"
        if train.strategy == "fsdp" and train.compute == "sparse":
            yield "train.compute: sparse cannot run with strategy: fsdp, which shards the weights; leave it out"
        if self.initial_zeros and (self.initial_weights is None or self.dense):
            yield "initial_zeros: needs initial_weights, and a method that prunes"
        if train.dense_beside and self.dense:
            yield "train.dense_beside: compares with a dense run, but this recipe is dense itself; leave it out"
        if self.optimizer.nesterov and (self.optimizer.name != "sgd" or not self.optimizer.momentum):
            yield "optimizer.nesterov: needs name: sgd with a momentum above 0"
        goals = [goal for goal in GOALS if method.get(goal) is not None]
        for field in ("threshold_decay", "threshold_decay_total"):
            if getattr(self.optimizer, field) and goals:
                yield f"optimizer.{field}: method.{goals[0]} moves the thresholds by itself; give one of the two"
        target, floor = method.get("target_sparsity"), self.sparsify.density_floor
        if target is not None and self.sparsify.guard and target > 1 - floor:
            yield f"method.target_sparsity: {target} cannot be met while sparsify.density_floor keeps {floor} of every layer"
        if isinstance(self.data, TranslationData) and train.channels_last:
            yield "train.channels_last: is for images, and this data is text"

    @property
    def dense(self) -> bool:
        return bool(self.method["name"] == DENSE)
