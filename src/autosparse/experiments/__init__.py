"""Grids of runs and what is made of them: `autosparse compare` and `autosparse paper`."""
