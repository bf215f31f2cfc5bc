"""Nodes that hold a base go before those that must fetch it, by the seconds of the download and by no more."""

import pytest

from contract.compatibility.capabilities import understood
from contract.model_revision import content_key
from service.fleet.models import BaseCopy, BaseModel, BaseModelFile, Node
from service.scheduler.state import snapshot
from tests.service.scheduler.planned import start, validated

FILES = {"config.json": "a" * 64, "model.safetensors": "b" * 64}
KEY = content_key(FILES.items())
SIZE = 2_500_000_000
RATE = 62_500_000  # the setting's default: 40 s for SIZE


@pytest.fixture
def base(database):
    """The name of a base of the hub, and a way to change its size."""

    def sized(size: int) -> None:
        with database.begin() as session:
            session.get_one(BaseModelFile, ("org/held", "model.safetensors")).bytes = size

    with database.begin() as session:
        if session.get(BaseModel, "org/held") is None:
            row = BaseModel(name="org/held", source="hf://org/held", revision="c" * 64, architecture="LlamaForCausalLM")
            row.model_type, row.parameters, row.max_position, row.commit = "llama", 7_000_000, 2048, "d" * 40
            session.add(row)
            session.flush()
            session.add_all(
                BaseModelFile(base_model="org/held", path=path, sha256=sha256, bytes=0) for path, sha256 in FILES.items()
            )
    sized(SIZE)
    return sized


@pytest.fixture
def node(new_node):
    """A node that reports these bases; None: an older one."""

    def make(name: str, bases: list[str] | None, slots: int = 1):
        said = {"capabilities": sorted(understood())} | ({} if bases is None else {"bases": bases})
        return new_node(name, slots=slots, said=said)

    return make


def seconds_of(dependencies, task_id: str) -> dict[str, int | None]:
    """The task's planned duration by the names of the nodes."""
    with dependencies.db.begin() as session:
        seen = snapshot.read(session, dependencies)
        (queued,) = [one for one in seen.problem.queued if one.id == task_id]
        names = [seen.nodes[node.id].name for node in seen.problem.nodes]
    return dict(zip(names, queued.seconds, strict=True))


def remaining(dependencies) -> int:
    with dependencies.db.begin() as session:
        (run,) = snapshot.read(session, dependencies).live
    return run.remaining


def test_a_base_in_storage_is_fetched_as_long_and_preferred_where_it_lies(dependencies, tenant, node, base, database):
    with database.begin() as session:
        row = session.get_one(BaseModel, "org/held")
        row.source, row.commit = "storage://org/held", None
        session.add(BaseCopy(base_model="org/held", status="stored"))
    node("lacks", []), node("holds", [KEY])
    found = seconds_of(dependencies, validated(dependencies, tenant, base_model="org/held"))
    with database.begin() as session:
        row = session.get_one(BaseModel, "org/held")
        row.source, row.commit = "hf://org/held", "d" * 40
        session.delete(session.get_one(BaseCopy, "org/held"))
    assert found["lacks"] - found["holds"] == 40


def test_a_download_is_bytes_over_the_rate_on_nodes_that_lack_the_base(dependencies, tenant, node, base, database):
    lacks, holds, old = node("lacks", []), node("holds", [KEY]), node("old", None)
    task, of_folder = validated(dependencies, tenant, base_model="org/held"), validated(dependencies, tenant)
    found = seconds_of(dependencies, task)
    assert found["lacks"] - found["holds"] == 40
    assert found["old"] - found["holds"] == 20, "even odds where nothing is known"
    assert len(set(seconds_of(dependencies, of_folder).values())) == 1, "a base in a folder of every node is fetched by none"
    lacks.beat(bases=[], base_bytes_per_second=RATE * 4)
    holds.beat(bases=[KEY])
    old.beat()
    found = seconds_of(dependencies, task)
    assert found["lacks"] - found["holds"] == 10, "as the node measured"
    assert found["old"] - found["holds"] == 5, "as others measured"
    lacks.beat(bases=[KEY, "e" * 64])
    assert len({value for name, value in seconds_of(dependencies, task).items() if name != "old"}) == 1
    with database.begin() as session:
        assert session.get_one(Node, lacks.id).bases == [KEY, "e" * 64]
    lacks.beat()
    found = seconds_of(dependencies, task)
    assert found["lacks"] == found["old"], "an older worker's heartbeat after a rollback"


@pytest.mark.parametrize("first", ["lacks", "holds"])
def test_a_task_goes_to_the_node_that_holds_its_base(dependencies, tenant, node, base, plan, first):
    made = {name: node(name, [KEY] if name == "holds" else []) for name in sorted(("lacks", "holds"), key=first.__ne__)}
    task = tenant.task(base_model="org/held")["id"]
    plan()
    assert [placement.task_id for placement in made["holds"].desired().placements] == [task]
    assert made["lacks"].desired().placements == []


@pytest.mark.parametrize(("part", "goes_to"), [(0.5, "lacks"), (1.5, "holds")])
def test_the_download_is_weighed_against_how_much_longer_the_other_takes(
    dependencies, tenant, node, base, plan, database, part, goes_to
):
    """The node that holds the base lost an executor lately, for which the task is taken to last twice as long there."""
    made = {"holds": node("holds", [KEY]), "lacks": node("lacks", [])}
    task = validated(dependencies, tenant, base_model="org/held")
    alone = seconds_of(dependencies, task)["holds"]
    base(round(part * alone * RATE))
    with database.begin() as session:
        session.get_one(Node, made["holds"].id).losing = ["task_of_another"]
    assert seconds_of(dependencies, task) == {"holds": 2 * alone, "lacks": alone + round(part * alone)}
    plan()
    assert {name: len(one.desired().placements) for name, one in made.items()} == {name: int(name == goes_to) for name in made}


def test_it_goes_to_the_other_where_that_one_is_busy_for_longer_than_the_download(dependencies, tenant, node, base, plan):
    holds = node("holds", [KEY])
    running = tenant.task()["id"]
    plan()
    start(holds, running)
    holds.beat(bases=[KEY])
    lacks = node("lacks", [])
    base(remaining(dependencies) * RATE // 3)
    task = tenant.task(base_model="org/held")["id"]
    plan()
    assert [placement.task_id for placement in lacks.desired().placements] == [task]


def test_estimates_and_reasons_say_what_is_downloaded_first(tenant, node, base, plan):
    lacks = node("lacks", [])
    said = "Node lacks downloads 2.5 GB of base model org/held first, about 40 s."
    spec = tenant.spec(tenant.file(), base_model="org/held")
    estimate = tenant.post("/v1/tasks/estimate", json=spec).json()
    assert estimate["base_download"] == said
    running = tenant.task()["id"]
    plan()
    start(lacks, running)
    lacks.beat(bases=[])
    waits = tenant.task(base_model="org/held")["id"]
    plan()
    assert said in tenant.get(f"/v1/tasks/{waits}").json()["waiting"]["sentence"]
    lacks.beat(bases=[KEY])
    assert tenant.post("/v1/tasks/estimate", json=spec).json()["base_download"] is None
    assert tenant.post("/v1/tasks/estimate", json=spec | {"base_model": "small"}).json()["base_download"] is None


def test_a_placement_that_still_fetches_ends_later(dependencies, tenant, node, base, plan):
    lacks = node("lacks", [])
    base(4000 * RATE)
    task = tenant.task(base_model="org/held")["id"]
    plan()
    start(lacks, task)
    lacks.beat(bases=[])
    fetching = remaining(dependencies)
    lacks.beat(bases=[KEY])
    assert 3900 <= fetching - remaining(dependencies) <= 4000
