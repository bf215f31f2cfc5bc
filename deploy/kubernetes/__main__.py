"""python -m deploy.kubernetes [--name RELEASE] [--values FILE ...]: write the chart's objects as plain YAML to standard output.

Later files of values win over earlier ones and over the chart's own, as `helm template --values` has it.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from deploy.kubernetes.chart import render_chart
from deploy.kubernetes.go_template import TemplateError


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.kubernetes", description="The Helm chart's objects as plain YAML.")
    parser.add_argument("--name", default="motet", help="the release's name, which begins every object's name")
    parser.add_argument(
        "--values", action="append", default=[], type=Path, metavar="FILE", help="YAML that overrides values.yaml"
    )
    given = parser.parse_args(arguments)
    try:
        sys.stdout.write(render_chart(given.name, [_values(path) for path in given.values]))
    except (OSError, ValueError, yaml.YAMLError, TemplateError) as error:
        sys.stderr.write(f"deploy.kubernetes: {error}\n")
        return 1
    return 0


def _values(path: Path) -> Mapping[str, Any]:
    values = yaml.safe_load(path.read_text())
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a mapping of values, as chart/values.yaml does")
    return values


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
