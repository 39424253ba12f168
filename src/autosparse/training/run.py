"""A whole run: its folder, the dense runs that it needs, training, the plain model and the result."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from autosparse.data import Data, open_data
from autosparse.methods import Method
from autosparse.methods.autotune import ReferenceRecorder
from autosparse.recipes.loading import differences, dump_recipe, load_recipe
from autosparse.recipes.recipe import Recipe
from autosparse.training import build, machine, randomness
from autosparse.training.folder import Folder, as_read, read_json, write_json, write_text
from autosparse.training.loop import fit
from autosparse.training.processes import Processes, joined, spread
from autosparse.training.progress import Progress, choose_progress
from autosparse.training.session import Session
from autosparse.training.signals import Stopped, StopRequest
from autosparse.training.validate import summed_loss, validate

# Changes that a resumed run may make: they do not touch what is computed.
FREE = ("data.path", "data.workers", "train.save_minutes")


def train(
    recipe: Recipe, folder: Path | str, *, resume: bool = False, quiet: bool = False, command: Sequence[str] = ()
) -> dict[str, Any]:
    """Train a recipe into a folder of its own and return the content of its result.json."""
    if recipe.train.threads is not None:
        torch.set_num_threads(recipe.train.threads)
    with joined(build.choose_device(recipe.train.device).type) as processes, StopRequest() as stop:
        progress = choose_progress(quiet) if processes.leads else Progress()
        return _Run(processes, stop, progress, command).whole(recipe, Path(folder), resume)


class _Run:
    """What a run and the dense runs beside it have in common."""

    def __init__(self, processes: Processes, stop: StopRequest, progress: Progress, command: Sequence[str]) -> None:
        self.processes, self.stop, self.progress, self.command = processes, stop, progress, list(command)

    def whole(self, recipe: Recipe, path: Path, resume: bool) -> dict[str, Any]:
        """The run with the dense one beside it, if the recipe asks for that."""
        folder = Folder(path)
        self.processes.once(lambda: claim(folder, recipe, resume))
        if folder.done:
            return read_json(folder.result)
        data = open_data(recipe.data, seed=recipe.seed, rank=self.processes.rank, world=self.processes.world)
        try:
            self._describe(folder, recipe, data)
            base = self.beside(recipe, folder, data) if recipe.train.dense_beside else None
            reference = self.reference(recipe, folder, data)
            return self.single(recipe, folder, data, build.make_method(recipe, reference), base=base)
        except Stopped as stopped:
            self._close(folder, "stopped", str(stopped))
            raise Stopped(f"{stopped}; go on with: autosparse train --resume --out {path}", stopped.code) from None
        except (ValueError, TypeError, RuntimeError, OSError) as error:
            self._close(folder, "failed", str(error))
            raise

    def beside(self, recipe: Recipe, folder: Folder, data: Data) -> float:
        """The final accuracy of a dense run of the same length."""
        inner = Folder(folder.path / "dense")
        if not self.processes.once(lambda: inner.done):
            self._describe(inner, dense_of(recipe), data)
            self.single(dense_of(recipe), inner, data, None)
        return float(read_json(inner.result)["accuracy"])

    def reference(self, recipe: Recipe, folder: Folder, data: Data) -> Path | None:
        """The file with the losses of the first dense epochs, which auto-tuning compares with."""
        tune = recipe.method.get("autotune")
        if not tune or (isinstance(tune, dict) and tune.get("reference")):
            return None
        # what is there is asked once for all ranks: a slow one would see what the first has just written
        if not self.processes.once(folder.reference.exists):
            method = build.make_method(recipe)
            epochs = method.autotune.epochs  # type: ignore[union-attr]
            inner = Folder(folder.path / ("dense" if recipe.train.dense_beside else "reference"))
            if not self.processes.once(lambda: inner.done):
                self._describe(inner, dense_of(recipe), data)
                self.single(dense_of(recipe), inner, data, None, epochs=epochs)
            losses = [line["loss"] for line in inner.read_metrics()[:epochs]]
            self.processes.once(lambda: write_reference(folder.reference, losses))
        return folder.reference

    def single(
        self,
        recipe: Recipe,
        folder: Folder,
        data: Data,
        method: Method | None,
        *,
        epochs: int | None = None,
        base: float | None = None,
    ) -> dict[str, Any]:
        """Train one model and leave its plain weights and its figures in the folder."""
        run = self._session(recipe, folder, data, method)
        if run.sp is not None and self.processes.leads:
            folder.update_info(layers=[layer.name for layer in run.sp.layers])
        if not run.resume():
            self._score(run)
        self.processes.once(lambda: folder.forget_after(run.position.epoch))
        fit(run, epochs or recipe.train.epochs)
        plain = finished_model(run)
        settings = {"padding_id": data.padding_id, "precision": recipe.train.precision, "processes": self.processes}
        score = validate(plain, data.validation, run.device, **settings)  # type: ignore[arg-type]
        content = as_read(result(run, base) | {"accuracy": score.accuracy, "validation_loss": score.loss})
        if self.processes.leads:
            save_model(plain, folder.model)
            write_json(folder.result, content)
        self._close(folder, "done", "")
        self.processes.wait()
        return content

    def _session(self, recipe: Recipe, folder: Folder, data: Data, method: Method | None) -> Session:
        settings, processes = recipe.train, self.processes
        device = build.choose_device(settings.device, processes.local_rank)
        randomness.seed_everything(recipe.seed, 0)
        model = build.build_model(recipe.model, data).to(device)
        if settings.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        sp = None
        if method is not None:
            inputs, _ = next(iter(data.train.epoch(0)))
            sp = build.attach(recipe, method, model, data.train.steps, tuple(each[:1].to(device) for each in inputs))
            sp.compute(settings.compute)
        runner = spread(model, settings.strategy, processes, device)
        if settings.compile:
            runner = torch.compile(runner)  # type: ignore[assignment]
        optimizer = build.build_optimizer(recipe, model, sp, data.train.steps, build.stage_epochs(recipe, method))
        if sp is not None:
            sp.bind(optimizer)
        randomness.seed_everything(recipe.seed, 1 + processes.rank)
        return Session(recipe, folder, processes, device, data, method, model, runner, sp, optimizer, self.progress, self.stop)

    def _score(self, run: Session) -> None:
        """Show data to the methods that choose their mask before training."""
        if run.sp is None or run.method is None or type(run.method).score is Method.score:
            return
        count = min(run.recipe.train.score_batches, run.steps)
        batches = [batch for _, batch in zip(range(count), run.data.train.epoch(0), strict=False)]

        def loss_of(model: nn.Module, batch: tuple[tuple[Tensor, ...], Tensor]) -> Tensor:
            inputs, target = batch
            output = model(*(each.to(run.device) for each in inputs))
            return summed_loss(output, target.to(run.device), run.data.padding_id) / target.shape[0]

        run.sp.score(batches, loss_of)

    def _describe(self, folder: Folder, recipe: Recipe, data: Data) -> None:
        if not self.processes.leads:
            return
        known = read_json(folder.info) if folder.info.exists() else {}
        write_text(folder.recipe, dump_recipe(recipe))
        if data.text is not None:
            data.text.save(folder.path / "tokenizer.json")
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
            started=known.get("started", datetime.now(UTC).isoformat(timespec="seconds")),
            data=data.facts,
        )

    def _close(self, folder: Folder, status: str, message: str) -> None:
        if self.processes.leads:
            folder.update_info(status=status, message=message)


def claim(folder: Folder, recipe: Recipe, resume: bool) -> None:
    """Refuse a folder that holds another run, or a resume that would change one."""
    if not folder.exists or (folder.stillborn and not resume):
        if resume:
            raise ValueError(f"there is nothing to resume in {folder.path}: start the run without --resume")
        folder.path.mkdir(parents=True, exist_ok=True)
        return
    if not resume:
        raise ValueError(f"{folder.path} exists already: go on with --resume, or choose another folder with --out")
    if not folder.recipe.exists():
        raise ValueError(f"{folder.path} is not the folder of a run: it has no recipe.yaml; choose another with --out")
    changed = [line for line in differences(load_recipe(folder.recipe), recipe) if not line.startswith(FREE)]
    if changed:
        raise ValueError(
            f"the recipe differs from that of the run in {folder.path}: {'; '.join(changed)}. "
            "Resume without the changes, or start a new run with --out"
        )


def dense_of(recipe: Recipe) -> Recipe:
    """The same recipe without sparsity."""
    train_block = recipe.train.model_copy(update={"dense_beside": False, "compute": "dense"})
    return recipe.model_copy(update={"method": {"name": "dense"}, "train": train_block, "paper": None})


def finished_model(run: Session) -> nn.Module:
    """The plain model with its zeros baked in; every rank gets the whole of it."""
    with torch.random.fork_rng():
        plain = build.build_model(run.recipe.model, run.data).to(run.device)
    if run.recipe.train.channels_last:
        plain = plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if run.sp is not None:
        return run.sp.finalize(into=plain)
    state = run.model.state_dict()
    plain.load_state_dict({name: each.full_tensor() if hasattr(each, "full_tensor") else each for name, each in state.items()})
    return plain


def save_model(plain: nn.Module, path: Path) -> None:
    """Plain weights; a tied weight is stored once, `safetensors.torch.load_model` brings both back."""
    unfinished = path.with_name(f".{path.name}.tmp")
    for parameter in plain.parameters():
        parameter.data = parameter.data.contiguous()
    safetensors.torch.save_model(plain, str(unfinished), metadata={"format": "pt"})
    unfinished.replace(path)


def write_reference(path: Path, losses: list[float]) -> None:
    recorder = ReferenceRecorder(path)
    for loss in losses:
        recorder.record(loss)


def result(run: Session, base: float | None) -> dict[str, Any]:
    """The figures of a finished run."""
    position, lines = run.position, run.folder.read_metrics()
    content: dict[str, Any] = {
        "name": run.recipe.name,
        "method": run.recipe.method["name"],
        "seed": run.recipe.seed,
        "epochs": position.epoch,
        "step": position.step,
        "seconds": run.seconds,
        "loss": lines[-1]["loss"] if lines else None,
        "best_accuracy": position.best_accuracy,
        "best_epoch": position.best_epoch,
        "base_accuracy": base,
        "sparsity": 0.0,
        "train_fraction": 1.0,
        "test_fraction": 1.0,
    }
    if run.sp is None:
        return content
    report = run.sp.report().to_dict()
    profile = run.sp.cost.profile
    kept = (
        "sparsity",
        "train_fraction",
        "test_fraction",
        "layers",
        "weights",
        "zeros",
        "notes",
        "events",
        "controller",
        "history",
    )
    content |= {name: report[name] for name in kept} | {"compute": report["compute"]}
    if profile is not None:
        content |= {"total_macs": profile.macs, "macs": {layer.name: layer.macs for layer in profile.layers}}
    return content
