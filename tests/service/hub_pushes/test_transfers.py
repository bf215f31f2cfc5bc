"""How files come to the hub: whole and in parts, streamed, through the SSRF guard, tried again; and once, whatever dies."""

import ipaddress
import threading
import tracemalloc

import pytest
from sqlalchemy import select, update

from service.database.claimed_rows import ATTEMPTS, Lost
from service.database.engine import clock
from service.hub_pushes.models import HubPush
from service.hub_pushes.push_courier import HubPushCourier
from service.settings import Settings
from tests.hub.hub_process import TOKEN, hub_process
from tests.service.hub_pushes.pushing import asked, content, history, new_name, requests, seen, tree
from tests.service.live_server import PATIENCE, until

WEIGHTS = "adapter_model.safetensors"


def test_a_large_file_goes_in_parts_each_tried_again(tenant, hub, courier, pushable):
    name = new_name()
    made = asked(tenant, pushable(tenant, size=100, seed=1), name)
    hub.faults(part_bytes=30_000, refuse={r"PUT /lfs/part/\w+/2": [503, {}, "slow down", 2]})
    before = len(hub.requests)
    courier.work_off_due()
    done = seen(tenant, made)
    assert (done["error"], done["status"]) == (None, "succeeded")
    weights = next(file for file in made["files"] if file["path"] == WEIGHTS)
    assert tree(hub, name)[WEIGHTS] == {"oid": weights["sha256"], "size": weights["bytes"], "lfs": True}
    assert len(content(hub, name, WEIGHTS)) == weights["bytes"]
    parts = requests(hub, before, "/lfs/part/")
    assert len(parts) == 3 + 2, "the second part took three tries"
    assert len(requests(hub, before, "/lfs/complete/")) == len(requests(hub, before, "/lfs/verify")) == 1


def test_memory_holds_blocks_and_no_file(tenant, hub, dependencies, courier, pushable):
    adapter_id, name = pushable(tenant, size=2400, seed=2), new_name()
    made = asked(tenant, adapter_id, name)
    assert made["bytes"] > 40 * 2**20
    tracemalloc.start()
    courier.work_off_due()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen(tenant, made)["error"] is None
    assert tree(hub, name)[WEIGHTS]["size"] > 40 * 2**20
    assert peak < 12 * 2**20


def test_uploads_elsewhere_go_through_the_guard(tenant, hub, courier, pushable, dependencies, settings):
    made = asked(tenant, pushable(tenant, seed=3), new_name())
    hub.faults(put_cdn=hub.other_origin)
    before = len(hub.requests)
    courier.work_off_due()
    refused = seen(tenant, made)
    assert (refused["status"], refused["error"]["code"]) == ("failed", "hub_redirects")
    assert "MOTET_HUB_NETWORKS" in refused["error"]["detail"]
    assert "Signature" not in str(refused)
    assert requests(hub, before, "/lfs/put") == []
    loopback = {"hub_networks": (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))}
    allowed = type(dependencies)(
        settings.model_copy(update=loopback), dependencies.db, dependencies.storage, dependencies.queue, dependencies.wakeups
    )
    again = asked(tenant, made["adapter_id"], new_name())
    HubPushCourier(allowed).work_off_due()
    assert seen(tenant, again)["error"] is None
    assert [line[2] for line in hub.requests if line[0].startswith("/lfs/put")][-1] == "anonymous"


def test_a_hub_that_is_away_is_asked_again_and_at_last_not(tenant, hub, courier, pushable, due_now, logged):
    made = asked(tenant, pushable(tenant, seed=4), new_name())
    hub.faults(down=True)
    for attempt in range(1, ATTEMPTS + 1):
        assert courier.work_off_due() == 1
        now = seen(tenant, made)
        assert (now["attempts"], now["error"]["code"]) == (attempt, "hub_unavailable")
        assert now["status"] == ("queued" if attempt < ATTEMPTS else "failed")
        assert courier.work_off_due() == 0, "not before its time"
        due_now()
    assert TOKEN not in logged()


