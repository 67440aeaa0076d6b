"""Checks that every command named in docs/acceptance.md exists: make targets, test files and functions, scripts."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def targets() -> set[str]:
    """Targets of the Makefile."""
    return set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def rust_tests() -> set[str]:
    """Names of all Rust functions, modules and test files."""
    names = set()
    for path in (p for top in ("dataplane-rs", "loadtests/generator") for p in (ROOT / top).rglob("*.rs")):
        if "target" not in path.parts:
            names |= {path.stem, path.parent.name, *re.findall(r"\bfn (\w+)", path.read_text())}
    return names


def fault(command: str, make: set[str], rust: set[str]) -> str | None:
    """Why the command cannot be run, or None."""
    match command.split():
        case ["make", target, *_]:
            return None if target in make else f"no make target {target}"
        case ["pytest", *rest]:
            for word in (w for w in rest if not w.startswith("-")):
                file, *parts = word.split("::")
                if not (ROOT / file).exists():
                    return f"no file {file}"
                for part in parts:
                    if not re.search(rf"(def|class) {re.escape(part.split('[')[0])}\b", (ROOT / file).read_text()):
                        return f"no {part} in {file}"
            return None
        case ["cargo", "test", *rest]:
            skipped = {n + 1 for n, word in enumerate(rest) if word in ("-p", "--package")}
            for word in (w for n, w in enumerate(rest) if not w.startswith("-") and n not in skipped):
                if any(part not in rust for part in word.split("::")):
                    return f"no Rust test {word}"
            return None
        case [script, *_] if "/" in script:
            return None if (ROOT / script).exists() else f"no file {script}"
    return "a command of a kind that this check doesn't know"


def main() -> int:
    """Prints each bad row; 1 if there is any."""
    make, rust, bad, rows, filled = targets(), rust_tests(), 0, 0, 0
    for number, line in enumerate((ROOT / "docs/acceptance.md").read_text().splitlines(), 1):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) != 5 or cells[0] == "row" or set(cells[0]) <= {"-"}:
            continue
        rows += 1
        filled += bool(cells[2] and cells[3])
        for command in re.findall(r"`([^`]+)`", cells[2]):
            if why := fault(command, make, rust):
                bad += 1
                sys.stderr.write(f"docs/acceptance.md:{number}: row {cells[0]}: {why}\n")
    if not bad:
        sys.stdout.write(f"acceptance: {filled} of {rows} rows have a result\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
