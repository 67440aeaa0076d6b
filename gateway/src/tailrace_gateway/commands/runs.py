"""`tailrace runs tail` and `tailrace runs verify`. IO: see `tailrace_gateway.runs.commands`."""

import argparse

from tailrace_gateway.console import Console
from tailrace_gateway.runs.commands import tail, verify_data
from tailrace_gateway.runs.history import HistoryFilter


def main(given: argparse.Namespace, console: Console) -> int:
    """Runs one of both."""
    if given.action == "verify":
        return verify_data(given.data, console, given.data_plane_binary)
    key = str(given.key) if given.key is not None else None
    return tail(given.data, console, wanted=HistoryFilter(given.limit, key, given.query, given.status), follow=given.follow)
