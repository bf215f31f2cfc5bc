"""What a preview shows is what a worker trains on: the service's tokenizer and the one that transformers loads make the same
tokens and the same mask of the same rows, under tokenizers and templates of several families."""

import json
import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from contract.rows.row_encoding import RowReader
from contract.rows.tokenizer import RowError
from contract.task_spec import Objective
from service.files.folder_tokenizer import FolderTokenizer
from tests.worker.corpus import EXAMPLE_BASE
from worker.data.row_reader import reader_of

CORPUS = ["the quick brown fox jumps over the lazy dog", "question answer hello world 0 1 2 3", "Größe 北京 🙂 naïve"] * 20
CHATML = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INST = (
    "{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% elif m['role'] == 'assistant' %} {{ m['content'] | trim }}</s>{% endif %}{% endfor %}"
)
# whatever templates on the Hub lean on: namespaces, loop controls, generation blocks, tojson, block trimming
MIXED = """{%- set ns = namespace(seen=0, system='') %}
{%- for m in messages %}
    {%- if m.role == 'system' %}{% set ns.system = m.content %}{% continue %}{% endif %}
    {%- if m.role not in ['user', 'assistant'] %}{{ raise_exception('no such role') }}{% endif %}
    {%- set ns.seen = ns.seen + 1 %}
    {%- if m.role == 'user' %}
<|im_start|>{{ dict(role=m.role) | tojson }}{{ ns.system }}:{{ m['content'] }}<|im_end|>
    {%- else %}
<|im_start|>assistant
{% generation %}{{ m['content'] }}<|im_end|>{% endgeneration %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}

<|im_start|>assistant
{% endif %}"""
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]"]


def byte_level() -> Tokenizer:
    """As Qwen's and Llama 3's."""
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet))
    return made


def spaced() -> Tokenizer:
    """As Llama 2's and Gemma's: a word's space is its first token's, what is not known falls back to bytes."""
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = (decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0))
    made.decoder = decoders.Sequence(list(steps))
    trained = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    made.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=600, special_tokens=trained))
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))])
    return made


def save(folder: Path, made: Tokenizer, template: str, **config: object) -> Path:
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, chat_template=template, **(named | config))
    tokenizer.save_pretrained(folder)
    return folder


def named_class(folder: Path, made: Tokenizer, template: str, name: str) -> Path:
    """Saved by the class that transformers has for the family, which puts the tokenizer together its own way."""
    first = save(folder / "first", made, template)
    config = json.loads((first / "tokenizer_config.json").read_text()) | {"tokenizer_class": name}
    (first / "tokenizer_config.json").write_text(json.dumps(config))
    AutoTokenizer.from_pretrained(first).save_pretrained(folder / "saved")
    return folder / "saved"


def in_configuration(folder: Path) -> Path:
    """The template among others in tokenizer_config.json, the special tokens as objects, as older folders have them."""
    save(folder, byte_level(), CHATML)
    (folder / "chat_template.jinja").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": CHATML}]
    config["eos_token"] = {"__type": "AddedToken", "content": "</s>", "lstrip": False, "rstrip": True, "normalized": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


FAMILIES = {
    "example": lambda folder: EXAMPLE_BASE,
    "byte level": lambda folder: save(folder, byte_level(), CHATML),
    "byte level, mixed template": lambda folder: save(folder, byte_level(), MIXED),
    "byte level, begins with <s>": lambda folder: save(folder, byte_level(), CHATML, add_bos_token=True),
    "end is a new token": lambda folder: save(folder, byte_level(), CHATML, eos_token="<|never seen|>"),
    "spaced": lambda folder: save(folder, spaced(), INST),
    "spaced, never begins": lambda folder: save(folder, spaced(), INST, add_bos_token=False),
    "special tokens may be split": lambda folder: save(folder, byte_level(), CHATML, split_special_tokens=True),
    "older folder": in_configuration,
    "Llama": lambda folder: named_class(folder, spaced(), INST, "LlamaTokenizer"),
    "Gemma": lambda folder: named_class(folder, spaced(), MIXED, "GemmaTokenizer"),
    "Qwen2": lambda folder: named_class(folder, byte_level(), CHATML, "Qwen2Tokenizer"),
}
PIECES = [
    "the quick",
    " brown fox",
    "\n",
    " ",
    "  ",
    "Größe",
    "北京",
    "🙂",
    "<|im_end|>",
    "</s>",
    "[INST]",
    "0 1",
    "{{ x }}",
    "e\u0301",
]
TEXT = st.lists(
    st.sampled_from(PIECES) | st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=6), max_size=5
).map("".join)
SAID = TEXT.filter(str.strip)


@pytest.fixture(scope="module", params=FAMILIES)
def readers(request, tmp_path_factory) -> tuple[RowReader, RowReader]:
    """The service's and the worker's of one folder."""
    folder = FAMILIES[request.param](tmp_path_factory.mktemp("family"))
    return RowReader(FolderTokenizer(folder)), reader_of(AutoTokenizer.from_pretrained(folder, local_files_only=True))


