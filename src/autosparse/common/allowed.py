"""Packages whose code a recipe or run folder may name: those that the user has allowed, and no others."""

from __future__ import annotations

import os
from collections.abc import Iterable

VARIABLE = "AUTOSPARSE_ALLOW_CODE"  # of the environment, so that the processes of a comparison and of torchrun inherit it


def allowed_packages() -> list[str]:
    """What the environment allows, without repetition."""
    return list(dict.fromkeys(name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()))


def allow(packages: Iterable[str]) -> None:
    """Allow more packages in this process and in those that it starts."""
    given = list(packages)
    for package in given:
        if not is_module_name(package):
            raise ValueError(
                f"--allow-code {package}: give the name of a package or module alone, such as timm or mynets.small"
            )
    if given:
        os.environ[VARIABLE] = ",".join(dict.fromkeys([*allowed_packages(), *given]))


def is_module_name(text: str) -> bool:
    """Whether this is of the form package.module."""
    return all(part.isidentifier() for part in text.split("."))


def check_allowed(name: str, module: str) -> None:
    """Refuse to run code of `module`, which a recipe's or run's model `name` leads to, unless it was allowed."""
    if not any(f"{module}.".startswith(f"{package}.") for package in allowed_packages()):
        package = module.partition(".")[0]
        raise ValueError(
            f"model {name!r} would run code of {package}, and a recipe or run may name only code that you allow: "
            f"if you trust it, add --allow-code {package} (or set {VARIABLE}={package})"
        )
