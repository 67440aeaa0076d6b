"""`python -m tailrace_gateway`: the command line."""

import sys

from tailrace_gateway import cli

if __name__ == "__main__":
    sys.exit(cli.main(sys.argv[1:]))
