"""Rows with tools, calls, weights and developers: what is written and learned under templates of several families, the same
by the service's reader and the worker's. The spans are held against a reference that knows each family's notation alone."""

import json
import shutil
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from transformers import AutoTokenizer

from contract.rows.row_encoding import RowReader
from contract.rows.tokenizer import RowError, TemplateError
from contract.task_spec import Objective
from service.files.folder_tokenizer import FolderTokenizer
from tests.worker.corpus import EXAMPLE_BASE
from tests.worker.data.tool_templates import (
    BRACKETED,
    FAMILIES,
    tagged,
)
from worker.data.row_reader import reader_of

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Tells the {name}.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    for name in ("weather", "time")
]


def call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*made: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": list(made), **more}


def result(id: str, content: str = "12") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


def user(content: Any = "How is Köln?") -> dict[str, Any]:
    return {"role": "user", "content": content}


def says(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


DEVELOPER = {"role": "developer", "content": "Be brief."}
ONE = calling(call("a", "weather", '{"city":"Köln"}'), content=None)
TWO = calling(call("b", "weather", '{"city": "Bonn", "days": [1, 2]}'), call("c", "time", "{}"))
TALKING = calling(call("d", "time", '{"city": "Amber"}'), content="Let me see.")
CONVERSATIONS = {
    "a call at the end": [DEVELOPER, user(), ONE],
    "a call, its answer, a text": [DEVELOPER, user(), ONE, result("a"), says("It has 12 °C.")],
    "two calls at once": [DEVELOPER, user(), TWO, result("b"), result("c", "noon"), says("12 °C, noon.")],
    "calls after texts and texts after calls": [
        *(DEVELOPER, user("Hi"), says("Hello"), user(), ONE, result("a"), says("12 °C.")),
        *(user("And Bonn?"), TWO, result("b"), result("c", "noon"), calling(call("e", "time", '{"city":"Bonn"}'))),
    ],
    "no arguments": [DEVELOPER, user(), calling(call("a", "time", "{}")), result("a"), says("Noon.")],
    "a text with a call": [DEVELOPER, user(), TALKING, result("d"), says("Noon."), user("Sure?"), TALKING],
    "arguments like the marks": [
        *(DEVELOPER, user(), calling(call("a", "time", '{"Amber":"Amber"}')), result("a")),
        calling(call("b", "time", '{"Tulip":"Tulip"}')),
    ],
}


@pytest.fixture(scope="module")
def readers_of(tmp_path_factory) -> Callable[[str], tuple[RowReader, RowReader]]:
    """The service's and the worker's reader of a base with this template."""
    made: dict[str, tuple[RowReader, RowReader]] = {}

    def readers(template: str) -> tuple[RowReader, RowReader]:
        if template not in made:
            folder = tmp_path_factory.mktemp("base") / "base"
            shutil.copytree(EXAMPLE_BASE, folder, ignore=shutil.ignore_patterns("*.safetensors"))
            (folder / "chat_template.jinja").write_text(template)
            made[template] = RowReader(FolderTokenizer(folder)), reader_of(AutoTokenizer.from_pretrained(folder))
        return made[template]

    return readers


REFUSED = ("bracketed", "a text with a call")  # the template drops such a text


@pytest.mark.parametrize(("family", "conversation"), [pair for pair in product(FAMILIES, CONVERSATIONS) if pair != REFUSED])
def test_calls_are_learned_as_the_template_writes_them(readers_of, family, conversation):
    template, written, begins = FAMILIES[family]
    messages = CONVERSATIONS[conversation]
    learned = set()
    for reader in readers_of(template):
        made = reader.render(messages, tools=TOOLS)
        spans = [made.text[start:end].lstrip(" ") for start, end in made.learned]
        turns = [(place, message) for place, message in enumerate(messages) if message["role"] == "assistant"]
        assert spans == [written(turn, place == len(messages) - 1).lstrip(" ") for place, turn in turns]
        assert all(made.text[:start].endswith((begins, f"{begins}<think>\n")) for start, _ in made.learned)
        assert sorted(made.learned) == list(made.learned)
        assert all(tool["function"]["description"] in made.text for tool in TOOLS)
        ((tokens,),) = reader.read([{"messages": messages, "tools": TOOLS}])
        learned.add((tuple(tokens.ids), tuple(tokens.learned)))
    assert len(learned) == 1, "the service and the worker read the same"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_weight_of_0_takes_a_turn_out_of_the_loss_and_changes_no_text(readers_of, family):
    messages = CONVERSATIONS["calls after texts and texts after calls"]
    places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    for reader in readers_of(FAMILIES[family].template):
        every = reader.render(messages, tools=TOOLS)
        for index, place in enumerate(places):
            weighed = [message | ({"weight": 0} if at == place else {}) for at, message in enumerate(messages)]
            made = reader.render(weighed, tools=TOOLS)
            assert made.text == every.text
            assert made.learned == (*every.learned[:index], *every.learned[index + 1 :])
        light = [message | ({"weight": 0} if message is messages[-1] else {}) for message in messages]
        assert reader.render(light, tools=TOOLS, last=True).learned == every.learned[-2:-1]


@pytest.mark.parametrize("first", [says("Welcome."), calling(call("a", "time", "{}"))])
def test_a_conversation_may_begin_with_the_assistant(readers_of, first):
    template, written, begins = FAMILIES["tagged"]
    for reader in readers_of(template):
        made = reader.render([first, user(), says("Hi.")])
        assert [made.text[start:end] for start, end in made.learned] == [written(first, False), "Hi.<|im_end|>\n"]
        assert made.text.startswith(begins)


def test_a_preference_may_have_tools_and_calls(readers_of):
    row = {"input": {"messages": [user()], "tools": TOOLS}, "preferred_output": [ONE], "non_preferred_output": [says("12")]}
    read = [reader.read([row], Objective(type="dpo")) for reader in readers_of(FAMILIES["tagged"].template)]
    assert read[0] == read[1]
    ours = readers_of(FAMILIES["tagged"].template)[0]
    prompt = ours.read([{"messages": [user(), ONE], "tools": TOOLS}])
    assert read[0][0][0] == prompt[0][0], "the preferred answer is read as a chat row's, tools included"
    learned = []
    for answer in (ONE, says("12")):
        made = ours.render([user(), answer], tools=TOOLS, after=1)
        learned += [made.text[start:end] for start, end in made.learned]
    assert learned == [tagged("")(ONE, True), "12<|im_end|>\n"]


def test_parts_nulls_and_a_plain_form_are_one_row(readers_of):
    plain = [{"role": "system", "content": "Be brief."}, user("ab"), says("c")]
    parts = [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]) | {"name": None},
        says("c", weight=1, tool_calls=None, refusal=None, annotations=[]),
    ]
    for reader in readers_of(FAMILIES["tagged"].template):
        wanted = reader.read([{"messages": plain}])
        assert reader.read([{"messages": parts, "tools": [], "parallel_tool_calls": True}]) == wanted
        assert reader.read([{"messages": [DEVELOPER, *plain[1:]]}]) == wanted, "the template knows no developer"
    for reader in readers_of(FAMILIES["harmonic"].template):
        assert "<|start|>developer<|message|>Be brief." in reader.render([DEVELOPER, user(), says("c")]).text


