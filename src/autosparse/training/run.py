"""A whole run: its folder, the dense runs that it needs, training, the plain model and the result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from autosparse.common.files import plain_value, read_json, whole_file, write_json, write_text
from autosparse.common.tensors import whole
from autosparse.data import Data, open_data
from autosparse.methods import Method
from autosparse.methods.autotune import ReferenceRecorder
from autosparse.methods.families.base import LooksAtData
from autosparse.quantization.fake import plain_entries
from autosparse.recipes.loading import completed, dump_recipe
from autosparse.recipes.recipe import Recipe
from autosparse.training import batch_norms, build, machine, randomness
from autosparse.training.claim import Mode, check_data, claim, mode_of
from autosparse.training.folder import RunFolder
from autosparse.training.gain import gain_of_run
from autosparse.training.intact import notes_of
from autosparse.training.lock import FolderLock
from autosparse.training.loop import fit
from autosparse.training.processes import Processes, exchange_little, joined, spread
from autosparse.training.progress import Progress, choose_progress
from autosparse.training.repair import is_intact, repair
from autosparse.training.session import Session
from autosparse.training.signals import Stopped, StopRequest
from autosparse.training.start import load_start, start_from_zeros
from autosparse.training.validate import summed_loss, validate

# What result.json takes over from the Sparsifier's report.
REPORTED = (
    "sparsity", "train_fraction", "test_fraction", "layers", "weights", "zeros",
    "notes", "events", "controller", "history", "compute", "speed",
)  # fmt: skip


def train(
    recipe: Recipe,
    folder: Path | str,
    *,
    resume: bool = False,
    start_or_resume: bool = False,
    quiet: bool = False,
    command: Sequence[str] = (),
) -> dict[str, Any]:
    """Train a recipe into a folder of its own and return the content of its result.json.

    `resume` goes on with the run in the folder; `start_or_resume` does so if there is one, else it starts it.
    """
    mode = mode_of(resume, start_or_resume)
    build.check_code(recipe.model.name)
    if recipe.train.threads is not None:
        torch.set_num_threads(recipe.train.threads)
    device = build.choose_device(recipe.train.device)
    batch_norms.check_device(recipe, device)
    with joined(device.type) as processes, StopRequest() as stop:
        progress = choose_progress(quiet) if processes.leads else Progress()
        return _Runner(processes, stop, progress, command).train_recipe(completed(recipe), Path(folder), mode)


class _Runner:
    """Trains a recipe, and the dense models that it is compared with, in one group of processes."""

    def __init__(self, processes: Processes, stop: StopRequest, progress: Progress, command: Sequence[str]) -> None:
        self.processes, self.stop, self.progress, self.command = processes, stop, progress, list(command)

    def train_recipe(self, recipe: Recipe, path: Path, mode: Mode) -> dict[str, Any]:
        """Train the recipe, after a dense model of the same length if it asks for one."""
        folder = RunFolder(path)
        with FolderLock(path) as lock:
            self.processes.once(lambda: claim(folder, recipe, mode, lock))
            if folder.done:
                self.processes.once(folder.close)
                return read_json(folder.result)
            return self._train_claimed(recipe, folder)

    def _train_claimed(self, recipe: Recipe, folder: RunFolder) -> dict[str, Any]:
        data = open_data(recipe.data, seed=recipe.seed, rank=self.processes.rank, world=self.processes.world)
        self.processes.once(lambda: check_data(folder, data))
        try:
            self._describe(folder, recipe, data)
            base = None
            if recipe.train.dense_beside:
                dense = self.train_dense_baseline(recipe, RunFolder(folder.path / "dense"), data)
                base = read_json(dense.result)
            reference = self.reference(recipe, folder, data)
            return self.train_one(recipe, folder, data, build.make_method(recipe, reference), base=base)
        except Stopped as stopped:
            self._close(folder, "stopped", str(stopped))
            raise Stopped(f"{stopped}; go on with: autosparse train --resume --out {folder.path}", stopped.code) from None
        except (ValueError, TypeError, RuntimeError, OSError) as error:
            self._close(folder, "failed", str(error))
            raise

    def train_dense_baseline(self, recipe: Recipe, dense: RunFolder, data: Data, epochs: int | None = None) -> RunFolder:
        """The folder of a dense run of the recipe, which is trained unless it is there already."""
        if not self.processes.once(lambda: is_intact(dense)):
            with FolderLock(dense.path) as lock:  # nobody else may resume the inner run by its own name
                self.processes.once(lock.take)
                self.processes.once(lambda: repair(dense))
                self._describe(dense, dense_of(recipe), data)
                self.train_one(dense_of(recipe), dense, data, None, epochs=epochs)
        self.processes.once(dense.close)
        return dense

    def reference(self, recipe: Recipe, folder: RunFolder, data: Data) -> Path | None:
        """The file with the losses of dense epochs, which auto-tuning or a loss budget compares with; None if neither does."""
        if not needs_reference(recipe.method):
            return None
        # what is there is asked once for all ranks: a slow one would see what the first has just written
        if not self.processes.once(folder.reference.exists):
            tune = getattr(build.make_method(recipe), "autotune", None)
            epochs = recipe.train.epochs if tune is None else int(tune.epochs)
            inner = RunFolder(folder.path / ("dense" if recipe.train.dense_beside else "reference"))
            dense = self.train_dense_baseline(recipe, inner, data, epochs)
            losses = reference_losses(dense, epochs)
            self.processes.once(lambda: write_reference(folder.reference, losses))
        return folder.reference

    def train_one(
        self,
        recipe: Recipe,
        folder: RunFolder,
        data: Data,
        method: Method | None,
        *,
        epochs: int | None = None,
        base: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Train one model and leave its plain weights and its figures in the folder."""
        with closing(self._session(recipe, folder, data, method)) as session:
            content = self._train_session(session, epochs or recipe.train.epochs, base)
        self.processes.once(folder.close)
        return content

    def _train_session(self, session: Session, epochs: int, base: dict[str, Any] | None) -> dict[str, Any]:
        recipe, folder, data = session.recipe, session.folder, session.data
        if session.sp is not None and self.processes.leads:
            folder.update_info(layers=[layer.name for layer in session.sp.layers])
        if not session.resume():
            show_data(session)
        self.processes.once(lambda: folder.forget_after(session.position.epoch))
        fit(session, epochs)
        plain = finished_model(session)
        settings = {"padding_id": data.padding_id, "precision": recipe.train.precision, "processes": self.processes}
        score = validate(plain, data.validation, session.device, **settings)  # type: ignore[arg-type]
        content = as_read(result(session, base) | {"accuracy": score.accuracy, "validation_loss": score.loss})
        if self.processes.leads:
            save_model(plain, folder.model)
            write_json(folder.result, content)
        return content

    def _session(self, recipe: Recipe, folder: RunFolder, data: Data, method: Method | None) -> Session:
        settings, processes = recipe.train, self.processes
        device = build.choose_device(settings.device, processes.local_rank)
        randomness.seed_everything(recipe.seed, 0)
        model = build.build_model(recipe.model, data)
        starts = recipe.initial_weights is not None and not processes.once(lambda: any(folder.checkpoints.glob("last*")))
        if starts:
            load_start(model, str(recipe.initial_weights))
        model = batch_norms.prepared(model.to(device), recipe, processes)
        if settings.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        inputs, _ = next(iter(data.train.epoch(0)))
        build.check_outputs(model, recipe, data, inputs)
        sp = None
        if method is not None:
            given = {name: tensor.clone() for name, tensor in model.state_dict().items()} if recipe.initial_zeros else {}
            sp = build.attach(recipe, method, model, data.train.steps, tuple(tensor[:1].to(device) for tensor in inputs))
            if recipe.initial_zeros and starts:
                start_from_zeros(sp, given)
            sp.keep_times(folder.times)
            sp.compute(settings.compute)
            sp.announces_speed = False  # the summary says it
        runner = spread(model, settings.strategy, processes, device)
        exchange_little(runner, sp, device, settings.exchange)
        if settings.compile:
            runner = torch.compile(runner)  # type: ignore[assignment]
        optimizer = build.build_optimizer(recipe, model, sp, data.train.steps, build.stage_epochs(recipe, method))
        if sp is not None:
            sp.bind(optimizer)
        randomness.seed_everything(recipe.seed, 1 + processes.rank)
        return Session(recipe, folder, processes, device, data, method, model, runner, sp, optimizer, self.progress, self.stop)

    def _describe(self, folder: RunFolder, recipe: Recipe, data: Data) -> None:
        if not self.processes.leads:
            return
        before = folder.read_info()
        write_text(folder.recipe, dump_recipe(recipe))
        if data.text is not None:
            data.text.save(folder.tokenizer)
        folder.update_info(
            status="running",
            message="",
            name=recipe.name,
            method=recipe.method["name"],
            seed=recipe.seed,
            versions=machine.versions(),
            machine=machine.machine(str(build.choose_device(recipe.train.device))),
            world=self.processes.world,
            command=self.command,
            started=before.get("started", datetime.now(UTC).isoformat(timespec="seconds")),
            data=data.facts,
            fingerprint=data.fingerprint,
            files=notes_of([folder.recipe]),
        )

    def _close(self, folder: RunFolder, status: str, message: str) -> None:
        if self.processes.leads:
            folder.update_info(status=status, message=message)


