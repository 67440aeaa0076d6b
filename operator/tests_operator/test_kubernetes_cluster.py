"""`KubernetesCluster` over HTTP: what it sends, how it pages, how long it waits. The server only records and answers as told."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tailrace_operator.cluster import KubernetesCluster, connect
from tailrace_operator.errors import AlreadyExists, Conflict, Forbidden, Unavailable
from tailrace_operator.manifest import DEPLOYMENT, LEASE, POD, QUERY_API, SECRET, Object, ObjectRef
from tailrace_operator.observe import Event, Observation

SHOP = ObjectRef(DEPLOYMENT, "retail", "shop")
LIVE: Object = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {
        "name": "shop",
        "namespace": "retail",
        "uid": "u",
        "resourceVersion": "7",
        "managedFields": [
            {"manager": "tailrace-operator", "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}, "f:paused": {}}}}
        ],
    },
    "spec": {"replicas": 2, "paused": False},
}


@dataclass
class Server:
    """Answers in the order of `answers` (status, body), the last one for ever; `hang` answers never."""

    answers: list[tuple[int, Any]] = field(default_factory=lambda: [(200, {"metadata": {}})])
    requests: list[tuple[str, str, dict[str, str], str, Any]] = field(default_factory=list)
    hang: bool = False

    async def answer(self, request: web.Request) -> web.Response:
        text = await request.text()
        self.requests.append((request.method, request.path, dict(request.query), request.content_type, json.loads(text) if text else None))
        if self.hang:
            await asyncio.sleep(3600)
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return web.json_response(body, status=status)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[Server, KubernetesCluster, list[Observation]]]:
    played, told = Server(), list[Observation]()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", played.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config))
    cluster = KubernetesCluster(connect(str(file)), told.append, timeout_s=20)
    yield played, cluster, told
    await runner.cleanup()
    await cluster.close()


Given = tuple[Server, KubernetesCluster, list[Observation]]


async def test_an_apply_goes_to_exactly_one_object_with_force_under_our_name(server: Given) -> None:
    played, cluster, told = server
    await cluster.apply(LIVE, "u")
    method, path, query, content, body = played.requests[0]
    assert (method, path, content) == ("PATCH", "/apis/apps/v1/namespaces/retail/deployments/shop", "application/apply-patch+yaml")
    assert query == {"fieldManager": "tailrace-operator", "force": "true"}
    assert body["metadata"]["uid"] == "u"
    assert [(each.event, each.fields["verb"], each.fields["resource"], each.fields["outcome"]) for each in told] == [
        (Event.API_CALLED, "apply", "deployments", "ok")
    ]


async def test_the_other_writes(server: Given) -> None:
    played, cluster, _ = server
    await cluster.create(LIVE)
    await cluster.take_fields(LIVE, {"spec": {"paused": False}})
    await cluster.patch_scale(SHOP, "u", 3)
    await cluster.replace({**LIVE, "apiVersion": LEASE.api_version, "kind": LEASE.kind})
    await cluster.delete(SHOP, "u")
    api = {"apiVersion": QUERY_API.api_version, "kind": QUERY_API.kind, "metadata": LIVE["metadata"], "spec": {}}
    await cluster.patch_status(api, {"observedGeneration": 1}, unchanged=True)
    await cluster.event(api, "Reason", "text")
    await cluster.event(api, "Reason", "text")
    create, take, scale, replace, delete, status, event = played.requests
    assert create[:3] == ("POST", "/apis/apps/v1/namespaces/retail/deployments", {"fieldManager": "tailrace-operator"})
    assert take[3] == "application/json-patch+json"
    assert take[4][0]["value"][0] == {"manager": "tailrace-operator", "operation": "Apply", "fieldsV1": {"f:spec": {"f:paused": {}}}}
    assert take[4][1] == {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"}
    assert scale[1].endswith("/deployments/shop/scale")
    assert scale[2] == {"fieldManager": "tailrace-operator-scale"}
    assert scale[4] == {"metadata": {"uid": "u"}, "spec": {"replicas": 3}}
    assert replace[:2] == ("PUT", "/apis/coordination.k8s.io/v1/namespaces/retail/leases/shop")
    assert delete[4]["preconditions"] == {"uid": "u"}
    assert delete[4]["propagationPolicy"] == "Background"
    assert status[1] == "/apis/tailrace.dev/v1alpha1/namespaces/retail/queryapis/shop/status"
    assert status[4]["metadata"] == {"name": "shop", "namespace": "retail", "uid": "u", "resourceVersion": "7"}
    assert set(status[4]) == {"apiVersion", "kind", "metadata", "status"}
    assert event[1] == "/api/v1/namespaces/retail/events"


async def test_lists_are_paged_and_items_know_their_kind(server: Given) -> None:
    played, cluster, _ = server
    played.answers = [
        (200, {"metadata": {"continue": "more", "resourceVersion": "9"}, "items": [{"metadata": {"name": "a"}}]}),
        (200, {"metadata": {"resourceVersion": "9"}, "items": [{"metadata": {"name": "b"}}]}),
    ]
    listing = await cluster.list(POD, "retail", {"b": "2", "a": "1"})
    assert [(each["kind"], each["metadata"]["name"]) for each in listing.items] == [("Pod", "a"), ("Pod", "b")]
    assert listing.resource_version == "9"
    assert [request[2] for request in played.requests] == [
        {"labelSelector": "a=1,b=2", "limit": "500"},
        {"labelSelector": "a=1,b=2", "limit": "500", "continue": "more"},
    ]


async def test_a_page_that_expired_begins_the_list_anew(server: Given) -> None:
    played, cluster, _ = server
    gone = (410, {"reason": "Expired", "message": "too old"})
    first = (200, {"metadata": {"continue": "more"}, "items": [{"metadata": {"name": "a"}}]})
    whole = (200, {"metadata": {"resourceVersion": "9"}, "items": [{"metadata": {"name": "b"}}]})
    played.answers = [first, gone, whole]
    assert [each["metadata"]["name"] for each in (await cluster.list(POD)).items] == ["b"]
    played.answers = [gone]
    with pytest.raises(Unavailable):
        await cluster.list(POD)


async def test_refusals(server: Given) -> None:
    played, cluster, told = server
    played.answers = [(404, {})]
    assert await cluster.get(SHOP) is None
    await cluster.delete(SHOP, "u")
    played.answers = [(409, {"reason": "AlreadyExists"})]
    with pytest.raises(AlreadyExists):
        await cluster.create(LIVE)
    played.answers = [(409, {"reason": "Conflict", "message": "the UID in the precondition"})]
    with pytest.raises(Conflict):
        await cluster.delete(SHOP, "u")
    played.answers = [(403, {"message": "forbidden"})]
    with pytest.raises(Forbidden, match="forbidden"):
        await cluster.list(SECRET)
    api = {"apiVersion": QUERY_API.api_version, "kind": QUERY_API.kind, "metadata": LIVE["metadata"]}
    await cluster.event(api, "Reason", "text")
    assert told[-1].event is Event.EVENT_FAILED


async def test_a_server_that_is_silent_or_gone_is_unavailable(server: Given) -> None:
    played, cluster, _ = server
    played.hang = True
    cluster._timeout = (1.0, 0.3)
    with pytest.raises(Unavailable):
        await cluster.get(SHOP)
    assert len(played.requests) == 1, "the queue tries again, not the client"


async def test_no_discovery_is_asked_for(server: Given) -> None:
    played, cluster, _ = server
    await cluster.get(SHOP)
    assert [request[1] for request in played.requests] == ["/apis/apps/v1/namespaces/retail/deployments/shop"]