def test_the_template_for_tools_is_taken_where_there_are_tools(tmp_path):
    shutil.copytree(EXAMPLE_BASE, tmp_path / "base", ignore=shutil.ignore_patterns("*.safetensors"))
    config = tmp_path / "base" / "tokenizer_config.json"
    named = [{"name": "default", "template": "D" + BRACKETED}, {"name": "tool_use", "template": FAMILIES["tagged"].template}]
    (tmp_path / "base" / "chat_template.jinja").unlink()
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": named}))
    for reader in (RowReader(FolderTokenizer(tmp_path / "base")), reader_of(AutoTokenizer.from_pretrained(tmp_path / "base"))):
        assert reader.render([user(), says("c")]).text.startswith("D[INST]")
        assert reader.render([user(), says("c")], tools=TOOLS).text.startswith("<|im_start|>system")
        assert reader.render([user(), says("c")], tools=[]).text.startswith("D[INST]")


PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
NAMES_ALONE = PLAIN.replace("{{ m.content }}", "{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}")
JOINED_ALONE = PLAIN.replace(
    "{{ m.content }}", "{{ m.content }}{% for c in m.tool_calls %}{{ '' + c.function.arguments }}{% endfor %}"
)
FIRST_ALONE = PLAIN.replace("{{ m.content }}", "{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls[0] | tojson }}{% endif %}")
FIRST_TOOL = "{% if tools %}{{ tools[0] | tojson }}{% endif %}" + FIRST_ALONE
NO_RESULTS = FIRST_ALONE.replace("{{ m.content }}", "{% if m.role != 'tool' %}{{ m.content }}{% endif %}")
NO_DEVELOPER = PLAIN.replace("{{ m.content }}", "{% if m.role != 'system' %}{{ m.content }}{% endif %}")


