"""The kustomize example: its *.sql files are queries of its QueryAPI."""

from pathlib import Path

import yaml
from tailrace_contract.document import read
from tailrace_contract.queryapi import Query, QueryAPI
from tailrace_gateway.resources.queryfiles import read_query_file

EXAMPLE = Path(__file__).parents[2] / "docs" / "gitops" / "kustomize"


def test_every_file_is_a_query_of_a_connection_that_is_there() -> None:
    api = read(next(iter(yaml.safe_load_all((EXAMPLE / "api.yaml").read_text()))))
    assert isinstance(api, QueryAPI)
    (generator,) = yaml.safe_load((EXAMPLE / "kustomization.yaml").read_text())["configMapGenerator"]
    assert [source.config_map_ref.name for source in api.spec.queries_from] == [generator["name"]]
    assert generator["options"]["disableNameSuffixHash"] is True, "another name would roll the pods at each change"
    assert {EXAMPLE / name for name in generator["files"]} == set((EXAMPLE / "queries").iterdir())
    for name in generator["files"]:
        query = read_query_file(Path(name).name, (EXAMPLE / name).read_bytes())
        assert isinstance(query, Query), query
        assert query.name == Path(name).stem
        assert query.connection in {each.name for each in api.spec.connections}
