"""Chat templates of several families that write tools and calls, and what each family's models are to write for a turn: a
reference that knows each notation alone."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

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
