"""`tailrace runs tail` and `tailrace runs verify`. IO: see `tailrace_gateway.runs.commands`."""

import argparse
import os
import sys
import threading

from tailrace_gateway.console import Console
from tailrace_gateway.grammar import EXIT_USAGE
from tailrace_gateway.runs.commands import read_spool_status, tail, verify_data
from tailrace_gateway.runs.history import HistoryFilter


def main(given: argparse.Namespace, console: Console) -> int:
    """Runs one of both."""
    if given.action == "verify":
        try:
            spool = read_spool_status(given.spool) if given.spool is not None else None
        except ValueError as wrong:
            console.note(f"tailrace runs verify: --spool: {wrong}")
            return EXIT_USAGE
        return verify_data(given.data, console, given.data_plane_binary, spool)
    key = str(given.key) if given.key is not None else None
    ended = end_of_input() if given.until_eof else None
    return tail(given.data, console, wanted=HistoryFilter(given.limit, key, given.query, given.status), follow=given.follow, ended=ended)


def end_of_input() -> threading.Event:
    """Set when nobody can write to standard input any more: who started us elsewhere has gone."""
    ended = threading.Event()

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    return ended
