"""Rows as tokens: what is learned, token by token, under templates of several families."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from contract.rows.row_encoding import RowReader, Tokens
from contract.rows.tokenizer import RowError
from contract.task_spec import Objective
from tests.worker.corpus import EXAMPLE_BASE
from tests.worker.data.chat_templates import CHATML, FORGETFUL, INST, OPENING, THINKING, THOUGHTLESS
from worker.data.row_reader import reader_of

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=24).filter(str.strip)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(EXAMPLE_BASE)


@pytest.fixture(scope="module")
def spaced() -> PreTrainedTokenizerFast:
    """A tokenizer that writes a word's leading space into its first token, and begins every text with <s>."""
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=False))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    made.decoder = decoders.Metaspace()
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    corpus = ["the quick brown fox jumps over the lazy dog", "one two three four", "question answer hello world"] * 20
    made.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=200, special_tokens=special))
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=["[INST]", "[/INST]"],
        chat_template=INST,
    )


def with_template(tokenizer, template: str) -> RowReader:
    copy = AutoTokenizer.from_pretrained(EXAMPLE_BASE)
    copy.chat_template = template
    return reader_of(copy)


def labels(tokens: Tokens) -> list[int]:
    return [id for id, learned in zip(tokens.ids, tokens.learned, strict=True) if learned]


def learned(reader: RowReader, tokenizer, tokens: Tokens) -> str:
    return tokenizer.decode(labels(tokens))


def test_what_follows_the_generation_prompt_is_learned(tokenizer):
    messages = [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "It is 5."}]
    ((example,),) = reader_of(tokenizer).read([{"messages": messages}])
    prompt = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, return_dict=False)
    whole = tokenizer.apply_chat_template(messages, return_dict=False)
    assert example.ids == whole
    assert example.learned == [False] * len(prompt) + [True] * (len(whole) - len(prompt))
    assert tokenizer.eos_token_id in labels(example)


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3))
def test_every_turn_of_the_assistant_is_learned_and_nothing_else(turns):
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLE_BASE)
    messages = [m for q, a in turns for m in ({"role": "user", "content": q}, {"role": "assistant", "content": a})]
    reader = reader_of(tokenizer)
    rendered = reader.render(messages)
    assert [rendered.text[a:b] for a, b in rendered.learned] == [f"{answer}<|end|>\n" for _, answer in turns]
    ((example,),) = reader.read([{"messages": messages}])
    assert len(example.ids) == len(example.learned)
    assert tokenizer.decode(example.ids) == tokenizer.decode(tokenizer(rendered.text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("template", [CHATML, INST])
def test_a_row_of_many_turns_has_the_same_labels_up_to_where_it_is_cut(tokenizer, spaced, template):
    turns = [("user", "e\u0301t\u00e9?"), ("assistant", " so it is")] * 100
    row = {"messages": [{"role": role, "content": content} for role, content in turns]}
    for reader in (with_template(tokenizer, template), with_template(spaced, template)):
        ((whole,),) = reader.read([row])
        for most in (1, 8, 1000, 1001, len(whole.ids) - 1, len(whole.ids), len(whole.ids) + 1):
            ((cut,),) = reader.read([row], max_seq_len=most)
            assert (cut.ids, cut.learned[:most]) == (whole.ids, whole.learned[:most])
        ((cut,),) = reader.read([row], max_seq_len=100)
        assert not any(cut.learned[1000:]), "turns behind it are not looked for"


@pytest.mark.parametrize("template", [CHATML, FORGETFUL])
def test_other_templates_have_the_same_labels(tokenizer, template):
    reader = with_template(tokenizer, template)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "and?"},
        {"role": "assistant", "content": "bye"},
    ]
    rendered = reader.render(messages)
    first, last = (rendered.text[a:b] for a, b in rendered.learned)
    assert first == "hello<|im_end|>\n"
    assert last in ("bye<|im_end|>\n", "<think>\n\n</think>\n\nbye<|im_end|>\n")


def thinks(thought: str, answer: str, **more: int) -> dict[str, object]:
    return {"role": "assistant", "content": f"<think>{thought}</think>{answer}", **more}


