"""What single values of the chart add: a bucket, a hub, sign-in, servers of one's own, backups."""

from deploy.kubernetes.chart import render_chart
from service import prefork
from service.webhooks import mail
from tests.deploy.chart_objects import (
    A_BUCKET,
    A_HUB,
    BACKUPS,
    EVERYTHING,
    OWN_SERVERS,
    SIGN_IN,
    containers,
    env_of,
    find,
    objects,
)


def test_with_a_bucket_only_the_first_keys_need_a_claim() -> None:
    for name in ("api", "queue", "reconcile"):
        pod = find("Deployment", f"motet-{name}", A_BUCKET)["spec"]["template"]["spec"]
        given = env_of(pod["containers"][0])
        assert {volume["name"]: volume for volume in pod["volumes"]}["storage"] == {"name": "storage", "emptyDir": {}}
        assert given["MOTET_STORAGE_URL"] == "s3://models/motet"
        assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= given.keys()
        assert "MOTET_STORAGE_DIR" not in given
    job = find("Job", "motet-migrate", A_BUCKET)["spec"]["template"]["spec"]
    assert "persistentVolumeClaim" in {volume["name"]: volume for volume in job["volumes"]}["storage"]
    assert "AWS_ACCESS_KEY_ID" not in str(find("StatefulSet", "motet-worker", A_BUCKET)), "workers get presigned URLs"


def test_a_claim_has_a_transfer_port_that_tenants_and_workers_reach_and_a_bucket_has_none() -> None:
    env = env_of(find("Deployment", "motet-api", EVERYTHING)["spec"]["template"]["spec"]["containers"][0])
    assert env["MOTET_TRANSFER_URL"] == "https://motet.example.com"
    (rule,) = find("Ingress", "motet-api", EVERYTHING)["spec"]["rules"]
    backends = {path["path"]: path["backend"]["service"]["port"]["name"] for path in rule["http"]["paths"]}
    assert backends == {"/": "http", "/transfers": "transfers"}
    for service in ("motet-api", "motet-internal"):  # links of workers name the host of their API, and the port itself
        ports = {port["name"]: port["port"] for port in find("Service", service)["spec"]["ports"]}
        assert str(ports["transfers"]) == env["MOTET_TRANSFER_PORT"]
    public, internal = find("NetworkPolicy", "motet-api")["spec"]["ingress"]
    assert all("transfers" in {port["port"] for port in reached["ports"]} for reached in (public, internal))
    elsewhere = find("Deployment", "motet-api", {"storage": {"transferUrl": "https://files.example.com"}})
    own = env_of(elsewhere["spec"]["template"]["spec"]["containers"][0])
    assert own["MOTET_TRANSFER_URL"] == "https://files.example.com"
    for values in (A_BUCKET, {"storage": {"transfers": False}}):
        assert "transfers" not in render_chart("motet", [values]).lower()
        assert "8323" not in render_chart("motet", [values])


def test_a_service_account_is_of_the_services_pods_alone() -> None:
    accounts = {name: pod.get("serviceAccountName") for name, _, pod in containers(A_BUCKET | BACKUPS)}
    ours = {f"motet-{name}" for name in ("api", "queue", "reconcile", "migrate", "backup")}
    assert {name for name, account in accounts.items() if account == "motet-storage"} == ours
    assert not [name for name, _, pod in containers() if "serviceAccountName" in pod]


def test_a_worker_is_killed_only_after_it_could_store_its_jobs() -> None:
    pod = find("StatefulSet", "motet-worker")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= int(env_of(pod["containers"][0])["MOTET_WORKER_STOP_SECONDS"]) + 10


def test_the_service_is_killed_only_after_its_calls_in_flight_have_ended() -> None:
    for name in ("motet-api", "motet-queue", "motet-reconcile"):
        pod = find("Deployment", name)["spec"]["template"]["spec"]
        assert pod.get("terminationGracePeriodSeconds", 30) > max(prefork._PATIENCE_SECONDS, mail._ALL_SECONDS), name


def test_with_a_hub_no_folder_of_bases_is_mounted_and_its_token_reaches_those_alone_who_call_it() -> None:
    tokens = {name for name, container, _ in containers(A_HUB) if "HF_TOKEN" in env_of(container)}
    assert tokens == {"motet-api", "motet-reconcile", "motet-worker"}, "the reconciler copies bases, imports and pushes"
    for name, container, pod in containers(A_HUB):
        assert "models" not in {volume["name"] for volume in pod["volumes"]}, name
        if name in tokens:
            assert env_of(container)["HF_ENDPOINT"] == "https://hub.internal"


def test_who_signs_people_in_is_told_to_the_service_alone() -> None:
    assert "OIDC" not in render_chart("motet", [{}])
    told = {name for name, container, _ in containers(SIGN_IN) if "MOTET_OIDC_ISSUER" in env_of(container)}
    assert {"motet-api", "motet-queue", "motet-reconcile"} <= told
    assert "OIDC" not in str(find("StatefulSet", "motet-worker", SIGN_IN))


def test_every_worker_that_an_autoscaler_makes_may_join_under_its_pods_name() -> None:
    migrate = find("Job", "motet-migrate", EVERYTHING)["spec"]["template"]["spec"]["containers"][0]
    assert env_of(migrate)["MOTET_JOIN_NODES"] == "motet-worker-*"


def test_the_migration_comes_before_the_programs_where_the_database_is_there_already() -> None:
    hook = "helm.sh/hook"
    assert find("Job", "motet-migrate", OWN_SERVERS)["metadata"]["annotations"][hook] == "pre-install,pre-upgrade"
    assert find("Job", "motet-migrate")["metadata"]["annotations"][hook] == "post-install,pre-upgrade"


def test_backups_are_taken_one_at_a_time_by_the_database_owner() -> None:
    assert not [it for it in objects() if it["kind"] == "CronJob"], "none unless a place for them is named"
    job = find("CronJob", "motet-backup", BACKUPS)["spec"]
    assert (job["schedule"], job["concurrencyPolicy"]) == ("17 2 * * *", "Forbid")
    pod = job["jobTemplate"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    given = env_of(container)
    assert container["command"] == ["python", "-m", "service", "backup"]
    assert (given["MOTET_BACKUP_URL"], given["MOTET_BACKUPS_KEPT"]) == ("file:///backups", "7")
    assert given["MOTET_OWNER_DATABASE_URL"].startswith("postgresql+psycopg://motet:$(POSTGRES_PASSWORD)@")
    assert {"/backups", "/var/lib/motet"} <= {mount["mountPath"] for mount in container["volumeMounts"]}
    own = {"app.kubernetes.io/component": "backup"}.items()
    assert own <= pod["metadata"]["labels"].items()
    (rule,) = find("NetworkPolicy", "motet-postgres", BACKUPS)["spec"]["ingress"][0]["from"]
    assert "backup" in rule["podSelector"]["matchExpressions"][0]["values"]
