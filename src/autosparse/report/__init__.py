"""Reports of runs: one HTML page and PNG figures. `figures` holds plain matplotlib functions for other uses."""

from autosparse.report.comparison import Compared, compare_runs
from autosparse.report.runs import Run, read_run, read_runs
from autosparse.report.write import write_report

__all__ = ["Compared", "Run", "compare_runs", "read_run", "read_runs", "write_report"]
