"""`python -m tailrace_gateway`: the command line, or with `worker` the process that `tailrace run` keeps alive."""

import sys


def main(arguments: list[str]) -> int:
    """Chooses by the first word."""
    if arguments[:1] == ["worker"]:
        from tailrace_gateway import worker

        return worker.main(arguments[1:])
    from tailrace_gateway import cli

    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
