"""A spec as the form's fields, so that a task can be posted again. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from contract.compatibility.lenient_documents import read_leniently, unknown_fields
from contract.evaluation.text_evaluation import Evaluation
from contract.task_spec import TaskSpec
from contract.wording.configuration_numbers import EXACT, meant, meant_text, number_text
from service.web.views.spec_form.form_fields import DEFAULTS, LISTS, METRICS, MODULE_SETS, MORE, ONE

_PLAIN = {name: Evaluation.model_validate({"metrics": [{"type": name}]}).metrics[0].model_dump(mode="json") for name in METRICS}
_CHOSEN = {"search_space.schedule", "search_space.target_modules", "evaluation.metrics", "labels"}  # see choices_of


def fields_of(spec: Mapping[str, Any]) -> dict[str, str]:
    """A spec as the form's fields. What has no field of its own, and is not at its default, is a line of `more`."""
    found = {}
    for path in (*ONE, *LISTS):
        value: Any = spec
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, list):
            found[path] = ", ".join(_numbers(value))
        elif value is not None:
            found[path] = _numbers([value])[0]
    labels = spec.get("labels", {})
    plain = {key: value for key, value in labels.items() if _on_a_line(key, value)}
    found["labels"] = "\n".join(f"{key}={value}" for key, value in plain.items())
    odd = {key: value for key, value in labels.items() if key not in plain}
    rest = [*_rest(spec), *([("labels", odd)] if odd else [])]
    found[MORE] = "\n".join(f"{path}={json.dumps(meant(value), ensure_ascii=False)}" for path, value in rest)
    if spec.get("evaluation"):
        found["evaluation"] = "1"
    return {"evaluation.max_prompts": DEFAULTS["evaluation.max_prompts"]} | found


def choices_of(spec: Mapping[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """The schedules, module sets and metrics of texts that a spec names; without any, the metrics of a new form."""
    space = spec.get("search_space", {})
    sets = [_set_of(modules) for modules in space.get("target_modules", [])]
    metrics = [_said(one) for one in (spec.get("evaluation") or {}).get("metrics", [])]
    return list(space.get("schedule", ["constant"])), sets or ["all"], metrics or ["rouge_l"]


def _set_of(modules: Sequence[str]) -> str:
    return next((name for name, known in MODULE_SETS.items() if list(modules) == known), ", ".join(modules))


def _numbers(values: Sequence[Any]) -> list[str]:
    """As people write them; exactly, where two would be one."""
    found = [meant_text(value) if isinstance(value, float) else str(value) for value in values]
    if len(set(found)) == len(set(values)):
        return found
    return [number_text(value, EXACT) if isinstance(value, float) else str(value) for value in values]


def _on_a_line(key: str, value: str) -> bool:
    """Whether a line `key=value` is read as this label."""
    line = f"{key}={value}"
    return line.splitlines() == [line] and "=" not in key and key.strip() == key and value.strip() == value


def _rest(spec: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What no field of the form holds: the fields that are not at today's defaults, and those of a newer version, at which the
    form stumbles; of a spec that this version cannot read, all."""
    try:
        read = read_leniently(TaskSpec, spec)
    except ValueError:
        yield from _leaves(spec, "")
        return
    yield from _leaves(read.model_dump(mode="json", exclude_defaults=True, warnings="none"), "")
    yield from ((path, "of a newer version") for path in unknown_fields(read))


def _leaves(value: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    """Dotted paths and values of the fields that no field of the form holds."""
    for name, held in value.items():
        path = f"{above}{name}"
        if path in ONE or path in LISTS or path in _CHOSEN:
            continue
        if isinstance(held, Mapping) and held:
            yield from _leaves(held, f"{path}.")
        else:
            yield path, held


def _said(metric: Mapping[str, Any]) -> str:
    plain = next((name for name, document in _PLAIN.items() if document == metric), None)
    return plain or json.dumps({key: value for key, value in metric.items() if value is not None}, ensure_ascii=False)