def told(reader: RowReader, row: dict[str, object], objective: Objective) -> object:
    """The row's tokens and masks; of a row that cannot be read, what is said of it."""
    try:
        ((row_read),) = reader.read([row], objective)
    except RowError as error:
        return str(error)
    return [(tokens.ids, tokens.learned) for tokens in row_read]


def conversation(system: str | None, turns: list[tuple[str, str]]) -> list[dict[str, str]]:
    said = [{"role": "system", "content": system}] if system is not None else []
    for asked, answered in turns:
        said += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    return said


DRAWN = {
    "system": st.none() | SAID,
    "turns": st.lists(st.tuples(SAID, SAID), min_size=1, max_size=3),
    "other": SAID,
    "text": SAID,
    "prompt": TEXT,
    "last": st.booleans(),
}


def compare(readers, system, turns, other, text, prompt, last) -> None:
    messages = conversation(system, turns)
    sft, dpo = Objective(turns="last" if last else "all"), Objective(type="dpo")
    answers = {"preferred_output": messages[-1:], "non_preferred_output": [{"role": "assistant", "content": other}]}
    rows = [
        (sft, {"messages": messages}),
        (sft, {"prompt": prompt, "completion": text}),
        (sft, {"text": text}),
        (dpo, {"input": {"messages": messages[:-1]}, **answers}),
        (dpo, {"prompt": prompt, "chosen": text, "rejected": other}),
    ]
    ours, theirs = readers
    for objective, row in rows:
        assert told(ours, row, objective) == told(theirs, row, objective), row


@settings(max_examples=3)
@given(**DRAWN)
def test_the_preview_and_the_worker_read_the_same(readers, **drawn):
    compare(readers, **drawn)


@pytest.mark.slow
@settings(max_examples=100)
@given(**DRAWN)
def test_the_preview_and_the_worker_read_the_same_at_length(readers, **drawn):
    compare(readers, **drawn)


def test_no_family_fails_on_plain_rows(readers):
    """So that the test above does not compare errors alone."""
    for reader in readers:
        row = told(reader, {"messages": conversation(None, [("the question", "answer"), ("hello", "world")])}, Objective())
        assert isinstance(row, list), row
        assert any(row[0][1])


@pytest.mark.parametrize(
    "hostile",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{% set n = namespace(__class__=1) %}",
        "{% set n = namespace() %}{% set n._x = 1 %}",
        "{{ dict.__class__ }}{{ dict.fromkeys.__globals__ }}",
        "{{ self._TemplateReference__context.parent }}",
        "{% set x = messages.clear() %}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ nothing.at.all }}",
        "{{ 1 / 0 }}",
        "{% for m in messages %}",
        "{{ raise_exception('never') }}",
    ],
)
def test_a_hostile_template_is_the_same_error_on_both_sides(tmp_path, hostile):
    shutil.copytree(EXAMPLE_BASE, tmp_path / "base", ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "base" / "chat_template.jinja").write_text(hostile)
    messages = conversation(None, [("q", "a")])
    ours = RowReader(FolderTokenizer(tmp_path / "base"))
    theirs = reader_of(AutoTokenizer.from_pretrained(tmp_path / "base", local_files_only=True))
    said = told(ours, {"messages": messages}, Objective())
    assert isinstance(said, str)
    assert "chat template" in said
    assert isinstance(told(theirs, {"messages": messages}, Objective()), str)
    assert messages == conversation(None, [("q", "a")])


DATED = (
    "   {%- macro day() %}{{ strftime_now('%d') }}{% endmacro %}\n"
    "{%- if strftime_now is defined %}{% set today = strftime_now(format='%-d %B %Y, %H:%M 100%% %q %') %}{% endif %}"
    "{{ today }} {{ day() }}|{{ strftime_now('%j %c %^a %:z %') }}"
    "{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}"
)
CREATED = datetime(2031, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=-23)))


@pytest.mark.parametrize("template", [DATED, "\n  {% if true %}\n" + DATED.strip() + "{% endif %}"])
def test_the_date_in_a_template_is_the_task_s_creation_in_utc_on_both_sides(tmp_path, template):
    shutil.copytree(EXAMPLE_BASE, tmp_path / "base", ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "base" / "chat_template.jinja").write_text(template)
    readers = RowReader(FolderTokenizer(tmp_path / "base")), reader_of(AutoTokenizer.from_pretrained(tmp_path / "base"))
    messages = conversation(None, [("q", "a")])
    texts = {reader.at(CREATED).render(messages).text for reader in readers}
    assert len(texts) == 1, texts
    (text,) = texts
    assert "4 February 2031, 03:05 100% %q % 04|035 " in text
    for reader in readers:
        assert told(reader.at(CREATED), {"messages": messages}, Objective()) != told(
            reader.at(CREATED + timedelta(days=1)), {"messages": messages}, Objective()
        )
        assert "nobody said when the task was created" in str(told(reader, {"messages": messages}, Objective()))
