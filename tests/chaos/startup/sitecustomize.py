"""Python runs this in every process of a trial: it notes the moments at which a run could die, and kills it at one of them.

A moment is a change of the disk (seen through Python's audit events, before it happens), an optimizer step or a new plan of the
compute modes. CHAOS_MARKS names the file that receives one line per moment of the process with the word CHAOS_WHO in its
command and the rank CHAOS_RANK; CHAOS_KILL says where to die: {"who": a word of the command, "rank": of torchrun or "",
"label": the moment, "occurrence": from 1, "delay": seconds, "once": a file that says that it has happened}.
"""

import json
import os
import re
import signal
import sys
import threading
import time
from collections import Counter
from typing import Any

CHANGES = ("open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
RANDOM = re.compile(r"\.[0-9a-f]{12}\.tmp(?=/|$)")  # the name of a file, or of the folder that it is in
OTHERS = ("tensorboard", "__pycache__")  # written by threads, or only by the first process
HERE = ""  # the folder of the trial: what is written elsewhere, such as temporary files, is not the run's


class Moments:
    """Counts the moments of this process by their labels."""

    def __init__(self, marks: str | None, order: dict[str, Any] | None) -> None:
        self.marks, self.order = marks, order
        self.counts: Counter[str] = Counter()
        self.is_noting = False
        self.watches_calls = False

    def hear(self, event: str, details: tuple[Any, ...]) -> None:
        """An audit hook; what it does itself makes events, too."""
        if self.is_noting or threading.current_thread() is not threading.main_thread():
            return
        if not self.watches_calls:
            self.watch_calls()
        if event in CHANGES:
            label = label_of(event, details)
            if label is not None:
                self.note(label)

    def note(self, label: str) -> None:
        self.is_noting = True
        try:
            self.counts[label] += 1
            if self.marks is not None:
                with open(self.marks, "a", encoding="utf-8") as file:
                    file.write(label + "\n")
            if self.order is not None and (label, self.counts[label]) == (self.order["label"], self.order["occurrence"]):
                self.die(self.order)
        finally:
            self.is_noting = False

    def die(self, order: dict[str, Any]) -> None:
        if order["delay"]:
            threading.Thread(target=strike, args=(order,), daemon=True).start()
        else:
            strike(order)

    def watch_calls(self) -> None:
        """Steps and plans change no file: their functions say when they are over, once they are imported."""
        loop = sys.modules.get("autosparse.training.loop")
        if loop is None or getattr(loop.__spec__, "_initializing", False):
            return
        self.watches_calls = True
        from autosparse.compute.compute import Compute

        self.follow(loop, "train_step", "step")
        self.follow(Compute, "plan", "plan")

    def follow(self, owner: Any, name: str, label: str) -> None:
        function = getattr(owner, name)

        def followed(*arguments: Any, **named: Any) -> Any:
            result = function(*arguments, **named)
            self.note(label)
            return result

        setattr(owner, name, followed)


def strike(order: dict[str, Any]) -> None:
    """SIGKILL to this process, unless another has died of the same order."""
    time.sleep(order["delay"])
    try:
        os.close(os.open(order["once"], os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def label_of(event: str, details: tuple[Any, ...]) -> str | None:
    """The change and the last two parts of the path, without what is random in it; None for what is not the run's."""
    path = details[1] if event in ("os.rename", "os.link") else details[0]
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    text = os.path.abspath(os.fsdecode(path))
    is_of_the_run = text.startswith(HERE) and not any(part in text for part in OTHERS)
    if not is_of_the_run or (event == "open" and not is_writing(details)):
        return None
    return f"{event} {RANDOM.sub('.tmp', os.path.join(*text.split(os.sep)[-2:]))}"


def is_writing(details: tuple[Any, ...]) -> bool:
    _, mode, flags = details
    return bool(set(mode) & set("wax+")) if mode is not None else bool(flags & WRITING)


def begin() -> None:
    """Watch this process if the order, or the wish for marks, is meant for it."""
    global HERE
    HERE = os.path.join(os.getcwd(), "")
    command, rank = sys.orig_argv, os.environ.get("RANK", "")
    text, marks = os.environ.get("CHAOS_KILL"), os.environ.get("CHAOS_MARKS")
    order = json.loads(text) if text else None
    if order is not None and (order["who"] not in command or order["rank"] != rank):
        order = None
    if os.environ.get("CHAOS_WHO") not in command or os.environ.get("CHAOS_RANK", "") != rank:
        marks = None
    if order is not None or marks is not None:
        sys.addaudithook(Moments(marks, order).hear)


begin()
