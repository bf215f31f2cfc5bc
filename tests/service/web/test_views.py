"""What pages say, without a browser: specs in their own order, the fields by which losses cannot be compared."""

from service.web.views.spec_differences import NamedFile, differences, in_order, loss_differences
from service.web.views.spec_form.form_to_spec import spec_of_form
from service.web.views.spec_form.spec_to_form import choices_of, fields_of

SPEC = {
    "labels": {},
    "search_space": {"rank": [4], "alpha": None, "learning_rate": [1e-4]},
    "dataset": {"file_id": "a"},
    "base_model": "small",
    "name": None,
    "evaluation": {"metrics": [{"json_schema": {"const": None}, "type": "json_schema", "name": None}]},
}


def test_a_spec_is_shown_in_its_own_order_without_nulls():
    shown = in_order(SPEC)
    assert list(shown)[:4] == ["base_model", "dataset", "objective", "search_space"]
    assert "alpha" not in shown["search_space"]
    assert shown["evaluation"]["metrics"] == [{"type": "json_schema", "json_schema": {"const": None}}]
    newer = {**SPEC, "of_a_newer_version": {"x": 1}}
    assert in_order(newer)["of_a_newer_version"] == {"x": 1}
    assert in_order({"unreadable": None}) == {"unreadable": None}


def test_metrics_that_differ_are_shown_without_their_nulls():
    asked = {"evaluation": {"metrics": [{"type": "chrf", "name": None}, {"type": "regex", "pattern": "a"}]}}
    (row,) = differences([asked, {}], {})
    assert row == ("evaluation.metrics", ['{"type": "chrf"}, {"type": "regex", "pattern": "a"}', "\u2013"])


def test_files_of_the_same_bytes_are_the_same():
    files = {id: NamedFile(f"{id}.jsonl", sha256) for id, sha256 in (("a", "1" * 64), ("b", "1" * 64), ("c", "2" * 64))}
    first, same, other = (SPEC | {"dataset": {"file_id": id, "validation_fraction": 0.2}} for id in "abc")
    assert differences([first, same], files) == []
    assert loss_differences([first, same], files) == []
    (row,) = differences([first, other], files)
    assert row[1][1] == "c.jsonl (c, sha256 22222222)"
    assert loss_differences([first, other], files) == ["dataset.file_id"]
    held = [one | {"dataset": one["dataset"] | {"validation_file_id": id}} for one, id in ((first, "a"), (other, "b"))]
    assert loss_differences(held, files) == []
    assert loss_differences([first, first | {"base_model": "large"}], files) == ["base_model"]


def test_a_form_like_a_task_keeps_metrics_with_settings():
    asked = {"metrics": [{"type": "regex", "pattern": "a+", "name": None}, {"type": "rouge_l", "name": None}], "max_prompts": 9}
    like = {"dataset": {"file_id": "file_1"}, "evaluation": asked}
    fields, chosen = fields_of(like), choices_of(like)
    spec, mistakes = spec_of_form(fields, *chosen)
    assert not mistakes
    assert spec["evaluation"] == {"metrics": [{"type": "regex", "pattern": "a+"}, {"type": "rouge_l"}], "max_prompts": 9}
