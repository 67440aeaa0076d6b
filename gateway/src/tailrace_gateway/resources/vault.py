"""Secrets and keys below the data directory: Secret documents as files, minted keys, and digests of both. IO: the file system.

`DIR/secrets/NAMESPACE/SECRET/KEY` is what a kubelet would mount; `DIR/secrets/.written` lists what was written from documents, so that
a Secret that is removed from them goes, and files that someone else put there stay. `DIR/keys/NAMESPACE/NAME` holds minted keys.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from tailrace_contract import keys
from tailrace_contract.apikey import ApiKey
from tailrace_contract.queryapi import QueryAPI
from tailrace_contract.resource import SecretKeyRef

from tailrace_gateway.resources.private import make_private_directory, read_bounded, write_private
from tailrace_gateway.resources.secretdoc import Secret

KEY_FILE_LIMIT_BYTES = 4096
SECRET_LIMIT_BYTES = 1 << 20


class Vault:
    """The secrets of one data directory; `secrets`: where they are mounted instead."""

    def __init__(self, data: Path, *, secrets: Path | None = None) -> None:
        self._secrets = secrets if secrets is not None else data / "secrets"
        self._keys = data / "keys"
        self._list = self._secrets / ".written"

    def secret_file(self, namespace: str, ref: SecretKeyRef) -> Path:
        """Where a Secret's key is mounted."""
        return self._secrets / namespace / ref.name / ref.key

    def certificate_files(self, namespace: str, secret: str) -> tuple[Path, Path]:
        """Where a kubernetes.io/tls Secret's certificate chain and private key are mounted."""
        folder = self._secrets / namespace / secret
        return folder / "tls.crt", folder / "tls.key"

    def key_file(self, key: ApiKey) -> Path | None:
        """Where the key's text is: minted, or brought in a Secret."""
        if key.spec.secret_name is not None:
            return self._keys / key.metadata.namespace / key.spec.secret_name
        if key.spec.key_from is not None:
            return self.secret_file(key.metadata.namespace, key.spec.key_from.secret_key_ref)
        return None

    def store(self, secrets: Iterable[Secret]) -> None:
        """Makes the files what the documents say: writes what differs, removes what they no longer have. OSError when that fails."""
        wanted = {f"{each.ref.namespace}/{each.ref.name}/{key}": value for each in secrets for key, value in each.values.items()}
        written = self._written()
        if not wanted and not written:
            return
        make_private_directory(self._secrets)
        if written != set(wanted):
            # First the list with both, so that a kill in between leaves no file that nobody knows.
            write_private(self._list, json.dumps(sorted(written | set(wanted))).encode())
        for name, value in wanted.items():
            path = self._secrets / name
            try:
                same = read_bounded(path, SECRET_LIMIT_BYTES) == value and (path.stat().st_mode & 0o077) == 0
            except (OSError, ValueError):
                same = False
            if not same:
                write_private(path, value)
        gone = written - set(wanted)
        for name in gone:
            path = self._secrets / name
            path.unlink(missing_ok=True)
            for folder in (path.parent, path.parent.parent):
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()
        if gone:
            write_private(self._list, json.dumps(sorted(wanted)).encode())

    def _written(self) -> set[str]:
        try:
            names = json.loads(read_bounded(self._list, 16 << 20))
        except (OSError, ValueError):
            return set()
        parts = [(name, name.split("/")) for name in names if isinstance(name, str)]
        return {name for name, split in parts if len(split) == 3 and not {"", ".", ".."} & set(split)}

    def digest(self, key: ApiKey, *, sync: bool = True) -> str:
        """SHA-256 of the key's text; a key with `secretName` is minted first if it has none yet, and kept from then on.

        ValueError (a sentence without the text) when there is none or it is no key. `sync` as in `write_private`.
        """
        path = self.key_file(key)
        assert path is not None, "the resource's rules hold"
        try:
            text = read_bounded(path, KEY_FILE_LIMIT_BYTES).decode("ascii")
        except FileNotFoundError:
            if key.spec.secret_name is None:
                raise ValueError("the Secret with the key is missing") from None
            text = keys.mint(os.urandom(keys.ENTROPY_BYTES))
            write_private(path, text.encode("ascii") + b"\n", sync=sync)
        except (OSError, UnicodeDecodeError):
            raise ValueError("the file with the key can't be read as a key") from None
        return keys.digest(keys.read_key(text))

    def fingerprint(self, apis: Iterable[QueryAPI], api_keys: Iterable[ApiKey]) -> str:
        """Changes whenever the content of a file that these resources refer to does, or comes, or goes."""
        paths: set[Path] = {path for key in api_keys if (path := self.key_file(key)) is not None}
        for api in apis:
            paths |= set(self.referred(api))
        total = hashlib.sha256()
        for path in sorted(paths):
            try:
                content = hashlib.sha256(read_bounded(path, SECRET_LIMIT_BYTES)).digest()
            except (OSError, ValueError):
                content = b"\0" * 32
            total.update(str(path).encode() + b"\0" + content)
        return total.hexdigest()

    def referred(self, api: QueryAPI) -> list[Path]:
        """Every mounted file that a QueryAPI's connections need."""
        namespace = api.metadata.namespace
        paths = []
        for connection in api.spec.connections:
            paths.append(self.secret_file(namespace, connection.url_from.secret_key_ref))
            if connection.tls is not None and connection.tls.ca_from is not None:
                paths.append(self.secret_file(namespace, connection.tls.ca_from.secret_key_ref))
            if connection.tls is not None and connection.tls.certificate_from is not None:
                paths += self.certificate_files(namespace, connection.tls.certificate_from.secret_ref.name)
        if api.spec.http.tls is not None:
            paths += self.certificate_files(namespace, api.spec.http.tls.secret_name)
        return paths
