"""One module a command of `tailrace`: each takes parsed arguments and a console and returns the exit code."""
