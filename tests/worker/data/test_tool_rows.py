"""Rows with tools, calls, weights and developers: what is written and learned under templates of several families, the same
by the service's reader and the worker's. The spans are held against a reference that knows each family's notation alone."""

import json
import shutil
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import pytest
from transformers import AutoTokenizer

from contract.rows.row_encoding import RowReader
from contract.rows.tokenizer import RowError, TemplateError
from contract.task_spec import Objective
from service.files.folder_tokenizer import FolderTokenizer
from tests.worker.corpus import EXAMPLE_BASE
from worker.data.row_reader import reader_of

# Tools in the system turn; calls as JSON in tags behind an optional text; answers grouped in a user's turn; the last turn of a
# conversation alone begins with an (empty) thought, so that no prefix is rendered as it is in the whole.
TAGGED = """{%- if tools %}{{ '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{%- for tool in tools %}{{ '\\n' ~ (tool | tojson) }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}{{ '<|im_start|>assistant\\n' }}
{%- if loop.last THINKS %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- if m.content %}{{ m.content }}{% endif %}
{%- for call in m.tool_calls %}{{ ('\\n' if m.content or not loop.first else '') ~ '<call>\\n{"name": "' ~ call.function.name }}
{{- '", "arguments": ' ~ (call.function.arguments | tojson) ~ '}\\n</call>' }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}{% if messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<answer>' ~ m.content ~ '</answer>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- elif not (m.role == 'system' and loop.first and tools) %}{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}
{%- endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\nOPENING' }}{% endif %}"""
# Tools before the last question, so that an earlier turn stands elsewhere in the whole; a call's content is not written; a call
# without an answer, or an answer without a call, is refused.
BRACKETED = """{%- set asked = messages | selectattr('role', 'equalto', 'user') | list %}
{%- for m in messages %}
{%- if m.role in ('user', 'system') %}
{%- if tools and m == asked[-1] %}{{ '[TOOLS]' ~ (tools | tojson) ~ '[/TOOLS]' }}{% endif %}
{{- '[INST] ' ~ m.content ~ '[/INST]' }}
{%- elif m.role == 'tool' %}{% if messages[loop.index0 - 1].role == 'user' %}{{ raise_exception('answers no call') }}{% endif %}
{%- if not messages[loop.index0 - 1].tool_calls and messages[loop.index0 - 1].role == 'assistant' %}
{{- raise_exception('answers no call') }}{% endif %}{{ '[RESULT]' ~ m.content ~ '[/RESULT]' }}
{%- elif m.tool_calls %}{{ '[CALLS] [' }}{% for call in m.tool_calls %}{{ call.function | tojson }}{{ ', ' if not loop.last }}
{%- endfor %}{{ ']</s>' }}
{%- else %}{{ ' ' ~ m.content ~ '</s>' }}{% endif %}{% endfor %}"""
# Arguments are joined to a text, so that they must be one; the header of a call differs from that of a text; its end too.
HARMONIC = """{%- for m in messages %}{% if m.role == 'developer' %}{{ '<|start|>developer<|message|>' ~ m.content }}
{%- if tools %}{% for tool in tools %}{{ '\\n' + tool.function.name + ' // ' + (tool.function.description or '') }}
{{- tool.function.parameters.properties.keys() | join(',') }}{% endfor %}{% endif %}{{ '<|end|>' }}
{%- elif m.tool_calls %}
{%- if m.content %}{{ '<|start|>assistant<|channel|>notes<|message|>' + m.content + '<|end|>' }}{% endif %}
{%- for call in m.tool_calls %}
{{- '<|start|>assistant to=' + call.function.name + '<|message|>' + call.function.arguments + '<|call|>' }}
{%- endfor %}{% set ns = namespace(name=m.tool_calls[0].function.name) %}
{%- elif m.role == 'tool' %}{{ '<|start|>tool<|message|>' + m.content + '<|end|>' }}
{%- elif m.role == 'assistant' %}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}
{%- else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""


def as_json(call: dict[str, Any]) -> str:
    return json.dumps(json.loads(call["arguments"]), ensure_ascii=False)


def tagged(thought: str) -> Callable[[dict[str, Any], bool], str]:
    def written(turn: dict[str, Any], last: bool) -> str:
        made = [f'<call>\n{{"name": "{c["name"]}", "arguments": {as_json(c)}}}\n</call>' for c in calls(turn)]
        return (
            (thought if last else "") + "\n".join([*([turn["content"]] if turn.get("content") else []), *made]) + "<|im_end|>\n"
        )

    return written


def bracketed(turn: dict[str, Any], last: bool) -> str:
    made = [json.dumps({"name": c["name"], "arguments": json.loads(c["arguments"])}, ensure_ascii=False) for c in calls(turn)]
    return f"[CALLS] [{', '.join(made)}]</s>" if made else f"{turn['content']}</s>"


def harmonic(turn: dict[str, Any], last: bool) -> str:
    if not calls(turn):
        return f"<|channel|>final<|message|>{turn['content']}<|end|>"
    notes = [f"<|channel|>notes<|message|>{turn['content']}<|end|>"] if turn.get("content") else []
    return "<|start|>assistant".join([*notes, *(f" to={c['name']}<|message|>{c['arguments']}<|call|>" for c in calls(turn))])


def calls(turn: dict[str, Any]) -> list[dict[str, Any]]:
    return [call["function"] for call in turn.get("tool_calls") or ()]


class Family(NamedTuple):
    """written: what the family's models are to write for a turn, which may be the conversation's last."""

    template: str
    written: Callable[[dict[str, Any], bool], str]
    begins: str = "<|im_start|>assistant\n"  # before a learned turn


def tagged_family(thinks: str, opening: str, thought: str) -> Family:
    return Family(TAGGED.replace("THINKS", thinks).replace("OPENING", opening), tagged(thought))


THOUGHT = "<think>\n\n</think>\n\n"
FAMILIES = {
    "tagged": tagged_family("and false", "", ""),
    "tagged, thinks last": tagged_family("", "", THOUGHT),
    "tagged, is asked to think": tagged_family("", "<think>\\n", THOUGHT.removeprefix("<think>\n")),
    "bracketed": Family(BRACKETED, bracketed, ""),
    "harmonic": Family(HARMONIC, harmonic, "<|start|>assistant"),
}
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
