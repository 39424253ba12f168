"""All methods behind one switch: `method(name, **fields)`. A new method is one file and one line here."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from autosparse.methods.autosparse import STR, AutoSparse
from autosparse.methods.cs import CS
from autosparse.methods.dns import DNS
from autosparse.methods.dnw import DNW
from autosparse.methods.dpf import DPF
from autosparse.methods.dsr import DSR
from autosparse.methods.dst import DST
from autosparse.methods.families.base import About, Method
from autosparse.methods.gmp import GMP
from autosparse.methods.grasp import GraSP
from autosparse.methods.lottery import LotteryTicket
from autosparse.methods.ltp import LTP
from autosparse.methods.mest import MEST
from autosparse.methods.optg import OptG
from autosparse.methods.prune_retrain import PruneRetrain
from autosparse.methods.random import Random
from autosparse.methods.rigl import RigL
from autosparse.methods.scl import SCL
from autosparse.methods.set import SET
from autosparse.methods.snfs import SNFS
from autosparse.methods.snip import SNIP
from autosparse.methods.swat import SWAT
from autosparse.methods.synflow import SynFlow
from autosparse.methods.topkast import TopKAST, TopKASTGA, TopKASTPP

CLASSES: tuple[type[Method], ...] = (
    *(AutoSparse, STR, DST, OptG, LTP, CS, SCL),  # learned during training
    *(TopKAST, TopKASTPP, TopKASTGA, RigL, SET, DSR, SNFS, MEST, SWAT),  # fixed budget, sparse to sparse
    *(GMP, DNW, DPF),  # dense to sparse
    *(SNIP, GraSP, SynFlow, Random),  # before training
    *(PruneRetrain, LotteryTicket, DNS),  # after or around training
)
METHODS = {cls.about.name: cls for cls in CLASSES}
__all__ = [
    "CLASSES",
    "CS",
    "DNS",
    "DNW",
    "DPF",
    "DSR",
    "DST",
    "GMP",
    "LTP",
    "MEST",
    "METHODS",
    "SCL",
    "SET",
    "SNFS",
    "SNIP",
    "STR",
    "SWAT",
    "About",
    "AutoSparse",
    "GraSP",
    "LotteryTicket",
    "Method",
    "OptG",
    "PruneRetrain",
    "Random",
    "RigL",
    "SynFlow",
    "TopKAST",
    "TopKASTGA",
    "TopKASTPP",
    "describe",
    "list_methods",
    "method",
]


def list_methods() -> list[str]:
    """The names that `method` takes."""
    return list(METHODS)


def method(name: str, **fields: Any) -> Method:
    """A method by its name, with the fields of its config class."""
    cls = _lookup(name)
    known = [field.name for field in dataclasses.fields(cls)]
    for field in fields:
        if field not in known:
            near = difflib.get_close_matches(field, known, n=3, cutoff=0.4)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise ValueError(f"{name} has no field {field!r}{hint} Its fields: {', '.join(known)}")
    return cls(**fields)


def describe(name: str) -> About:
    """The method's row in the table of methods."""
    return _lookup(name).about


def _lookup(name: str) -> type[Method]:
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, n=3, cutoff=0.4)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise ValueError(f"there is no method {name!r}{hint} Methods: {', '.join(METHODS)}")
    return METHODS[name]
