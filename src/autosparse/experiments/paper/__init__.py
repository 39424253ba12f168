"""`autosparse paper`: the tables and figures of the AutoSparse paper, made again from runs."""
