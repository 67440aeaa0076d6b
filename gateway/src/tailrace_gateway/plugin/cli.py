"""`kubectl tailrace`: reads arguments and hands them on; usage errors exit 64. No IO of its own but help and errors."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tailrace_gateway import grammar
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

    def api(to: Parser) -> None:
        to.add_argument("--api", metavar="NAME", help="which QueryAPI, if the namespace has several")

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

    explain = command(
        "explain",
        "show who sees what, and why",
        "For each query and role: tables read, columns shown, masks, parameters that keys fix, and how it is served. Compiled at this moment\n"
        "in a gateway's container, which alone reaches the databases, from the objects that stand in the cluster.\n"
        "Rights: get and list of the resources, list of pods, pods/exec (role edit); get of ConfigMaps that queries are in.",
    )
    explain.add_argument("query", metavar="QUERY", nargs="?", help="only this query")
    explain.add_argument("--role", metavar="NAME", help="only this role")
    api(explain)
    cluster(explain)
    output(explain)

    diff = command(
        "diff",
        "what an apply would change for callers",
        "Tells who would see more and what would break for callers if the files were applied: as `tailrace diff`, with what stands in the\n"
        "cluster as OLD. What the files do not name stays as it is. Exits 1 if someone would see more or something would break.\n"
        "Rights: get and list of the resources, and get of ConfigMaps that queries are in (role view).",
    )
    diff.add_argument(
        "-f",
        "--file",
        dest="files",
        metavar="PATH",
        type=Path,
        action="append",
        default=[],
        help="file, directory, or - for standard input; may be given several times",
    )
    diff.add_argument("-k", "--kustomize", metavar="DIR", type=Path, help="a kustomization, built by kubectl, instead of files")
    cluster(diff)
    output(diff)

    call = command(
        "call",
        "call a query",
        "Calls a query through a port forwarded to the API's Service, as the holder of a key. Prints the answer's body; the status line goes to\n"
        "standard error. Exits 1 unless the status is 2xx. A query of the API's own list that writes is called by POST.\n"
        "Rights: get of the resources and Services, list of pods, pods/portforward, and for --api-key get of its Secret (role edit);\n"
        "with http.tls and without --ca also get of the certificate's Secret.",
    )
    call.add_argument("query", metavar="QUERY", help="name of the query")
    call.add_argument(
        "arguments",
        metavar="NAME=VALUE",
        nargs="*",
        help="its parameters, and page_size, cursor or format; NAME:=JSON for a list whose elements hold commas, or null",
    )
    api(call)
    holder = call.add_mutually_exclusive_group()
    holder.add_argument("--key", metavar="FILE", type=Path, help="file with the key (- for standard input)")
    holder.add_argument("--api-key", metavar="[NAMESPACE/]NAME", help="the ApiKey whose Secret has the key (default: the API's only one)")
    call.add_argument("-i", "--include", action="store_true", help="print the status line and the headers before the body")
    call.add_argument(
        "-H", "--header", metavar="'NAME: VALUE'", action="append", default=[], help="another header, such as Idempotency-Key"
    )
    call.add_argument(
        "--ca",
        metavar="FILE",
        type=Path,
        help="with http.tls: PEM certificates that must have signed the API's (default: it must be the one in the Secret of http.tls)",
    )
    call.add_argument(
        "--server-name", metavar="NAME", help="with http.tls: what the certificate must be for (default: NAME.NAMESPACE.svc, the Service)"
    )
    call.add_argument("--post", action="store_true", help="call by POST: for a query in a ConfigMap that writes")
    cluster(call)

    runs = command(
        "runs",
        "read what was recorded",
        "Reads the runs of an API by `tailrace runs` in one of its pods.\nRights: list of pods, pods/exec (role edit).",
    )
    actions = runs.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser, required=True)
    tail = actions.add_parser(
        "tail", help="the newest runs", description="Prints the newest runs, the newest of them last.", allow_abbrev=False
    )
    api(tail)
    tail.add_argument("--follow", action="store_true", help="go on with those that come, until Ctrl-C")
    tail.add_argument("--limit", metavar="N", type=grammar.limit, default=20, help="how many, at most 1000 (default: 20)")
    tail.add_argument("--query", metavar="NAME", help="only of this query")
    tail.add_argument("--key", metavar="[NAMESPACE/]NAME", help="only of this key")
    tail.add_argument("--status", metavar="N", type=grammar.status, help="only with this HTTP status, or 4 for every 4xx")
    cluster(tail)
    output(tail)
    verify = actions.add_parser(
        "verify",
        help="prove that no run is missing",
        description="As `tailrace runs verify`, with the spools of all pods whose API uses the same RunStore. Exits 1 if a run is missing or a pod's\n"
        "spool could not be read. What a pod that is gone had not shipped can't be seen.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    api(verify)
    cluster(verify)
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
        case "call":
            from tailrace_gateway.plugin import call

            return call.main(given, console, kubectl)
        case "explain":
            from tailrace_gateway.plugin import explain

            return explain.main(given, console, kubectl)
        case "diff":
            from tailrace_gateway.plugin import difference

            return difference.main(given, console, kubectl)
        case "runs":
            from tailrace_gateway.plugin import runs

            return runs.main(given, console, kubectl)
        case _:
            from tailrace_gateway.plugin import status

            return status.main(given, console, kubectl)
