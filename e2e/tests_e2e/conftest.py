"""What every test on a cluster shares: a namespace of its own, and one printed line for each outcome a user sees."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from tailrace_e2e import testbed
from tailrace_e2e.installation import CRDS, NAMESPACE, OPERATOR, Installation, moment
from tailrace_e2e.kubectl import Kubectl, kept
from tailrace_e2e.load import LONG, Loader
from tailrace_e2e.loaded import Loaded, queries
from tailrace_e2e.shop import Shop
from tailrace_e2e.testbed import Bed

ROOT = Path(__file__).resolve().parents[2]
FIRST = ("test_quickstart",)
LAST = ("test_uninstall", "test_privileges")
"""Files whose order matters: a first installation, what ends it, and what looks back at everything that was asked."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A cluster is slower than a unit: ten minutes at most, unless the test says otherwise."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))
    place = {name: -len(FIRST) + n for n, name in enumerate(FIRST)} | {name: n + 1 for n, name in enumerate(LAST)}
    items.sort(key=lambda item: place.get(item.path.stem, 0))


def outcome(item: pytest.Item) -> str:
    """What the test's docstring promises, with its parameters."""
    doc = (getattr(item, "obj", None) and item.obj.__doc__) or item.name
    parameters = item.name.partition("[")[2].rstrip("]")
    return doc.strip().splitlines()[0] + (f" [{parameters}]" if parameters else "")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Prints the line of a test's outcome at once, so that a run that hangs shows where."""
    result = yield
    report = result.get_result()  # type: ignore[attr-defined]
    if report.when == "call" or (report.when == "setup" and not report.passed):
        word = {"passed": "PASS", "failed": "FAIL", "skipped": "SKIP"}[report.outcome]
        terminal = item.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(f"{word}  {outcome(item)}  ({report.duration:.1f} s)")


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """No dots beside the lines."""
    if report.when == "call" or not report.passed:
        return report.outcome, "", ""
    return None


@pytest.fixture(scope="session", autouse=True)
def cluster() -> Kubectl:
    """kubectl on the cluster that KUBECONFIG names; a failure without one, never a default that points elsewhere."""
    if not os.environ.get("KUBECONFIG"):
        pytest.fail("no KUBECONFIG: run `make e2e`, which also brings the testbed up, or set it to the cluster to test on", pytrace=False)
    return Kubectl()


@pytest.fixture(scope="session")
def bed() -> Bed:
    """The testbed: for what no foreign cluster lets us see, such as the API server's audit log."""
    here = testbed.found()
    if here is None:
        pytest.skip("this cluster shows no audit log; the testbed does (`make e2e` with KUBECONFIG unset)")
    return here


@pytest.fixture(scope="session", autouse=True)
def session_began() -> str:
    """When the first test began, as the audit log writes moments."""
    return moment()


@pytest.fixture
def space(cluster: Kubectl) -> Iterator[Kubectl]:
    """kubectl in a new namespace, which goes with the test."""
    name = f"e2e-{secrets.token_hex(4)}"
    cluster("create", "namespace", name)
    yield Kubectl(name)
    if not kept():
        cluster.delete("namespace", name, "--wait=false")  # A test may have deleted it.


@pytest.fixture(scope="session")
def crds(cluster: Kubectl) -> None:
    """The resource types of this clone, applied as a user does, unless the chart brought them."""
    found = [cluster.find("crd", name) for name in CRDS]
    if not all(each and each["metadata"].get("labels", {}).get("app.kubernetes.io/managed-by") == "Helm" for each in found):
        cluster("apply", "--server-side", "--force-conflicts", "--filename", str(ROOT / "crds"))
    for name in CRDS:
        cluster("wait", "--for=condition=Established", f"crd/{name}", "--timeout=60s")


@pytest.fixture(scope="session")
def installation(cluster: Kubectl) -> Iterator[Installation]:
    """The chart, freshly installed; it goes at the end unless KEEP=1."""
    found = Installation(ROOT)
    found.uninstall()
    Kubectl(NAMESPACE).delete("lease", OPERATOR)  # Else the first leader waits until it runs out.
    found.install()
    yield found
    if not kept():
        found.uninstall()


@pytest.fixture(scope="module", params=[2, 1] if LONG else [2], ids=lambda pods: f"{pods} pods")
def loaded(
    request: pytest.FixtureRequest, cluster: Kubectl, installation: Installation, bed: Bed, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Loaded]:
    """A shop in a namespace of its own, and a key."""
    name = f"e2e-load-{secrets.token_hex(3)}"
    cluster("create", "namespace", name)
    shop = Shop(Kubectl(name))
    shop.install(ROOT, replicas=request.param, queries=queries(ROOT))
    shop.key("desk")
    shop.ready("desk")
    loader = Loader(bed, tmp_path_factory.mktemp("load"), shop.space.get("service", "shop")["spec"]["clusterIP"])
    found = Loaded(shop, loader, shop.text("desk"), request.param, ROOT)
    # Who comes first makes the run store's tables.
    loader.call(found.text)
    yield found
    if not kept():
        cluster("delete", "namespace", name, "--wait=false")
