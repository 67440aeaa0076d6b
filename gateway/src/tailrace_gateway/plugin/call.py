"""`kubectl tailrace call`: one call of a query, through a port forwarded to the API's Service. IO: through kubectl, one HTTP request.

The key is read from a file or from the Secret that an ApiKey names; it goes into a header and nowhere else: not to a command line, a message
or a file.
"""

import argparse
import base64
import binascii
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

import httpx
from tailrace_contract.resource import GROUP

from tailrace_gateway import console as ink
from tailrace_gateway.cli import EXIT_USAGE
from tailrace_gateway.console import Console
from tailrace_gateway.plugin.kubectl import Kubectl
from tailrace_gateway.plugin.objects import ApiObject, KeyObject, Objects, objects
from tailrace_gateway.plugin.scope import NotFound, choose, read, ref_within
from tailrace_gateway.plugin.trust import Trust, refusal, trust
from tailrace_gateway.resources.private import read_bounded

SERVICE_PORT = 80
TLS_PORT = 443
ANSWER_S = 120.0
KEY_LIMIT_BYTES = 4096
_KEY = re.compile(r"[\x21-\x7e]+")
_QUERY = re.compile(r"[a-z][-_a-z0-9]*")
_NAME = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")


def main(given: argparse.Namespace, console: Console, kubectl: Kubectl) -> int:
    """Prints the answer's body on standard output (with -i before it the head), the status line beside it; 1 unless the status is 2xx."""
    if (wrong := _wrong(given)) is not None:
        console.note(f"kubectl tailrace call: {wrong}")
        return EXIT_USAGE
    found = read(kubectl)
    api = choose(found, given.api)
    key = file_key(given.key) if given.key is not None else secret_key(kubectl, api, found, given.api_key)
    body = _body(given.arguments)
    arguments = [tuple(word.split("=", 1)) for word in given.arguments if not _is_json(word)]
    path = f"/q/{quote(given.query)}" + (f"?{urlencode(arguments)}" if arguments else "")
    headers = [("X-API-Key", key), *(_header(line) for line in given.header)]
    if body is not None:
        headers.append(("Content-Type", "application/json"))
    method = "POST" if given.post or body is not None or is_write(api, given.query) else "GET"
    trusted = trust(kubectl, api, given.ca, given.server_name)
    with _client(kubectl, api, trusted) as client:
        try:
            named = {} if trusted is None else {"sni_hostname": trusted.name}
            with client.stream(method, path, headers=headers, content=body, extensions=named) as answer:
                return _show(answer, console, head=given.include)
        except httpx.HTTPError as error:
            failed = None if trusted is None else refusal(api, trusted, error)
            silent = NotFound(f"no answer from {api.ref} ({type(error).__name__}): see kubectl tailrace status {api.ref.name}")
            raise failed or silent from None


@contextmanager
def _client(kubectl: Kubectl, api: ApiObject, trusted: Trust | None) -> Iterator[httpx.Client]:
    """Speaks to the API's Service, over TLS to whom `trusted` says and to nobody else."""
    scheme, service_port = ("http", SERVICE_PORT) if trusted is None else ("https", TLS_PORT)
    with (
        kubectl.forward(f"service/{api.ref.name}", service_port, api.ref.namespace) as port,
        httpx.Client(
            base_url=f"{scheme}://127.0.0.1:{port}",
            verify=True if trusted is None else trusted.context,
            trust_env=False,
            timeout=ANSWER_S,
            follow_redirects=False,
        ) as client,
    ):
        yield client


def _wrong(given: argparse.Namespace) -> str | None:
    """What is wrong with the words."""
    if not _QUERY.fullmatch(given.query):
        return f"{given.query!r} is not a query's name"
    for word in given.arguments:
        if "=" not in word or word.startswith(("=", ":=")):
            return "arguments are NAME=VALUE"  # The word may be a value: it is not repeated.
        if _is_json(word) and not _reads(word.split(":=", 1)[1]):
            return "what stands behind := is no JSON"
    for line in given.header:
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name) or not value.strip().isprintable():
            return "a header is 'Name: value'"
        if name.lower() in ("x-api-key", "authorization"):
            return "the key is given by --key FILE or --api-key NAME"
    return None


