"""What a node may keep of tenants' files: the service tells it what was deleted, tenant by tenant."""

import pytest
from sqlalchemy import text

from contract.messages.cached_file_list import CachedFile, CachedFiles
from tests.service.api import chat_rows, jsonl


@pytest.fixture
def unwanted(new_node):
    node = new_node()

    def ask(*kept: tuple[str, str], bearer: str | None = None) -> list[tuple[str, str]]:
        said = CachedFiles(files=[CachedFile(tenant_id=tenant_id, sha256=sha256) for tenant_id, sha256 in kept])
        path = f"nodes/{node.id}/cached-files"
        response = node.call("POST", path, node.credential if bearer is None else bearer, said.model_dump())
        assert response.status_code == (200 if bearer is None else 401), response.text
        if bearer is not None:
            return []
        return [(file.tenant_id, file.sha256) for file in CachedFiles.model_validate(response.json()).files]

    return ask


def test_what_its_tenant_deleted_is_to_be_erased_and_nothing_else(unwanted, new_tenant):
    one, other = new_tenant(), new_tenant()
    content = jsonl(*chat_rows(20))
    mine, theirs, again = (who.upload(content).json() for who in (one, other, one))
    kept = [(one.tenant_id, mine["sha256"]), (other.tenant_id, theirs["sha256"]), ("", mine["sha256"]), ("nobody", "a" * 64)]
    assert unwanted(*kept) == kept[2:], "what belongs to nobody goes"
    assert one.delete(f"/v1/files/{mine['id']}").status_code == 204
    assert unwanted(*kept) == kept[2:], "the same bytes are a file of the tenant yet"
    assert one.delete(f"/v1/files/{again['id']}").status_code == 204
    assert unwanted(*kept) == [kept[0], *kept[2:]], "another tenant's equal file is its own"
    assert unwanted() == []
    unwanted(*kept, bearer="guessed")


def test_an_expired_file_stays_until_the_tasks_that_read_it_have_ended(unwanted, tenant, database):
    task = tenant.task()
    file = tenant.get(f"/v1/files/{task['spec']['dataset']['file_id']}").json()
    kept = (tenant.tenant_id, file["sha256"])
    with database.begin() as session:
        session.execute(text("UPDATE files SET expires_at = clock_timestamp() WHERE id = :id"), {"id": file["id"]})
    assert unwanted(kept) == []
    tenant.post(f"/v1/tasks/{task['id']}/cancel")
    assert unwanted(kept) == [kept]


def test_a_placement_says_whose_it_is_and_when_its_task_was_created(tenant, new_node, plan):
    node, task = new_node(), tenant.task()
    plan()
    given = node.take(task["id"]).given
    assert given.tenant_id == tenant.tenant_id
    assert given.created_at.isoformat().replace("+00:00", "Z") == task["created_at"]
