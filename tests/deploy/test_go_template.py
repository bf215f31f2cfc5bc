"""The subset of Go's templates that renders the chart."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from deploy.kubernetes.go_template import TemplateError, Templates


@pytest.mark.parametrize(
    ("source", "made"),
    [
        ("a {{- if .yes }}\n  b\n{{- end }}\nc", "a\n  b\nc"),
        ("{{ if .no }}b{{ else }}c{{ end }}", "c"),
        ("{{ with .no }}{{ . }}{{ else }}none{{ end }}", "none"),
        ("{{ range $i := until 3 }}{{ if $i }},{{ end }}{{ $.yes }}{{ $i }}{{ end }}", "true0,true1,true2"),
        ("{{ range $k, $v := .map }}{{ $k }}={{ $v | quote }} {{ end }}", 'a="1" b="x\\"y" '),
        ('{{ .no | default (printf "%s-z" .text) }}', "t-z"),
        ("x:{{ toYaml .map | nindent 2 }}", 'x:\n  a: 1\n  b: x"y'),
        ('{{ define "d" }}<{{ . }}>{{ end }}{{ include "d" .text }}', "<t>"),
    ],
)
def test_templates_mean_what_gos_mean(source: str, made: str) -> None:
    assert rendered(source, {"yes": True, "no": None, "text": "t", "map": {"b": 'x"y', "a": 1}}) == made


def rendered(source: str, dot: Mapping[str, Any]) -> str:
    templates = Templates()
    templates.parse("it", source)
    return templates.render("it", dot)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ if .yes }}", "no `end`"),
        ("{{ end }}", "without its beginning"),
        ("{{ .nothing }}", "no value .nothing"),
        ("{{ upper .yes }}", "not of the subset"),
        ("{{ if .yes }}{{ else if .no }}{{ end }}", "`else if`"),
        ("{{ (.yes }}", "parenthesis"),
        ("{{ .yes | .yes }}", "only a function"),
    ],
)
def test_what_the_subset_lacks_is_refused(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=re.escape(message)):
        rendered(source, {"yes": True})
