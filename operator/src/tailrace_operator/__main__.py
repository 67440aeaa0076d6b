"""Starts the operator: `python -m tailrace_operator`. Wrong settings: one line each on the error stream, exit 64."""

import asyncio
import os
import socket
import sys

from tailrace_operator.errors import SettingsError
from tailrace_operator.process import run
from tailrace_operator.settings import parse_settings


def main() -> int:
    """Runs until SIGTERM; returns the exit status."""
    try:
        settings = parse_settings(os.environ, socket.gethostname())
    except SettingsError as error:
        for fault in error.faults:
            sys.stderr.write(f"tailrace-operator: {fault}\n")
        return 64
    return asyncio.run(run(settings))


if __name__ == "__main__":
    sys.exit(main())
