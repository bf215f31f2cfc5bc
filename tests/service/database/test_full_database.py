"""A database whose disk is full refuses with words, changes nothing, and goes on by itself once there is room."""

import os
import secrets

from psycopg import sql

from tests.service.api import chat_rows, jsonl
from tests.service.conftest import name_of


def test_a_full_database_is_said_and_mends_itself(stack, template, small_disk, settings_for, tmp_path, serve):
    """On a real one: a copy of the template's tables would not fit the small disk, so one table is moved there."""
    place, space = small_disk.folder / "tables", f"small_{secrets.token_hex(4)}"
    place.mkdir()
    small_disk.folder.chmod(0o711)
    os.chown(place, stack.postgres._account.owner, -1)
    for folder in place.parents:
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o001)  # the account that Postgres runs as passes through
    url = stack.new_database(template)
    with stack.postgres.connect() as owner:
        owner.execute(sql.SQL("CREATE TABLESPACE {} LOCATION {}").format(sql.Identifier(space), str(place)))
    with stack.postgres.connect(name_of(url)) as owner:
        owner.execute(sql.SQL("ALTER TABLE files SET TABLESPACE {}").format(sql.Identifier(space)))
    caller = serve(settings_for(url, tmp_path / "service"))
    small_disk.fill()
    kept, answer = [], None
    for number in range(500):
        answer = caller.upload(jsonl(*chat_rows(3)), name=f"{number} " + "x" * 200)
        if answer.status_code != 201:
            break
        kept.append(answer.json()["id"])
    assert (answer.status_code, answer.json()["code"]) == (503, "database_full"), answer.text
    assert answer.headers["Retry-After"] == "30"
    assert "Nothing was changed" in answer.json()["detail"]
    listed = {file["id"] for file in caller.get("/v1/files?limit=100").json()["data"]}
    assert set(kept) >= listed
    assert len(listed) == min(len(kept), 100)
    small_disk.free()
    assert caller.upload(jsonl(*chat_rows(3))).status_code == 201
    with stack.postgres.connect() as owner:
        owner.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name_of(url))))
        owner.execute(sql.SQL("DROP TABLESPACE {}").format(sql.Identifier(space)))
