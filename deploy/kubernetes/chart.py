"""Renders the chart in `chart/` with values, as `helm template` does. Knows the chart's folder and no cluster."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from deploy.kubernetes.go_template import Templates

CHART = Path(__file__).parent / "chart"
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,39}[a-z0-9])?")  # 41 characters leave room for suffixes such as -reconcile


def render_chart(name: str, overrides: Sequence[Mapping[str, Any]] = ()) -> str:
    """All objects of the release `name`, as YAML documents in the order of their files.

    Raises ValueError for a name that Kubernetes would refuse or for a value that the chart does not have, and TemplateError.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"the release's name {name!r} must be lower-case letters, digits and dashes, at most 41, a letter first"
        )
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for override in overrides:
        values = _merged(values, override, "")
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    context = {
        "Values": values,
        "Chart": {"Name": about["name"], "Version": about["version"], "AppVersion": about["appVersion"]},
        "Release": {"Name": name, "Service": "Helm", "Namespace": "default"},
    }
    templates = Templates()
    files = sorted((CHART / "templates").iterdir())
    for file in files:
        templates.parse(file.name, file.read_text())
    texts = (templates.render(file.name, context).strip("\n") for file in files if file.suffix == ".yaml")
    return "".join(
        f"---\n# {file.name}\n{text}\n" for file, text in zip(_of_objects(files), texts, strict=True) if text.strip()
    )


def _of_objects(files: Sequence[Path]) -> list[Path]:
    return [file for file in files if file.suffix == ".yaml"]


def _merged(values: Mapping[str, Any], override: Mapping[str, Any], path: str) -> dict[str, Any]:
    """`values` with those of `override`, mapping by mapping. Free mappings ({} in the chart) take any key."""
    merged = dict(values)
    for key, value in override.items():
        where = f"{path}.{key}" if path else key
        if values and key not in values:
            raise ValueError(f"the chart has no value {where}; those beside it: {', '.join(sorted(values))}")
        old = values.get(key)
        merged[key] = _merged(old, value, where) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
