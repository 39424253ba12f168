"""`autosparse bench`: measured speed, every contestant in one process and in turn."""

from __future__ import annotations

import typer

from autosparse.cli import bench_infer, bench_run, bench_scale, bench_train

app = typer.Typer(help="Measure speed, side by side with what else there is.", no_args_is_help=True, rich_markup_mode=None)
app.command("infer")(bench_infer.run)
app.command("run")(bench_run.run)
app.command("scale")(bench_scale.run)
app.command("train")(bench_train.run)