def test_a_hub_that_takes_files_and_no_commit_is_asked_again_and_at_last_not(tenant, hub, courier, pushable, due_now):
    """The files are sent once, so that attempts count on."""
    made = asked(tenant, pushable(tenant, seed=13), new_name())
    hub.faults(refuse={"/commit/": [500, {}, "no", 99]})
    before = len(hub.requests)
    for attempt in range(1, ATTEMPTS + 1):
        assert courier.work_off_due() == 1
        assert (seen(tenant, made)["attempts"], seen(tenant, made)["error"]["code"]) == (attempt, "hub_unavailable")
        due_now()
    assert (seen(tenant, made)["status"], courier.work_off_due()) == ("failed", 0)
    assert len(requests(hub, before, "/lfs/put")) == 1


@pytest.mark.parametrize("link", ["https://[x", "https://h:99999/"])
def test_a_page_that_is_at_no_url_is_told(tenant, hub, courier, pushable, due_now, link):
    made = asked(tenant, pushable(tenant, seed=14), new_name())
    page = [200, {"Link": f'<{link}>; rel="next"'}, "[]", 99]
    hub.faults(refuse={"POST .*/commit/": [500, {}, "no", 99], "/commits/": page})
    for _ in range(2):
        courier.work_off_due()
        due_now()
    now = seen(tenant, made)
    assert (now["status"], now["error"]["code"], now["attempts"]) == ("queued", "hub_unavailable", 2)
    assert "cannot be read" in now["error"]["detail"]


def test_a_commit_whose_answer_is_lost_is_found_and_not_made_again(tenant, hub, courier, pushable, due_now):
    name = new_name()
    made = asked(tenant, pushable(tenant, seed=5), name)
    hub.faults(cut_answers="/commit/")
    courier.work_off_due()
    lost = seen(tenant, made)
    assert (lost["status"], lost["error"]["code"]) == ("queued", "hub_unavailable")
    assert len(history(hub, name)) == 2
    hub.faults()
    ours = hub.held(name)["commits"]["main"]
    for number in range(3):  # others commit meanwhile, also what we pushed, and the log has several pages
        other = asked(tenant, pushable(tenant, seed=50 + number), name, message=f"other {number}")
        due = courier.work_off_due()
        assert due == 1, "the first one waits"
        assert seen(tenant, other)["error"] is None
    before = len(hub.requests)
    due_now()
    courier.work_off_due()
    assert (seen(tenant, made)["status"], seen(tenant, made)["commit"]) == ("succeeded", ours)
    assert requests(hub, before, "/commit/") == requests(hub, before, "/lfs/") == []
    assert len(history(hub, name)) == 5


def test_two_that_commit_at_once_make_one_commit(tenant, hub, courier, dependencies, pushable, due_now, monkeypatch):
    name = new_name()
    made = asked(tenant, pushable(tenant, seed=6), name)
    first, claims = HubPushCourier(dependencies), courier._claims
    hanging, go_on = threading.Event(), threading.Event()
    noted = first._claims.note_commit

    def hang(*words):
        noted(*words)
        hanging.set()
        assert go_on.wait(PATIENCE)

    monkeypatch.setattr(first._claims, "note_commit", hang)
    slow = threading.Thread(target=first.work_off_due)
    slow.start()
    assert hanging.wait(PATIENCE)
    due_now()  # its claim runs out just before it commits
    courier.work_off_due()
    done = seen(tenant, made)
    assert (done["status"], len(history(hub, name))) == ("succeeded", 2)
    go_on.set()
    slow.join()
    assert len(history(hub, name)) == 2, "its parent is no longer the newest commit"
    assert seen(tenant, made) == done
    assert claims.take() is None


