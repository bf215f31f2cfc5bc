"""What a worker sends is read once it has shown a credential of its node, or a token of its placement."""

import pytest

UNREADABLE = '{"'


def codes(client, path: str, bearers: list[str]) -> list[int]:
    sent = {"content-type": "application/json"}
    return [
        client.post(
            f"/internal/v1/{path}", content=UNREADABLE, headers=sent | {"authorization": f"Bearer {bearer}"}
        ).status_code
        for bearer in bearers
    ]


@pytest.mark.parametrize("path", ["heartbeats", "lost", "cached-files"])
def test_a_node_shows_its_credential_first(client, new_node, path):
    node = new_node()
    assert codes(client, f"nodes/{node.id}/{path}", ["nc_wrong", node.credential]) == [401, 400]


def test_a_credential_that_no_process_remembers_is_looked_up(client, new_node, app):
    node = new_node()
    app.state.motet.throttle.__init__(10)
    assert codes(client, f"nodes/{node.id}/cached-files", [node.credential]) == [400]
    assert app.state.motet.throttle.trusts(node.credential)


@pytest.mark.parametrize("path", ["reports", "merge", "uploads", "completions", "completion-pieces"])
def test_a_placement_shows_its_token_first(client, placement, path):
    token = placement.given.token
    bearers = ["pt_wrong", f"{token}x", token.replace("pt_", "pt_1"), placement.node.credential, token]
    assert codes(client, f"placements/{placement.given.placement_id}/{path}", bearers) == [401, 401, 401, 401, 400]
