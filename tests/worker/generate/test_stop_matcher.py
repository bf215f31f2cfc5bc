"""Stop strings and incremental text, cut anywhere: against a search of the whole text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tests.worker.corpus import EXAMPLE_BASE
from worker.generate.stop_matcher import StopMatcher
from worker.generate.text_decoder import TextDecoder

FEW = st.text("abx", max_size=30)


@given(st.lists(FEW, max_size=12), st.lists(st.text("abx", min_size=1, max_size=4), min_size=1, max_size=3))
def test_chunks_are_searched_as_one_text(chunks: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    seen, certain = "", ""
    for chunk in chunks:
        certain += matcher.push(chunk)
        seen += chunk
        found = [at for at in map(seen.find, stops) if at >= 0]
        assert matcher.matched == bool(found)
        assert seen.startswith(certain)
        if found:
            assert matcher.text() == certain == seen[: min(found)]
            return
        assert len(seen) - len(certain) < max(map(len, stops))
    assert matcher.text() == seen


def test_nothing_is_certain_that_may_begin_a_stop_string() -> None:
    matcher = StopMatcher(["\n\nQ:", "END"])
    assert matcher.push("so 4\n") == "so 4"
    assert matcher.push("\n") == ""
    assert matcher.push("A") == "\n\nA"
    assert matcher.push("EN") == ""
    assert matcher.push("D and more") == ""
    assert matcher.text() == "so 4\n\nA"
    assert matcher.push("more") == ""


@pytest.fixture(scope="module")
def tokenizer() -> object:
    return AutoTokenizer.from_pretrained(EXAMPLE_BASE)


@given(text=st.text(max_size=40) | st.sampled_from(["naïve 日本語 🙂🙂 x", " two  spaces\n\ttab", "e\u0301 ﷽"]))
def test_text_of_tokens_one_by_one_is_the_text_of_all(tokenizer: object, text: str) -> None:
    tokens = tokenizer(text, add_special_tokens=False).input_ids  # type: ignore[operator]
    decode = lambda part: tokenizer.decode(part, skip_special_tokens=True)  # type: ignore[attr-defined]  # noqa: E731
    decoder = TextDecoder(decode)
    chunks = [decoder.push(token) for token in tokens]
    assert "".join([*chunks, decoder.flush()]) == decode(tokens)
    assert not any(chunk.endswith("�") for chunk in chunks) or "�" in text
