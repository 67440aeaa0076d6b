"""Command line: writes the generated files, or with `--check` exits 1 when one differs."""

import sys
from pathlib import Path

from tailrace_contract.generate import crds, pages, rust_codes, rust_store, schemas, yaml_text
from tailrace_contract.resource import Kind

_YAML_HEAD = "# Generated from tailrace_contract by `make generate`. Do not edit.\n"


def outputs() -> dict[str, str]:
    """Path below the repository → text, for every generated file."""
    files = {"dataplane-rs/src/codes.rs": rust_codes.render(), "dataplane-rs/src/runs/ddl.rs": rust_store.render()}
    for kind in Kind:
        text = _YAML_HEAD + yaml_text.dump(crds.render(kind))
        files |= {f"{folder}/{crds.NAMES[kind][0]}.yaml": text for folder in ("crds", "charts/tailrace/files/crds")}
    files |= {f"crds/schema/{name}": text for name, text in schemas.render().items()}
    return files | {"docs/resources.md": pages.resources(), "docs/errors.md": pages.errors()}


def main(arguments: list[str]) -> int:
    """Writes or checks; the repository is the working directory."""
    stale = []
    for name, text in outputs().items():
        path = Path(name)
        if path.exists() and path.read_text() == text:
            continue
        if "--check" in arguments:
            stale.append(name)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if stale:
        sys.stderr.write(f"not up to date (run `make generate`): {', '.join(stale)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
