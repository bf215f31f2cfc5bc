"""What pages say, without a browser."""

from service.web.views.spec_differences import in_order

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
