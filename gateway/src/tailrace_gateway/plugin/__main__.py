"""`python -m tailrace_gateway.plugin`: as `kubectl tailrace`."""

import sys

from tailrace_gateway.plugin.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
