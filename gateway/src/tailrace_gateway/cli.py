"""`tailrace`: the command line. Reads arguments and hands them to `commands`; usage errors exit 64. No IO of its own but help and errors."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tailrace_gateway import grammar
from tailrace_gateway.console import Console
from tailrace_gateway.grammar import EXIT_USAGE as EXIT_USAGE
from tailrace_gateway.grammar import Parser, output
from tailrace_gateway.settings import Address

VERSION = "0.1.0"

ABOUT = """Serve SQL queries as a governed HTTP API.

Files say what to serve: a QueryAPI (databases, queries, roles), ApiKeys (who may call) and a RunStore (where calls are
recorded). `tailrace run` serves them, `check` lists what is wrong with them, `explain` shows who sees what."""

FILES = "file or directory (its *.yaml, *.yml, *.json) with resources and Secrets; may be given several times"
DATA = "directory for sockets, keys, secrets and recorded runs (default: .tailrace)"


def parser() -> Parser:
    """The whole grammar."""
    top = Parser(prog="tailrace", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"tailrace {VERSION}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)

    def command(name: str, help_text: str, about: str) -> Parser:
        made: Parser = commands.add_parser(
            name, help=help_text, description=about, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )
        return made

    def common(to: Parser, *, files: bool = True, more: str = "") -> None:
        if files:
            to.add_argument("-f", "--file", dest="files", metavar="PATH", type=Path, action="append", required=True, help=FILES + more)
            to.add_argument("--api", metavar="[NAMESPACE/]NAME", type=grammar.ref, help="which QueryAPI, if the files have several")
        to.add_argument("--data", metavar="DIR", type=Path, default=Path(".tailrace"), help=DATA)

    run = command(
        "run",
        "serve the files and watch them",
        "Serves the files on this machine and watches them: a change is in force within a second.\n"
        "Prints the API's address, its queries and where the keys are, once it is ready. Ctrl-C ends it.",
    )
    common(run)
    run.add_argument(
        "--listen", metavar="HOST:PORT", type=grammar.address, default=Address("127.0.0.1", 8080), help="the API (default: 127.0.0.1:8080)"
    )
    run.add_argument(
        "--admin",
        metavar="HOST:PORT",
        type=grammar.address,
        default=Address("127.0.0.1", 9090),
        help="health and metrics (default: 127.0.0.1:9090)",
    )
    run.add_argument("--metrics", metavar="HOST:PORT", type=grammar.address, help="metrics of the Python part (default: none)")
    run.add_argument("--no-data-plane", action="store_true", help="serve from Python alone: slower, needs no Rust")
    run.add_argument(
        "--data-plane-binary", metavar="FILE", type=Path, help="the data plane's program (default: TAILRACE_DATAPLANE, cargo's build, PATH)"
    )
    run.add_argument("--threads", metavar="N", type=grammar.threads, help="serving threads of the data plane (default: one a core)")
    run.add_argument("--logs", metavar="FILE", type=Path, help="where both parts write their logs (default: standard error)")

    check = command(
        "check",
        "list everything that is wrong with the files",
        "Lists every fault at once, with file, line and fix: form, references, and whether each query compiles against its live\n"
        "database for each role. Exits 1 if there is one. Nothing is served or written.",
    )
    common(check, more="; - for standard input")
    check.add_argument("--offline", action="store_true", help="only what can be told without the databases")
    check.add_argument("--print-ddl", action="store_true", help="print the SQL that makes each connection's idempotencyTable")
    output(check)

    explain = command(
        "explain",
        "show who sees what, and why",
        "For each query and key: tables read, columns shown, masks, parameters that the key fixes, and how it is served.\n"
        "This is what was decided ahead of the first call, against the live databases.",
    )
    common(explain, more="; - for standard input")
    explain.add_argument("--query", metavar="NAME", help="only this query")
    explain.add_argument("--key", metavar="[NAMESPACE/]NAME", type=grammar.ref, help="only this key")
    output(explain)

    diff = command(
        "diff",
        "compare two versions of the files",
        "Tells who would see more and what would break for callers if NEW replaced OLD. Needs no database.\n"
        "Exits 1 if someone would see more or something would break.",
    )
    diff.add_argument("old", metavar="OLD", type=Path, help="file or directory with the resources as they are")
    diff.add_argument("new", metavar="NEW", type=Path, help="file or directory with the resources as they would be")
    output(diff)

    runs = command("runs", "read what was recorded", "Reads the runs below --data; a running Tailrace is not disturbed.")
    actions = runs.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser, required=True)
    tail = actions.add_parser(
        "tail", help="the newest runs", description="Prints the newest runs, the newest of them last.", allow_abbrev=False
    )
    common(tail, files=False)
    tail.add_argument("--follow", action="store_true", help="go on with those that come, until Ctrl-C")
    tail.add_argument("--until-eof", action="store_true", help="with --follow: end when standard input ends")
    tail.add_argument("--limit", metavar="N", type=grammar.limit, default=20, help="how many, at most 1000 (default: 20)")
    tail.add_argument("--query", metavar="NAME", help="only of this query")
    tail.add_argument("--key", metavar="[NAMESPACE/]NAME", type=grammar.ref, help="only of this key")
    tail.add_argument("--status", metavar="N", type=grammar.status, help="only with this HTTP status, or 4 for every 4xx")
    output(tail)
    verify = actions.add_parser(
        "verify",
        help="prove that no run is missing",
        description="Each serving thread numbers its runs without a gap. Compares what is stored, open and in the spool with those\n"
        "numbers, and exits 1 if one is nowhere.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    common(verify, files=False)
    verify.add_argument(
        "--data-plane-binary", metavar="FILE", type=Path, help="the data plane's program (default: TAILRACE_DATAPLANE, cargo's build, PATH)"
    )
    verify.add_argument(
        "--spool",
        metavar="FILE",
        type=Path,
        help="what `tailrace-dataplane spool-status` printed (- for standard input), instead of the spool of --data",
    )
    output(verify)

    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the exit code: 0 fine, 1 something is wrong with what was looked at, 64 with how it was asked."""
    top = parser()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words:
        top.print_help()
        return EXIT_USAGE
    given = top.parse_args(words)
    console = Console(json=getattr(given, "output", "text") == "json")
    try:
        return _command(given, console)
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        return 130


def _command(given: argparse.Namespace, console: Console) -> int:
    """Imports only what the command needs: `--help` and `runs tail` should not wait for a SQL parser."""
    match given.command:
        case "run":
            from tailrace_gateway.commands import run

            return run.main(given, console)
        case "check":
            from tailrace_gateway.commands import check

            return check.main(given, console)
        case "explain":
            from tailrace_gateway.commands import explain

            return explain.main(given, console)
        case "runs":
            from tailrace_gateway.commands import runs

            return runs.main(given, console)
        case _:
            from tailrace_gateway.commands import difference

            return difference.main(given, console)