def _is_json(word: str) -> bool:
    """NAME:=JSON."""
    return word.partition("=")[0].endswith(":")


def _reads(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _body(words: Sequence[str]) -> str | None:
    """A JSON object of the NAME:=JSON, each value as it was written; None without one."""
    pairs = [word.split(":=", 1) for word in words if _is_json(word)]
    return "{" + ", ".join(f"{json.dumps(name)}: {text}" for name, text in pairs) + "}" if pairs else None


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name, value.strip()


def is_write(api: ApiObject, query: str) -> bool:
    """Whether the API's own queries say so; those of ConfigMaps need --post."""
    spec = api.document.get("spec")
    queries = spec.get("queries") if isinstance(spec, dict) else None
    return any(isinstance(each, dict) and each.get("name") == query and each.get("write") is True for each in queries or [])


def file_key(path: Path) -> str:
    """The text in a file, or on standard input for `-`."""
    try:
        content = sys.stdin.buffer.read(KEY_LIMIT_BYTES + 1) if str(path) == "-" else read_bounded(path, KEY_LIMIT_BYTES)
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror}") from None
    except ValueError:
        raise NotFound(f"{path} is too long for a key") from None
    return _text(content, str(path))


def secret_key(kubectl: Kubectl, api: ApiObject, found: Objects, name: str | None) -> str:
    """The text in the Secret that an ApiKey of this API names; without a name the only one's."""
    key = _chosen(kubectl, api, found, name)
    if key.secret is None:
        raise NotFound(f"ApiKey {key.ref} names no Secret")
    secret, entry = key.secret
    template = entry.replace(".", r"\.")
    printed = kubectl.run("get", f"secret/{secret}", f"--output=jsonpath={{.data.{template}}}", namespace=key.ref.namespace)
    try:
        content = base64.b64decode(printed, validate=True)
    except (binascii.Error, ValueError):
        content = b""
    return _text(content, f"key {entry} of Secret {key.ref.namespace}/{secret}")


def _chosen(kubectl: Kubectl, api: ApiObject, found: Objects, name: str | None) -> KeyObject:
    keys: Sequence[KeyObject] = found.keys_of(api.ref)
    if name is None:
        if len(keys) == 1:
            return keys[0]
        names = ", ".join(str(key.ref) for key in keys[:20]) or "it has none in this namespace"
        raise NotFound(f"say as whom: --api-key NAME, or --key FILE ({names})")
    try:
        ref = ref_within(name, api.ref.namespace)
    except ValueError as wrong:
        raise NotFound(f"--api-key {wrong}") from None
    if ref.namespace != api.ref.namespace:
        keys = objects(kubectl.get(f"apikeys.{GROUP}", ref.name, namespace=ref.namespace)).keys_of(api.ref)
    key = next((each for each in keys if each.ref == ref), None)
    if key is None:
        raise NotFound(f"{api.ref} has no ApiKey {ref}")
    return key


def _text(content: bytes, where: str) -> str:
    """A key's text; what can't be one is not repeated."""
    try:
        text = content.decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    if not _KEY.fullmatch(text):
        raise NotFound(f"{where} holds no key")
    return text


def _show(answer: httpx.Response, console: Console, *, head: bool) -> int:
    colour = ink.GREEN if answer.is_success else ink.RED if answer.is_server_error else ink.YELLOW
    line = f"{answer.http_version} {answer.status_code} {answer.reason_phrase}".rstrip()
    if head:
        console.line(console.paint(line, colour))
        for name, value in answer.headers.multi_items():
            console.line(f"{name}: {value}")
        console.line()
    else:
        run = answer.headers.get("x-run-id")
        console.note(console.paint_note(line, colour) + (f"  run {run}" if run else ""))
    last = b"\n"
    for part in answer.iter_bytes():
        sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        last = part[-1:] or last
    if last != b"\n":
        console.line()
    return 0 if answer.is_success else 1
