"""`make demo`: makes the shop's database, builds the data plane, serves the shop and prints a curl line to paste.

Run it from the repository's root. Everything it makes is below `.demo/`. Ctrl-C ends it and leaves nothing running.
Options: `--listen HOST:PORT`, `--admin HOST:PORT` when the default ports are taken; `--no-data-plane` for Python alone.
"""

import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import database

DEMO = Path(".demo")
READY = "Ctrl-C ends it."


def say(text: str) -> None:
    """One line, at once."""
    print(text, flush=True)  # noqa: T201


def build() -> bool:
    """Builds the data plane with cargo; whether there is one to use."""
    if os.environ.get("TAILRACE_DATAPLANE"):
        say("using the data plane that TAILRACE_DATAPLANE names")
        return True
    if shutil.which("cargo") is None:
        say(
            "no cargo here, so the Rust data plane isn't built: serving from Python alone, which is slower (get Rust from https://rustup.rs)"
        )
        return False
    say("building the data plane (cargo build --release; a few minutes the first time)")
    began = time.monotonic()
    code = subprocess.run(["cargo", "build", "--release", "--quiet", "--package", "tailrace-dataplane"], check=False).returncode
    if code:
        why = f"cargo was killed by signal {-code}" if code < 0 else f"cargo ended with code {code}, see above"
        say(f"the data plane can't be built ({why}): serving from Python alone, which is slower")
        return False
    say(f"built in {time.monotonic() - began:.0f} s")
    return True


def make_database() -> None:
    """Makes `.demo/shop.db` unless it is there."""
    file = DEMO / "shop.db"
    if file.exists():
        return
    say("making the shop's database")
    say(f"{file}: {database.make(file):,} rows of customers, products, orders and order lines")


def die_with_parent() -> None:
    """Asks the kernel to end this process when its parent does (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)


def main() -> int:
    """Serves until Ctrl-C."""
    parser = argparse.ArgumentParser(description="Serve the example shop.")
    parser.add_argument("--listen", default="127.0.0.1:8080", help="the API (default: 127.0.0.1:8080)")
    parser.add_argument("--admin", default="127.0.0.1:9090", help="health and metrics (default: 127.0.0.1:9090)")
    parser.add_argument("--no-data-plane", action="store_true", help="serve from Python alone")
    given = parser.parse_args()
    if not Path("docs/examples/shop/shop.yaml").exists():
        say("run it from the repository's root, as `make demo` does")
        return 1
    DEMO.mkdir(mode=0o700, exist_ok=True)
    make_database()
    command = [
        sys.executable, "-m", "tailrace_gateway", "run", "-f", "docs/examples/shop/shop.yaml", "-f", "docs/examples/shop/local/secrets.yaml", "-f", "docs/examples/shop/local/runs.yaml",
        "--data", str(DEMO / "data"), "--logs", str(DEMO / "log"), "--listen", given.listen, "--admin", given.admin,
    ]  # fmt: skip
    if given.no_data_plane or not build():
        command.append("--no-data-plane")
    elif (built := Path(os.environ.get("CARGO_TARGET_DIR", "target")) / "release" / "tailrace-dataplane").exists() and not os.environ.get(
        "TAILRACE_DATAPLANE"
    ):
        command += ["--data-plane-binary", str(built)]  # Not a debug build that happens to be younger.
    running = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        process_group=0,  # A terminal sends Ctrl-C to a whole group: we pass it on, once.
        preexec_fn=die_with_parent,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: running.terminate())
    assert running.stdout is not None
    for line in running.stdout:
        say(line.rstrip("\n"))
        if READY in line:
            key = (DEMO / "data/keys/retail/support-desk-key").read_text().strip()
            say(f"\ntry: curl -H 'X-API-Key: {key}' 'http://{given.listen}/q/customer_by_id?id=42'\n")
    return running.wait()


if __name__ == "__main__":
    sys.exit(main())