@pytest.mark.parametrize(("template", "prompted"), [(THINKING, "<think>\n"), (OPENING, "")])
@pytest.mark.parametrize(("before", "between"), [("\n", "\n\n"), ("", "")])
def test_thoughts_are_learned_where_the_template_writes_them(tokenizer, template, prompted, before, between):
    reader = with_template(tokenizer, template)
    messages = [{"role": "user", "content": "2+3?"}, thinks(f"{before}Let me see.{before}", f"{between}It is 5.")]
    rendered = reader.render(messages)
    said = f"{prompted}Let me see.\n</think>\n\nIt is 5.<|im_end|>\n"
    assert [rendered.text[a:b] for a, b in rendered.learned] == [said]


def test_thoughts_that_the_template_leaves_out_are_learned_by_nobody(tokenizer):
    first, last = thinks("one", "\n\na"), thinks("two", "\n\nb")
    asked = {"role": "user", "content": "q"}
    reader = with_template(tokenizer, THINKING)
    with pytest.raises(RowError, match=r"^messages\[1\]\.content: .*leaves out a part of it.*objective\.turns: last"):
        reader.render([asked, first, asked, last])
    for rendered in (
        reader.render([asked, first, asked, last], last=True),
        reader.render([asked, first | {"weight": 0}, asked, last]),
    ):
        learned = [rendered.text[a:b] for a, b in rendered.learned]
        assert learned == ["<think>\ntwo\n</think>\n\nb<|im_end|>\n"]
    with pytest.raises(RowError, match=r"^messages\[1\]\.content: .*leaves out a part of it"):
        with_template(tokenizer, THOUGHTLESS).render([asked, first])


def test_a_conversation_that_ends_with_a_question_learns_what_came_before(tokenizer):
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    rendered = reader_of(tokenizer).render(messages)
    assert [rendered.text[a:b] for a, b in rendered.learned] == ["b<|end|>\n"]


def test_a_word_whose_space_lies_before_the_turn_is_learned_with_it(spaced):
    reader = reader_of(spaced)
    messages = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "the lazy dog"}]
    ((example,),) = reader.read([{"messages": messages}])
    assert spaced.decode(labels(example)).strip() == "the lazy dog</s>"
    first = spaced.convert_ids_to_tokens(labels(example)[0])
    assert first.startswith("▁"), "the token that begins before the turn, in white space, is its first"


def test_a_completion_is_learned_with_its_end(tokenizer):
    ((example,),) = reader_of(tokenizer).read([{"prompt": "The sum of 2 and 3 is", "completion": " 5."}])
    prompt = tokenizer("The sum of 2 and 3 is")["input_ids"]
    assert example.ids[: len(prompt)] == prompt
    assert example.learned == [False] * len(prompt) + [True] * (len(example.ids) - len(prompt))
    assert learned(reader_of(tokenizer), tokenizer, example) == " 5." + tokenizer.eos_token
    assert example.ids[-1] == tokenizer.eos_token_id


def test_a_completion_that_would_merge_with_its_prompt_is_encoded_by_itself(tokenizer):
    whole = tokenizer("wonderful")["input_ids"]
    ((example,),) = reader_of(tokenizer).read([{"prompt": "wond", "completion": "erful"}])
    assert labels(example) == [*tokenizer("erful")["input_ids"], tokenizer.eos_token_id]
    assert len(whole) <= len(example.ids)


def test_a_beginning_of_text_is_put_where_the_tokenizer_puts_it(spaced):
    spaced_with_bos = PreTrainedTokenizerFast(
        tokenizer_object=spaced.backend_tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", add_bos_token=True
    )
    leads = spaced_with_bos("")["input_ids"][:1]
    ((example,),) = reader_of(spaced_with_bos).read([{"prompt": "one two", "completion": " three"}])
    assert example.ids[:1] == (leads or spaced_with_bos("one two", add_special_tokens=False)["input_ids"][:1])
    assert not example.learned[0]


def test_an_empty_prompt_leaves_its_first_token_unlearned(tokenizer):
    ((example,),) = reader_of(tokenizer).read([{"prompt": "", "completion": "hello world"}])
    assert not example.learned[0]
    assert all(example.learned[1:])


