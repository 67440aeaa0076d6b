"""The example shop in a namespace of its own, and calls of its pods one by one. IO: kubectl."""

import json
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path

import yaml

from tailrace_e2e.kubectl import Kubectl, Object, condition, eventually

_CALL = """
import json, sys, urllib.error, urllib.request
answers = {}
for address in json.loads(sys.argv[1]):
    request = urllib.request.Request(f"http://{address}:8080" + sys.argv[3], headers={"X-API-Key": sys.argv[2]})
    try:
        answers[address] = urllib.request.urlopen(request, timeout=10).status
    except urllib.error.HTTPError as refused:
        answers[address] = refused.code
print(json.dumps(answers))
"""


@dataclass(frozen=True, slots=True)
class Shop:
    """One shop: `space` is kubectl in its namespace."""

    space: Kubectl

    def install(self, root: Path, *, replicas: int = 2, **spec: object) -> None:
        """Applies docs/examples/shop/cluster without its keys, and waits until it is ready. `spec`: fields of the QueryAPI's."""
        text = self.space("kustomize", str(root / "docs/examples/shop/cluster"))
        documents = [each for each in yaml.safe_load_all(text) if each["kind"] not in ("Namespace", "ApiKey")]
        for each in documents:
            each["metadata"]["namespace"] = self.space.namespace
            if each["kind"] == "QueryAPI":
                each["spec"] |= {"replicas": replicas, **spec}
        self.space.apply(*documents)
        self.space("wait", "--for=condition=Ready", "queryapi/shop", "--timeout=300s", timeout_s=320)

    def pods(self) -> list[str]:
        """Addresses of the pods that are ready."""
        found = self.space.list("pod", "tailrace.dev/queryapi=shop")
        return [
            each["status"]["podIP"]
            for each in found
            if condition(each, "Ready").get("status") == "True" and "deletionTimestamp" not in each["metadata"]
        ]

    def call(self, text: str, path: str = "/q/customer_by_id?id=1") -> set[int]:
        """Status codes of the same call on each ready pod, made from within the cluster."""
        name = self.space.list("pod", "tailrace.dev/queryapi=shop")[0]["metadata"]["name"]
        told = self.space("exec", name, "-c", "gateway", "--", "python", "-c", _CALL, json.dumps(self.pods()), text, path)
        return set(json.loads(told).values())

    def key(self, name: str, space: Kubectl | None = None, **spec: object) -> None:
        """Applies an ApiKey of role support; its minted text goes into the Secret NAME-key."""
        where = space or self.space
        wanted: Object = {"queryApiRef": {"name": "shop"}, "role": "support", **spec}
        if where.namespace != self.space.namespace:
            wanted["queryApiRef"] = {"name": "shop", "namespace": self.space.namespace}
        if "keyFrom" not in wanted:
            wanted.setdefault("secretName", f"{name}-key")
        where.apply(
            {
                "apiVersion": "tailrace.dev/v1alpha1",
                "kind": "ApiKey",
                "metadata": {"name": name, "namespace": where.namespace},
                "spec": wanted,
            }
        )

    def text(self, name: str, space: Kubectl | None = None) -> str:
        """The text that a minted key's Secret hands out now."""
        return b64decode((space or self.space).get("secret", f"{name}-key")["data"]["key"]).decode()

    def ready(self, name: str, space: Kubectl | None = None) -> Object:
        """The ApiKey, once it is ready."""
        where = space or self.space
        where("wait", "--for=condition=Ready", f"apikey/{name}", "--timeout=120s", timeout_s=140)
        return where.get("akey", name)

    def revoked(self, name: str, space: Kubectl | None = None) -> Object:
        """The ApiKey, once its status says that every pod has dropped it."""
        where = space or self.space

        def dropped() -> Object | None:
            live = where.get("akey", name)
            said, _, of = live["status"].get("revokedOn", "0/1").partition("/")
            return live if said == of and said != "0" and not condition(live, "Reconciling") else None

        return eventually(f"every pod has dropped {name}", dropped)
