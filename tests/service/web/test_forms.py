"""What forms answer, without a browser: all mistakes at once, what was typed kept, ways out, durations."""

import html
import re
from datetime import UTC, datetime, timedelta

import pytest
from starlette.testclient import TestClient

from service.scheduler.estimate_resource import Between, EstimateResource, WidthEstimate
from service.web.estimate_times import EstimateTimes
from service.web.views.formats import code_spans
from tests.service.api import chat_rows, jsonl

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PAGE = {"Accept": "text/html,*/*;q=0.8"}


class Signed:
    """A browser without scripts that is signed in."""

    def __init__(self, client: TestClient, key: str) -> None:
        self.client = TestClient(client.app, raise_server_exceptions=False, follow_redirects=False)
        self.client.cookies = self.client.post("/sign-in", data={"key": key}).cookies
        self.csrf = re.search(r'name="csrf" content="(\w+)"', self.client.get("/tasks").text)[1]

    def get(self, path):
        return self.client.get(path, headers=PAGE)

    def post(self, path, **fields):
        return self.client.post(path, data={"csrf": self.csrf} | fields, headers=PAGE)


@pytest.fixture
def signed(client, tenant):
    return Signed(client, tenant.key)


def words(answer) -> str:
    """The page's text on one line, without its tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", answer.text)).split())


def wrong_fields(answer) -> list[str]:
    return re.findall(r'id="f-([\w.]+)"[^>]* aria-invalid="true"', answer.text)


def test_all_mistakes_of_the_form_are_named_at_once(signed, tenant):
    typed = {
        "dataset.file_id": tenant.file(),
        "base_model": "small",
        "search_space.learning_rate": "1e-4",
        "search_space.rank": "8, eight, 9999",
        "dataset.validation_fraction": "1.5",
        "deadline": "tomorrow",
        "labels": "foo\nbar",
    }
    answer = signed.post("/tasks/new", **typed)
    assert answer.status_code == 422
    said = words(answer)
    assert "5 things to mend:" in said
    assert "Part held out (dataset.validation_fraction): " in said
    assert "Ranks (search_space.rank[1]): 'eight' is no whole number" in said
    assert "Ranks (search_space.rank[2]): " in said
    assert "Deadline (deadline): " in said
    assert "Labels (labels): 'foo', 'bar': no '='; write one key=value a line" in said
    assert wrong_fields(answer) == ["dataset.validation_fraction", "search_space.rank", "deadline", "labels"]
    assert re.findall(r'name="([\w.]+)"[^>]* autofocus', answer.text) == ["dataset.validation_fraction"]
    for text in typed.values():
        assert html.escape(text) in answer.text


def test_what_only_the_server_knows_is_marked_on_its_field(signed, tenant):
    typed = {"dataset.file_id": "file_gone", "base_model": "small", "search_space.learning_rate": "1e-4"}
    answer = signed.post("/tasks/new", **typed)
    assert answer.status_code == 422
    assert "Training file (dataset.file_id): " in words(answer)
    assert wrong_fields(answer) == ["dataset.file_id"]


def test_a_random_draw_without_a_number_marks_the_jobs_to_draw(signed, tenant):
    space = {"search_space.method": "random", "search_space.learning_rate": "1e-4", "search_space.n": "some"}
    answer = signed.post("/tasks/new", **{"dataset.file_id": tenant.file(), "base_model": "small"} | space)
    assert "1 thing to mend:Jobs to try (search_space.n): 'some' is no whole number" in words(answer)
    assert wrong_fields(answer) == ["search_space.n"]
    answer = signed.post(
        "/tasks/new", **{"dataset.file_id": tenant.file(), "base_model": "small"} | space | {"search_space.n": ""}
    )
    assert "1 thing to mend:Jobs to try (search_space.n): this method needs" in words(answer)


def test_a_preview_of_an_unreadable_form_says_what_it_needs(signed, tenant):
    chosen = {"dataset.file_id": tenant.file(), "base_model": "small", "training.max_seq_len": "long"}
    assert "mend the form first" in words(signed.post("/tasks/new/preview", **chosen))
    assert "needs a file and a base model" in words(signed.post("/tasks/new/preview"))


def test_an_estimate_tells_durations_that_do_not_age(signed, tenant):
    typed = {"dataset.file_id": tenant.file(), "base_model": "small", "search_space.learning_rate": "1e-4"}
    answer = signed.post("/tasks/new/estimate", **typed | {"training.max_seq_len": "64"})
    outcome = answer.text.split('id="outcome"')[1].split("</dl>")[0]
    assert re.search(r"<dt>Takes</dt><dd>[^<]+ <span class=\"quiet\">\([^<]+ to [^<]+\)", outcome)
    assert "<time" not in outcome
    assert "ago" not in outcome


def estimate(start: float | None, end: float | None) -> EstimateResource:
    def moment(seconds):
        return None if seconds is None else NOW + timedelta(seconds=seconds)

    alone = Between(expected=40, low=20, high=80)
    return EstimateResource.model_construct(
        gpus=2,
        widths=[
            WidthEstimate(gpus=1, seconds=Between(expected=1, low=1, high=1), gpu_seconds=alone),
            WidthEstimate(gpus=2, seconds=alone, gpu_seconds=alone),
        ],
        expected_start=moment(start),
        expected_end=moment(end),
    )


@pytest.mark.parametrize(
    ("start", "end", "told"),
    [
        (-60, -20, EstimateTimes("at once", 40, 20, 80)),  # the plan is a minute old
        (300, 380, EstimateTimes("in 5 min", 80, 40, 160)),  # beside others, at half the speed
        (None, None, EstimateTimes("\u2013", 40, 20, 80)),
    ],
)
def test_times_of_an_estimate(start, end, told):
    assert EstimateTimes.of(estimate(start, end), NOW) == told


def test_a_file_is_refused_without_scripts_by_one_heading_and_its_list(signed):
    content = jsonl(*chat_rows(3)) + b'{"prompt": "cut\n'
    answer = signed.client.post("/files", data={"csrf": signed.csrf}, files={"file": ("broken.jsonl", content)}, headers=PAGE)
    assert answer.status_code == 422
    assert "broken.jsonl was not uploaded: nothing was kept." in words(answer)
    assert words(answer).count("line 4 is not JSON: Unterminated string starting at column 12") == 1


def test_a_mistake_in_a_json_body_is_told_with_one_at(tenant):
    body = tenant.post("/v1/tasks", content=b'{"name": "x', headers={"content-type": "application/json"}).json()
    assert body["detail"] == "The body is not JSON: Unterminated string starting at line 1, column 10."


def test_a_refused_webhook_keeps_what_was_typed(signed):
    typed = {"url": "nonsense", "description": "the <b>hook", "event": ["task.failed"]}
    answer = signed.post("/webhooks", **typed)
    assert answer.status_code == 422
    assert words(answer).count("must be of the form https://host/path") == 1
    assert 'value="nonsense" aria-invalid="true"' in answer.text
    assert 'value="the &lt;b&gt;hook"' in answer.text
    assert re.findall(r'value="([\w.]+)" checked', answer.text) == ["task.failed"]
    private = signed.post("/webhooks", **typed | {"url": "https://10.1.2.3/hook"})
    assert "an operator allows a private network in MOTET_WEBHOOK_NETWORKS" in words(private)
    nothing = signed.post("/webhooks", url="https://example.com/hook", description="")
    assert 'id="e-events"' in nothing.text


def test_a_webhook_of_another_format_shows_no_secret(signed):
    said = {"url": "https://example.com/hook", "event": ["task.failed"]}
    assert "Its secret" in words(signed.post("/webhooks", **said))
    slack = signed.post("/webhooks", **said | {"format": "slack", "description": "of the channel"})
    assert (slack.status_code, "Its secret" in words(slack)) == (200, False)
    assert 'Slack</div><div class="quiet">of the channel' in slack.text
    email = signed.post("/webhooks", **said | {"format": "email", "url": "mailto:team@example.com"})
    assert (email.status_code, "MOTET_SMTP_URL" in words(email)) == (422, True)
    assert '<option value="email" selected>' in email.text
    assert 'id="e-format"' in signed.post("/webhooks", **said | {"format": "teams"}).text


def test_a_refused_tracking_server_keeps_what_was_typed_but_no_secret(signed):
    typed = {"name": "lab", "url": "https://10.1.2.3", "username": "ada", "password": "a-secret"}
    answer = signed.post("/tracking-servers", **typed)
    assert (answer.status_code, "MOTET_TRACKING_NETWORKS" in words(answer)) == (422, True)
    assert [f'value="{typed[name]}"' in answer.text for name in typed] == [True, True, True, False]
    both = signed.post("/tracking-servers", **typed | {"url": "https://1.1.1.1", "token": "t"})
    assert words(both).count("give 'token', or 'username' with 'password'") == 1
    other = signed.post("/tracking-servers", **typed | {"type": "wandb", "url": "https://1.1.1.1"})
    assert '<option value="wandb" selected>' in other.text
    assert "is what a server of type wandb asks for" in words(other)
    assert 'id="e-url"' in signed.post("/tracking-servers", name="lab", url="", type="mlflow").text


def test_a_tracking_server_is_added_tried_again_and_deleted(signed, tenant):
    typed = {"name": "lab", "url": "https://1.1.1.1", "token": "a-secret"}
    assert signed.post("/tracking-servers", **typed).headers["location"] == "/tracking-servers"
    page = signed.get("/tracking-servers")
    assert ("https://1.1.1.1" in page.text, "kept, never shown" in words(page), "a-secret" in page.text) == (True, True, False)
    twice = signed.post("/tracking-servers", **typed)
    assert (twice.status_code, "There is a tracking server 'lab' already" in words(twice)) == (409, True)
    (server,) = tenant.get("/v1/tracking-servers").json()["data"]
    keyed = {"type": "wandb", "name": "runs", "url": "https://1.0.0.1", "api_key": "a-secret"}
    assert signed.post("/tracking-servers", **keyed).status_code == 303
    page = signed.get("/tracking-servers")
    assert ("Weights & Biases" in words(page), "a-secret" in page.text) == (True, False)
    asked = {"type": "mlflow", "server": "lab", "experiment": "the <b>voices"}
    task = tenant.task(integrations=[asked, {"type": "wandb", "wandb": {"project": "the <i>voices"}}])["id"]
    shown = words(signed.get(f"/tasks/{task}"))
    assert "MLflow lab, experiment the <b>voices: 0 points there." in shown
    assert "Weights & Biases runs, project the <i>voices: 0 points there." in shown
    assert signed.post(f"/tracking-servers/{server['id']}/retry").status_code == 303
    assert signed.post(f"/tracking-servers/{server['id']}/nonsense").status_code == 400
    assert signed.post(f"/tracking-servers/{server['id']}/delete").status_code == 303
    assert [one["name"] for one in tenant.get("/v1/tracking-servers").json()["data"]] == ["runs"]
    assert "Mirrored no further: the tracking server was deleted." in words(signed.get(f"/tasks/{task}"))


def test_comparing_leaves_no_token_in_the_address(signed, tenant):
    first, second = tenant.task()["id"], tenant.task()["id"]
    answer = signed.post("/tasks/bulk", act="compare", task=[second, first])
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/compare?{'&'.join(f'task={id}' for id in sorted((first, second)))}"
    for path in ("/tasks", "/compare", f"/compare?task={first}", "/usage"):
        page = signed.get(path).text
        assert "formmethod" not in page
        for form in re.findall(r"<form[^>]*method=\"get\".*?</form>", page, re.DOTALL):
            assert 'name="csrf"' not in form


def test_a_missing_scope_names_the_way_out(signed):
    answer = signed.get("/admin")
    assert answer.status_code == 403
    assert "Sign out, then sign in with a key that has the scope admin: an operator's key." in words(answer)
    assert answer.text.count('action="/sign-out"') == 2  # in the frame and beside the words


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("run `motet up` <now>", "run <code>motet up</code> &lt;now&gt;"),
        ("`<b>`", "<code>&lt;b&gt;</code>"),
        ("`a` and ` alone", "<code>a</code> and ` alone"),
        ("` alone", "` alone"),
        (None, ""),
    ],
)
def test_backticks_are_code(text, shown):
    assert code_spans(text) == shown


def test_no_page_shows_raw_backticks(client, signed):
    assert "`" not in re.sub(r"<pre.*?</pre>", "", signed.get("/docs").text, flags=re.DOTALL)
    stale = TestClient(client.app).get("/sign-in/msl_nothing", headers=PAGE)
    assert "<code>motet dashboard</code> makes a link" in stale.text


def test_a_tenant_of_keys_alone_is_told_how_members_come(signed):
    said = words(signed.get("/members"))
    assert "No members yet" in said
    assert "motet admin invite TENANT" in said
    assert "Signed in" not in said, "no heading of an empty table"


@pytest.mark.parametrize(
    ("row", "plain"),
    [
        (lambda n: {"prompt": f"{n} + 1?", "completion": str(n + 1)}, True),
        (lambda n: {"text": f"{n} + 1 = {n + 1}"}, True),
        (lambda n: chat_rows(n + 1)[n], False),
    ],
)
def test_trying_continues_the_prompt_as_it_stands_where_the_rows_are_texts(signed, tenant, row, plain):
    task = tenant.task(dataset={"file_id": tenant.file([row(n) for n in range(20)])})
    (box,) = re.findall(r'<input type="checkbox" name="plain"[^>]*>', signed.get(f"/tasks/{task['id']}").text)
    assert box.endswith(" checked>") is plain
