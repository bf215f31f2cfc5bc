"""Copies of a base that go wrong: what is tried again and what came, which is not fetched twice."""

from service.database.engine import clock
from service.fleet.base_models.copies.base_copier import BaseCopier
from service.fleet.base_models.copies.copy_claims import CopyClaims
from service.fleet.models import BaseCopy, BaseModel
from service.http.problems import Unavailable
from service.storage.local_storage import LocalIncoming
from tests.hub.hub_process import MODEL
from tests.service.fleet.base_copies.conftest import NAME, able, add, copy_of, sha256_of, stored, weights_asked
from tests.service.live_server import until


def test_a_file_that_storage_lost_is_fetched_when_the_base_is_added_again(admin, copier, hub, storage):
    stored(admin, copier)
    storage.delete(sha256_of("model.safetensors"))
    assert add(admin)["storage"]["status"] == "stored", "nobody asked for a copy"
    before = len(weights_asked(hub))
    stored(admin, copier)
    assert storage.exists(sha256_of("model.safetensors"))
    stored(admin, copier)
    assert len(weights_asked(hub)[before:]) == 1, "what is there is not fetched"


def test_storage_that_damages_a_file_is_given_it_again(admin, copier, storage, database, monkeypatch):
    add(admin, store=True)
    whole = LocalIncoming.write
    monkeypatch.setattr(LocalIncoming, "write", lambda incoming, block: whole(incoming, block + b"!"))
    copier.work_off_due()
    told = copy_of(admin)
    assert (told["status"], told["attempts"], told["error"]["code"]) == ("copying", 1, "unavailable")
    assert "announced were" in told["error"]["detail"]
    monkeypatch.setattr(LocalIncoming, "write", whole)
    with database.begin() as session:
        session.get_one(BaseCopy, NAME).next_at = clock(session)
    copier.work_off_due()
    assert copy_of(admin)["status"] == "stored"


def test_a_cut_copy_goes_on_within_the_file_and_a_later_attempt_with_the_next_file(admin, copier, hub, storage):
    size = (MODEL / "model.safetensors").stat().st_size
    add(admin, store=True)
    before = len(weights_asked(hub))
    hub.faults(cut_after=size // 2 + 1, block=2**16)
    copier.work_off_due()
    assert copy_of(admin)["status"] == "stored"
    first, second = weights_asked(hub)[before:]
    assert 0 < int(second.removeprefix("bytes=").removesuffix("-")) < size
    assert first == "-", "from the beginning"


def test_a_hub_that_is_down_is_asked_again_later_and_what_came_is_kept(admin, copier, hub, storage, database):
    add(admin, store=True)
    storage.delete(sha256_of("model.safetensors"))
    hub.faults(down=True)
    copier.work_off_due()
    told = copy_of(admin)
    assert (told["status"], told["attempts"]) == ("copying", 1)
    assert told["next_attempt_at"] is not None
    assert "answers 503" in told["error"]["detail"]
    hub.faults()
    copier.work_off_due()
    assert copy_of(admin)["attempts"] == 1, "not before its time"
    with database.begin() as session:
        session.get_one(BaseCopy, NAME).next_at = clock(session)
    asked = len(hub.requests)
    copier.work_off_due()
    assert (copy_of(admin)["status"], copy_of(admin)["attempts"]) == ("stored", 1), "they count from the last file that came"
    fetched = {line[0].rpartition("/")[2] for line in hub.requests[asked:]}
    assert fetched == {"model.safetensors"}, "small files were there"


def test_wrong_bytes_fail_the_copy_in_words_and_nodes_ask_the_hub(admin, copier, hub, tenant, new_node, plan):
    add(admin, store=True)
    hub.faults(wrong=["model.safetensors"])
    copier.work_off_due()
    told = copy_of(admin)
    assert told["status"] == "failed"
    assert "sha256" in told["error"]["errors"][0]["message"]
    node, task = able(new_node), tenant.task(base_model=NAME)
    plan()
    assert not node.take(task["id"]).given.base.stored
    hub.faults()
    assert add(admin)["storage"]["status"] == "copying", "named again, it is tried again"


def test_a_copy_whose_process_died_is_anothers_after_its_claim(admin, copier, database):
    add(admin, store=True)
    claims = CopyClaims(database)
    dead = claims.take()
    assert dead is not None
    assert claims.take() is None, "it is claimed"
    with database.begin() as session:
        session.get_one(BaseCopy, NAME).claimed_until = clock(session)
    copier.work_off_due()
    claims.fail(dead, Unavailable("late"), again=False)
    assert (copy_of(admin)["status"], copy_of(admin)["attempts"]) == ("stored", 1)


def test_a_copy_of_a_base_that_is_no_repository_any_more_fails(admin, copier, database):
    add(admin, store=True)
    with database.begin() as session:
        session.get_one(BaseModel, NAME).commit = None
    copier.work_off_due()
    told = copy_of(admin)
    assert (told["status"], told["error"]["detail"]) == ("failed", "It is no repository of the hub any more; add it again.")


def test_a_stopping_process_gives_back_what_it_copies(admin, copier, hub, dependencies, monkeypatch):
    monkeypatch.setattr("service.messaging.progress_notes._NOTE_SECONDS", 0.0)
    add(admin, store=True)
    hub.faults(block=2**14, seconds=0.05)  # a minute or more in all
    copier.wake()
    until(lambda: copy_of(admin)["received_bytes"] > 0)
    copier.close(30)
    assert not copier._in_flight
    back = copy_of(admin)
    assert (back["status"], back["attempts"], back["error"]) == ("copying", 0, None)
    hub.faults()
    BaseCopier(dependencies.db, dependencies.storage, dependencies.settings).work_off_due()
    assert copy_of(admin)["status"] == "stored"


def test_an_error_that_cannot_be_read_is_told_and_ends_no_list(admin, copier, damage):
    add(admin, store=True)
    damage(BaseCopy, "error", {"code": 3}, BaseCopy.base_model == NAME)
    assert copy_of(admin)["error"]["code"] == "unreadable"
    assert "base_copies.error: " in copy_of(admin)["error"]["detail"]
    assert admin.get("/v1/models").status_code == 200