def test_a_process_that_died_is_followed_by_another(tenant, hub, courier, pushable, due_now):
    made = asked(tenant, pushable(tenant, seed=7), new_name())
    died = courier._claims.take()
    assert died is not None
    assert courier.work_off_due() == 0, "it is another's"
    assert (seen(tenant, made)["status"], seen(tenant, made)["attempts"]) == ("running", 1)
    due_now()
    assert courier.work_off_due() == 1
    assert (seen(tenant, made)["status"], seen(tenant, made)["attempts"]) == ("succeeded", 1)
    with pytest.raises(Lost):
        courier._claims.renew(died)


def test_a_process_that_dies_each_time_ends_it(tenant, courier, pushable, due_now):
    made = asked(tenant, pushable(tenant, seed=8), new_name())
    for _ in range(ATTEMPTS):
        assert courier._claims.take() is not None
        due_now()
    assert courier.work_off_due() == 0
    assert seen(tenant, made)["status"] == "failed"
    assert "died each time" in seen(tenant, made)["error"]["detail"]


@pytest.fixture
def slowly(monkeypatch, hub):
    """The hub takes 20 ms for each kB; progress is noted at once."""
    monkeypatch.setattr("service.messaging.progress_notes._NOTE_SECONDS", 0.0)
    monkeypatch.setattr("service.hub_pushes.push_run.BLOCK", 1000)
    hub.faults(block=1000, slow_put=0.02)


def test_what_is_deleted_while_it_is_sent_makes_no_commit(tenant, hub, courier, pushable, slowly):
    name = new_name()
    made = asked(tenant, pushable(tenant, size=900, seed=9), name)
    sending = threading.Thread(target=courier.work_off_due)
    sending.start()
    until(lambda: seen(tenant, made)["sent_bytes"] > 2000)
    assert seen(tenant, made)["status"] == "running"
    assert tenant.delete(f"/v1/hub-pushes/{made['id']}").status_code == 204
    sending.join()
    assert history(hub, name) == ["initial commit"]


def test_a_stopping_process_gives_back_what_it_sends(
    tenant, hub, courier, dependencies, pushable, slowly, database, monkeypatch
):
    name = new_name()
    made = asked(tenant, pushable(tenant, size=900, seed=10), name)
    courier.wake()
    until(lambda: seen(tenant, made)["sent_bytes"] > 2000)
    courier.close(30)
    back = seen(tenant, made)
    assert (back["status"], back["attempts"], back["error"]) == ("queued", 0, None)
    with database.begin() as session:
        assert session.scalar(select(HubPush.sealed).where(HubPush.id == made["id"])) is not None
    hub.faults()
    monkeypatch.undo()
    HubPushCourier(dependencies).work_off_due()
    assert seen(tenant, made)["status"] == "succeeded"


def test_a_token_goes_to_the_hub_alone_that_it_was_given_for(tenant, hub, courier, pushable, settings, dependencies, tmp_path):
    made = asked(tenant, pushable(tenant, seed=11), new_name())
    with hub_process(tmp_path / "other") as other:
        moved: Settings = settings.model_copy(update={"hf_endpoint": other.url})
        elsewhere = type(dependencies)(moved, dependencies.db, dependencies.storage, dependencies.queue, dependencies.wakeups)
        HubPushCourier(elsewhere).work_off_due()
        assert other.requests == []
    assert seen(tenant, made)["error"]["code"] == "hub_changed"


def test_attempts_count_from_the_last_file_that_was_stored(tenant, hub, courier, pushable, due_now, database):
    made = asked(tenant, pushable(tenant, seed=12), new_name())
    with database.begin() as session:
        session.execute(update(HubPush).where(HubPush.id == made["id"]).values(attempts=ATTEMPTS - 1, next_at=clock(session)))
    hub.faults(cut_answers="/commit/")
    courier.work_off_due()
    now = seen(tenant, made)
    assert (now["status"], now["attempts"]) == ("queued", 1)