def needs_reference(method: dict[str, Any]) -> bool:
    """Whether the method compares its losses with those of a dense run that the recipe does not name."""
    tune = method.get("autotune")
    if method.get("max_loss_increase") is not None:
        return not method.get("reference")
    return bool(tune) and not (isinstance(tune, dict) and tune.get("reference"))


def dense_of(recipe: Recipe) -> Recipe:
    """The same recipe without sparsity."""
    train_block = recipe.train.model_copy(update={"dense_beside": False, "compute": "dense", "quantize_aware": 0})
    changes = {"method": {"name": "dense"}, "initial_zeros": False, "train": train_block, "paper": None}
    return recipe.model_copy(update=changes)


def show_data(session: Session) -> None:
    """Let the methods that choose their mask before training look at a few batches."""
    if session.sp is None or session.method is None or not isinstance(session.method, LooksAtData):
        return
    count = min(session.recipe.train.score_batches, session.steps)
    batches = [batch for _, batch in zip(range(count), session.data.train.epoch(0), strict=False)]

    def loss_of(model: nn.Module, batch: tuple[tuple[Tensor, ...], Tensor]) -> Tensor:
        inputs, target = batch
        output = model(*(tensor.to(session.device) for tensor in inputs))
        return summed_loss(output, target.to(session.device), session.data.padding_id) / target.shape[0]

    session.sp.score(batches, loss_of)


