"""`kubectl tailrace`: reads arguments and hands them on; usage errors exit 64. No IO of its own but help and errors."""

import argparse
import sys
from collections.abc import Sequence

from tailrace_gateway.cli import EXIT_USAGE, VERSION
from tailrace_gateway.console import Console
from tailrace_gateway.grammar import Parser, output
from tailrace_gateway.plugin.kubectl import Kubectl, KubectlFailed, flags_of
from tailrace_gateway.plugin.scope import NotFound

PROGRAM = "kubectl tailrace"
ABOUT = """See and try what Tailrace serves in a cluster, with your own rights and through kubectl.

`status` shows what each pod has acknowledged, `diff` what an apply would change for callers, `explain` who sees what,
`call` calls a query, `runs` reads what was recorded. Flags stand behind the command: kubectl tailrace status -n retail"""


def parser() -> Parser:
    """The whole grammar."""
    top = Parser(prog=PROGRAM, description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"{PROGRAM} {VERSION}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)

    def cluster(to: Parser, *, everywhere: bool = False) -> None:
        to.add_argument("-n", "--namespace", metavar="NAMESPACE", default="", help="the namespace (default: the context's)")
        if everywhere:
            to.add_argument("-A", "--all-namespaces", dest="everywhere", action="store_true", help="all namespaces")
        to.add_argument("--context", metavar="NAME", help="the kubeconfig's context (default: the current one)")
        to.add_argument("--kubeconfig", metavar="FILE", help="the kubeconfig (default: as kubectl has it)")
        to.add_argument("--as", dest="user", metavar="USER", help="whom to impersonate")

    def command(name: str, help_text: str, about: str) -> Parser:
        made: Parser = commands.add_parser(
            name, help=help_text, description=about, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )
        return made

    status = command(
        "status",
        "what is served, and what each pod has acknowledged",
        "A tree: each QueryAPI, its pods with what they run on, refused queries, keys, and every condition that needs a look.\n"
        "Exits 1 if an API or a key is not Ready, or a ready pod could not be asked.\n"
        "Rights: get and list of the resources and of pods (role view); to ask pods, pods/portforward (role edit).",
    )
    status.add_argument("name", metavar="NAME", nargs="?", help="only this QueryAPI")
    status.add_argument("--no-pods", dest="pods", action="store_false", help="ask no pods: only what the objects say")
    cluster(status, everywhere=True)
    output(status)
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
    kubectl = Kubectl(tuple(flags_of(given.context, given.kubeconfig, given.user)), given.namespace)
    try:
        return _command(given, console, kubectl)
    except (KubectlFailed, NotFound) as failed:
        console.note(f"{PROGRAM} {given.command}: {failed}")
        return 1
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except KeyboardInterrupt:
        return 130


def _command(given: argparse.Namespace, console: Console, kubectl: Kubectl) -> int:
    """Imports only what the command needs."""
    match given.command:
        case _:
            from tailrace_gateway.plugin import status

            return status.main(given, console, kubectl)
