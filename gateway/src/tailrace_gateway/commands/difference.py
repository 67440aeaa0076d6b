"""`tailrace diff OLD NEW`. IO: reads files; writes nothing."""

import argparse
from pathlib import Path

from tailrace_gateway import console as ink
from tailrace_gateway.cli import EXIT_USAGE
from tailrace_gateway.console import Console
from tailrace_gateway.diff import Change, Effect, differences
from tailrace_gateway.resources.files import FileSource
from tailrace_gateway.resources.state import ResourceState

HEADINGS = {
    Effect.WIDENS: ("who sees or may do more", ink.RED),
    Effect.BREAKS: ("what breaks for callers", ink.YELLOW),
    Effect.NARROWS: ("who sees less", ink.GREEN),
    Effect.CHANGES: ("what may differ (only the database can tell)", ink.BOLD),
    Effect.ADDS: ("what is new", ink.DIM),
}


def main(given: argparse.Namespace, console: Console) -> int:
    """Prints the changes; 1 when someone would see more or something would break, or when a file is faulty."""
    states = []
    for path in (given.old, given.new):
        if not path.exists():
            console.note(f"tailrace diff: there is no file or directory {path}")
            return EXIT_USAGE
        states.append(_read(path))
    faults = [located for state in states for located in state.findings]
    for located in faults:
        console.note(f"{located.where}: {located.finding.place}: {located.finding.message} ({located.finding.hint})")
    if faults:
        console.note("both sides must be free of faults to be compared: see `tailrace check --offline`")
        return 1
    old, new = states
    return show(differences(old, new), console)


def show(changes: list[Change], console: Console) -> int:
    """Prints them; 1 when someone would see more or something would break."""
    if console.json:
        console.value(
            [{"effect": each.effect.value, "subject": each.subject, "message": each.message, "who": list(each.who)} for each in changes]
        )
    else:
        _print(changes, console)
    return 1 if any(change.effect in (Effect.WIDENS, Effect.BREAKS) for change in changes) else 0


def _read(path: Path) -> ResourceState:
    return FileSource([path], Path(".tailrace"), keep=False).read()


def _print(changes: list[Change], console: Console) -> None:
    if not changes:
        console.line("nothing changes for callers")
    for effect, (heading, colour) in HEADINGS.items():
        mine = [change for change in changes if change.effect is effect]
        if mine:
            console.line(console.paint(heading, colour))
        for change in mine:
            who = f"  [{', '.join(change.who[:5])}{', …' if len(change.who) > 5 else ''}]" if change.who else ""
            console.line(f"  {change.subject}: {change.message}{console.paint(who, ink.DIM)}")
