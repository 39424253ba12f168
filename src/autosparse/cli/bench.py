"""`autosparse bench`: measured speed, every contestant in one process and in turn."""

from __future__ import annotations

from types import ModuleType

import typer

from autosparse.cli import bench_infer, bench_run, bench_scale, bench_train
from autosparse.cli.options import help_of

app = typer.Typer(help="Measure speed, side by side with what else there is.", no_args_is_help=True, rich_markup_mode=None)
BENCHMARKS: dict[str, ModuleType] = {"infer": bench_infer, "run": bench_run, "scale": bench_scale, "train": bench_train}
for name, benchmark in BENCHMARKS.items():
    app.command(name, help=help_of(benchmark))(benchmark.run)