@pytest.mark.parametrize(
    ("template", "messages", "tools", "field"),
    [
        (PLAIN, [user(), says("c")], TOOLS, r"tools\[0\]\.function\.name"),
        (PLAIN, [user(), ONE], None, r"messages\[1\]\.tool_calls\[0\]\.function\.name"),
        (NAMES_ALONE, [user(), ONE], None, r"messages\[1\]\.tool_calls\[0\]\.function\.arguments"),
        (JOINED_ALONE, [user(), ONE], None, r"messages\[1\]\.tool_calls\[0\]\.function\.name"),
        (FIRST_ALONE, [user(), TWO], None, r"messages\[1\]\.tool_calls\[1\]\.function\.name"),
        (FIRST_TOOL, [user(), says("c")], TOOLS, r"tools\[1\]\.function\.name"),
        (NO_RESULTS, [user(), ONE, result("a"), says("c")], None, r"messages\[2\]\.content"),
        (NO_DEVELOPER, [DEVELOPER, user(), says("c")], None, r"messages\[0\]\.content"),
        (BRACKETED, [user(), TALKING], None, r"messages\[1\]\.content"),
    ],
)
def test_what_a_template_does_not_write_is_refused_by_its_field(readers_of, template, messages, tools, field):
    for reader in readers_of(template):
        with pytest.raises(TemplateError, match=f"^{field}: the base model's chat template does not write it"):
            reader.render(messages, tools=tools)


NO_ANSWERS = PLAIN.replace("{{ m.content }}", "{{ m.content if m.role != 'assistant' }}")


@pytest.mark.parametrize(
    ("template", "tools", "asked", "answers", "field"),
    [
        (
            PLAIN,
            None,
            [user(), ONE, result("a")],
            [says("c"), says("d")],
            r"input\.messages\[1\]\.tool_calls\[0\]\.function\.name",
        ),
        (PLAIN, TOOLS, [user()], [says("c"), says("d")], r"input\.tools\[0\]\.function\.name"),
        (PLAIN, None, [user()], [says("c"), ONE], r"non_preferred_output\[0\]\.tool_calls\[0\]\.function\.name"),
        (NO_ANSWERS, None, [user()], [says("c"), says("d")], r"preferred_output\[0\]"),
    ],
)
def test_of_a_preference_the_field_is_named_as_its_row_has_it(readers_of, template, tools, asked, answers, field):
    row = {"input": {"messages": asked, "tools": tools}, "preferred_output": answers[:1], "non_preferred_output": answers[1:]}
    for reader in readers_of(template):
        with pytest.raises(TemplateError, match=f"^{field}: the base model's chat template does not write"):
            reader.read([row], Objective(type="dpo"))


def test_the_way_out_of_a_thought_that_is_left_out_is_one_that_a_preference_has(readers_of):
    template = PLAIN.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] }}")
    row = {
        "input": {"messages": [user()]},
        "preferred_output": [says("c")],
        "non_preferred_output": [says("<think>a</think>d")],
    }
    ways = r"so it cannot be learned; take the part out, or take a base whose template writes it$"
    for reader in readers_of(template):
        with pytest.raises(TemplateError, match=rf"^non_preferred_output\[0\]\.content: .* {ways}"):
            reader.read([row], Objective(type="dpo"))


def test_arguments_in_pythons_notation_are_not_taken(readers_of):
    """A template that writes a mapping as Python does gets the row's text."""
    template = PLAIN.replace(
        "{{ m.content }}", "{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name ~ c.function.arguments }}{% endfor %}"
    )
    for reader in readers_of(template):
        assert 'assistant: weather{"city":"Köln"}' in reader.render([user("{'city': 'Köln'}"), ONE]).text


def test_a_template_that_refuses_says_why(readers_of):
    template = "{% for m in messages %}{% if m.tool_calls %}{{ raise_exception('no calls here') }}{% endif %}{% endfor %}"
    for reader in readers_of(template):
        with pytest.raises(RowError, match="no calls here"):
            reader.render([user(), ONE])
