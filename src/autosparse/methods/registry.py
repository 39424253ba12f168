"""All methods behind one switch: `@register` makes a class known, `method(name, **fields)` makes one of its kind."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar, dataclass_transform

from autosparse.common.words import did_you_mean
from autosparse.methods.families.base import About, Method

# What people come for; the table of methods goes in this order.
FAMILIES = ("learned budgets", "fixed budget", "sparse to sparse", "before training", "already sparse", "baselines")
METHODS: dict[str, type[Method]] = {}
# Hooks of release 0.1, and where what they said belongs now.
REMOVED = {
    **dict.fromkeys(("gate_is_rare", "guarded", "learned_decay", "needs_decay", "keeps_dense"), "traits"),
    **{"ready": "before_step", "detach": "the parametrization's harden", "fields": "the dataclass fields"},
}

Kind = TypeVar("Kind", bound=Method)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,))
def register(cls: type[Kind]) -> type[Kind]:
    """Make a class a frozen dataclass, and known by the name in its `about`."""
    about = getattr(cls, "about", None)
    if not issubclass(cls, Method) or not isinstance(about, About):
        raise TypeError(f"{cls.__name__} must be a Method with `about = About(name=..., ...)` to be registered")
    for hook in sorted(REMOVED.keys() & vars(cls).keys()):
        raise TypeError(f"{cls.__name__}.{hook} is never called since 0.2: {REMOVED[hook]} took its place")
    doc = about.doc or (cls.__doc__ or "").partition("\n")[0]
    holder = METHODS.get(about.name)
    if holder is not None and holder.__qualname__ != cls.__qualname__:
        raise ValueError(f"the name {about.name!r} belongs to {holder.__qualname__}; give {cls.__qualname__} another")
    METHODS[about.name] = dataclass(frozen=True, kw_only=True)(cls)
    budget = "budgeted" if any(field.name == "sparsity" for field in dataclasses.fields(cls)) else "learned"
    cls.about = dataclasses.replace(about, doc=doc, budget=about.budget or budget)
    return cls


def list_methods() -> list[str]:
    """The names that `method` takes, by family."""
    return sorted(METHODS, key=lambda name: (_place(METHODS[name].about.family), name))


def _place(family: str) -> int:
    return FAMILIES.index(family) if family in FAMILIES else len(FAMILIES)


def method(name: str, **fields: Any) -> Method:
    """A method by its name, with the fields of its config class."""
    cls = lookup(name)
    allowed = [field.name for field in dataclasses.fields(cls)]
    for field in fields:
        if field not in allowed:
            hint = did_you_mean(field, allowed, ".")
            raise ValueError(f"{name} has no field {field!r}{hint} Its fields: {', '.join(allowed)}")
    return cls(**fields)


def describe(name: str) -> About:
    """The method's row in the table of methods."""
    return lookup(name).about


def lookup(name: str) -> type[Method]:
    """The class of a method."""
    if name not in METHODS:
        hint = did_you_mean(name, METHODS, ".")
        raise ValueError(f"there is no method {name!r}{hint} Methods: {', '.join(list_methods())}")
    return METHODS[name]