def finished_model(session: Session) -> nn.Module:
    """The plain model with its zeros baked in; every rank gets the whole of it."""
    with torch.random.fork_rng():
        plain = build.build_model(session.recipe.model, session.data).to(session.device)
    if session.recipe.train.channels_last:
        plain = plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if session.sp is not None:
        return session.sp.finalize(into=plain)
    plain.load_state_dict({name: whole(tensor) for name, tensor in plain_entries(session.model, rounded=True).items()})
    return plain


def save_model(plain: nn.Module, path: Path) -> None:
    """Plain weights; a tied weight is stored once, `safetensors.torch.load_model` brings both back."""
    for parameter in plain.parameters():
        parameter.data = parameter.data.contiguous()
    with whole_file(path) as unfinished:
        safetensors.torch.save_model(plain, str(unfinished), metadata={"format": "pt"})


def as_read(content: dict[str, Any]) -> dict[str, Any]:
    """The content as `read_json` would give it back: lists, not tuples."""
    same: dict[str, Any] = json.loads(json.dumps(content, allow_nan=False, default=plain_value))
    return same


def reference_losses(dense: RunFolder, epochs: int) -> list[float]:
    """The losses of the first epochs of a dense run."""
    losses = {line["epoch"]: line["loss"] for line in dense.read_metrics()}
    lost = [epoch for epoch in range(1, epochs + 1) if epoch not in losses]
    if lost:
        raise ValueError(
            f"{dense.metrics} has lost the figures of epochs {lost}, which this run compares with: remove {dense.path}, "
            "then resume, and they are trained again"
        )
    return [losses[epoch] for epoch in range(1, epochs + 1)]


def write_reference(path: Path, losses: list[float]) -> None:
    """All losses or none: a resumed run takes the file as complete."""
    with whole_file(path) as unfinished:
        recorder = ReferenceRecorder(unfinished, overwrite=True)
        for loss in losses:
            recorder.record(loss)


def result(session: Session, base: dict[str, Any] | None) -> dict[str, Any]:
    """The figures of a finished run; `base` are those of the dense run beside it."""
    position, lines, sp = session.position, session.folder.read_metrics(), session.sp
    content: dict[str, Any] = {
        "name": session.recipe.name,
        "method": session.recipe.method["name"],
        "seed": session.recipe.seed,
        "epochs": position.epoch,
        "step": position.step,
        "seconds": session.seconds,
        "processor_seconds": session.processor_seconds,
        "loss": lines[-1]["loss"] if lines and lines[-1]["epoch"] == position.epoch else None,
        "best_accuracy": position.best_accuracy,
        "best_epoch": position.best_epoch,
        "base_accuracy": None if base is None else float(base["accuracy"]),
        "sparsity": 0.0,
        "train_fraction": 1.0,
        "test_fraction": 1.0,
    }
    if sp is None:
        return content
    report, profile = sp.report().to_dict(), sp.cost.profile
    content |= {name: report[name] for name in REPORTED}
    content["gain"] = gain_of_run(session.seconds, lines, None if base is None else float(base["seconds"]))
    if profile is not None:
        content |= {"total_macs": profile.macs, "macs": {layer.name: layer.macs for layer in profile.layers}}
    return content
