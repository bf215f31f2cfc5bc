"""What is wrong with a tracking server, in one answer."""

from tests.service.mirrors.conftest import TOKEN

PATH = "/v1/tracking-servers"
SERVER = {"name": "lab", "url": "https://1.1.1.1/mlflow"}


def test_all_that_is_wrong_with_a_tracking_server_is_said_at_once(tenant):
    private, key, both = {"url": "https://10.1.2.3"}, {"credentials": {"api_key": "k"}}, ["url", "credentials.api_key"]

    def fields(answer):
        return [error["field"] for error in answer.json().get("errors", ())]

    for wrong in ({"url": None}, {"url": "https://1.1.1.1?a"}, {"url": "https://u@1.1.1.1"}, {"url": "ftp://1.1.1.1"}):
        assert fields(tenant.post(PATH, json=SERVER | wrong | key)) == both
        assert fields(tenant.post(PATH, json=SERVER | wrong | key | {"name": "a name", "x": 1})) == ["name", *both, "x"]
    assert fields(tenant.post(PATH, json=SERVER | {"name": "", "type": "wandb"})) == ["name", "credentials.api_key"]
    assert fields(tenant.post(PATH, json=SERVER | private)) == ["url"]
    lone = f"{PATH}/{tenant.post(PATH, json=SERVER).json()['id']}"
    assert fields(tenant.patch(lone, json=private | key)) == both
    assert fields(tenant.patch(lone, json={"url": "https://1.1.1.1#a", "x": 1})) == ["url", "x"]
    closed = tenant.post(PATH, json=SERVER | {"name": "closed", "credentials": {"token": TOKEN}}).json()
    assert fields(tenant.patch(f"{PATH}/{closed['id']}", json=private)) == ["url", "credentials"]
