"""Arguments of the command lines: a parser whose usage errors exit 64, and the types of words. No IO but its errors."""

import argparse
import sys
from typing import NoReturn

from tailrace_contract.ids import Ref, parse_ref

from tailrace_gateway.settings import Address, parse_address

EXIT_USAGE = 64


class Parser(argparse.ArgumentParser):
    """As the standard one, but usage errors exit 64 (EX_USAGE)."""

    def error(self, message: str) -> NoReturn:
        """Says what is wrong and how to get help."""
        sys.stderr.write(f"{self.prog}: {message}\ntry: {self.prog} --help\n")
        sys.exit(EXIT_USAGE)


def address(text: str) -> Address:
    """HOST:PORT."""
    try:
        return parse_address(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:8080") from None


def ref(text: str) -> Ref:
    """[NAMESPACE/]NAME."""
    try:
        return parse_ref(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def threads(text: str) -> int:
    """How many threads serve."""
    return _number(text, 256)


def limit(text: str) -> int:
    """How many runs are shown."""
    return _number(text, 1000)


def _number(text: str, highest: int) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= highest:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {highest}")
    return int(text)


def status(text: str) -> int:
    """An HTTP status, or 4 for every 4xx."""
    if not text.isascii() or not text.isdigit() or not (1 <= int(text) <= 5 or 100 <= int(text) <= 599):
        raise argparse.ArgumentTypeError(f"{text!r} is not an HTTP status or its first digit")
    return int(text)


def output(to: argparse.ArgumentParser) -> None:
    """Adds `-o`."""
    to.add_argument("-o", "--output", choices=["text", "json"], default="text", help="for people or for programs (default: text)")
