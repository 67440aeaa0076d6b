"""A certificate for loopback, and a QueryAPI that serves with it. IO: openssl, files in a folder."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

SECRET = "edge-tls"
"""Name of the Secret."""
STORE = "\n  runStoreRef:"


@dataclass(frozen=True, slots=True)
class Certificate:
    """Two PEM files; clients trust the first."""

    chain: Path
    key: Path

    def secret(self) -> dict[str, str]:
        """Content of a kubernetes.io/tls Secret."""
        return {"tls.crt": self.chain.read_text(), "tls.key": self.key.read_text()}


def make(folder: Path) -> Certificate:
    """A fresh one, signed by itself, for 127.0.0.1. CalledProcessError."""
    made = Certificate(folder / "edge.crt", folder / "edge.key")
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=loopback",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(made.key), "-out", str(made.chain)]
    subprocess.run(command, check=True, capture_output=True)
    return made


def served(path: Path, folder: Path) -> Path:
    """A copy of an API's file whose QueryAPI has `http.tls`. Text, so that nothing else in it changes. ValueError for a file that has `http` already."""
    text = path.read_text()
    if text.count(STORE) != 1 or "\n  http:" in text:
        raise ValueError(f"{path.name} has `http`, or no run store")
    copy = folder / path.name
    copy.write_text(text.replace(STORE, f"\n  http: {{tls: {{secretName: {SECRET}}}}}{STORE}"))
    return copy
