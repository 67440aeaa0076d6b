"""skaffold.yaml names what exists: Dockerfiles, values of the chart, images that the chart and the example run."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
SKAFFOLD: dict[str, Any] = yaml.safe_load((ROOT / "skaffold.yaml").read_text())
IMAGES = {each["image"]: each for each in SKAFFOLD["build"]["artifacts"]}


def test_every_artifact_has_its_dockerfile_and_folder() -> None:
    for artifact in IMAGES.values():
        assert (ROOT / artifact["context"]).is_dir()
        # skaffold looks for it below the context.
        assert (ROOT / artifact["context"] / artifact["docker"]["dockerfile"]).is_file()


def test_every_image_of_chart_and_example_is_built() -> None:
    values = yaml.safe_load((ROOT / "charts/tailrace/values.yaml").read_text())
    run = {values["image"]["repository"], values["gateway"]["image"]["repository"], values["dataPlane"]["image"]["repository"]}
    run |= set(re.findall(r"image: (\S+):", (ROOT / "docs/examples/shop/cluster/postgres.yaml").read_text()))
    assert run == set(IMAGES)


def test_every_value_that_is_set_exists() -> None:
    values = yaml.safe_load((ROOT / "charts/tailrace/values.yaml").read_text())
    for path, template in SKAFFOLD["deploy"]["helm"]["releases"][0]["setValueTemplates"].items():
        node = values
        for part in path.split("."):
            assert part in node, path
            node = node[part]
        name = re.fullmatch(r"\{\{\.IMAGE_(REPO|TAG)_(\w+)\}\}", template)
        assert name
        assert name[2] in {image.replace("/", "_").replace("-", "_") for image in IMAGES}