def test_rows_of_both_kinds_keep_their_order(tokenizer):
    chat = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "chat"}]}
    plain = {"prompt": "p", "completion": " plain"}
    examples = reader_of(tokenizer).read([plain, chat, plain])
    texts = [learned(reader_of(tokenizer), tokenizer, example) for (example,) in examples]
    assert [text.split("<|end|>")[0].strip() for text in texts] == ["plain", "chat", "plain"]


TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hello"},
    {"role": "user", "content": "and?"},
    {"role": "assistant", "content": "bye"},
]


def test_the_last_turn_alone_is_learned_where_that_is_asked_for(tokenizer):
    reader = reader_of(tokenizer)
    ((every,),) = reader.read([{"messages": TURNS}], Objective())
    ((last,),) = reader.read([{"messages": TURNS}], Objective(turns="last"))
    assert every.ids == last.ids
    assert learned(reader, tokenizer, every) == "hello<|end|>\nbye<|end|>\n"
    assert learned(reader, tokenizer, last) == "bye<|end|>\n"


def test_a_text_is_learned_whole_with_its_end(tokenizer):
    ((example,),) = reader_of(tokenizer).read([{"text": "once upon a time"}])
    assert example.learned == [False] + [True] * (len(example.ids) - 1)
    assert tokenizer.decode(example.ids) == "once upon a time" + tokenizer.eos_token


def test_a_preference_is_the_conversation_with_either_answer(tokenizer):
    reader, dpo = reader_of(tokenizer), Objective(type="dpo")
    asked, good, bad = TURNS[:4], {"role": "assistant", "content": "bye"}, {"role": "assistant", "content": "go away"}
    openai = {"input": {"messages": asked}, "preferred_output": [good], "non_preferred_output": [bad]}
    plain = {"prompt": "2 and 3 are", "chosen": " 5.", "rejected": " 6."}
    (chosen, rejected), (right, wrong) = reader.read([openai, plain], dpo)
    assert learned(reader, tokenizer, chosen) == "bye<|end|>\n"
    assert learned(reader, tokenizer, rejected) == "go away<|end|>\n"
    ((whole,),) = reader.read([{"messages": [*asked, good]}], Objective(turns="last"))
    assert (whole.ids, whole.learned) == (chosen.ids, chosen.learned)
    assert [learned(reader, tokenizer, e) for e in (right, wrong)] == [" 5." + tokenizer.eos_token, " 6." + tokenizer.eos_token]


@pytest.mark.parametrize(
    "hostile",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__['os'].system('touch /tmp/motet-was-here') }}",
        "{{ raise_exception.__globals__ }}",
        "{{ self._TemplateReference__context.parent }}",
        "{% set x = messages.clear() %}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{{ messages[0].content.format_map(messages[0].__class__) }}",
        "{% include '/etc/passwd' %}",
        "{{ nothing.at.all }}",
        "{{ 1 / 0 }}",
        "{{ messages + 1 }}",
        "{% for m in messages %}",
    ],
)
def test_a_hostile_template_reaches_nothing_and_is_an_error_of_its_row(tokenizer, hostile):
    chat = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    with pytest.raises(RowError, match="chat template"):
        with_template(tokenizer, hostile).read([chat])
    assert len(chat["messages"]) == 2


def test_what_people_write_is_never_a_template(tokenizer):
    said = "{{ 7 * 7 }}{% for %}{{ ''.__class__ }}"
    rendered = reader_of(tokenizer).render([{"role": "user", "content": said}, {"role": "assistant", "content": said}])
    assert rendered.text.count(said) == 2


def test_templates_and_tokenizers_that_cannot_work_say_so(tokenizer):
    chat = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    with pytest.raises(RowError, match="has no chat template"):
        with_template(tokenizer, None).read([chat])
    with pytest.raises(RowError, match=r"messages\[1\]: the base model's chat template"):
        with_template(tokenizer, "{% for m in messages %}{{ m['role'] }}{% endfor %}").read([chat])
    slow = type("Slow", (), {"is_fast": False})()
    with pytest.raises(RowError, match="no fast tokenizer"):
        reader_of(slow)
