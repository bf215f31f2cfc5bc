"""Text of tokens that come one by one, without decoding all of them each time. Knows no tokenizer but its `decode`.

A token may be part of a character, or decode otherwise at the start of a text (SentencePiece drops a leading space). So the
newest tokens are decoded behind some that are decoded already, and what ends in an unfinished character waits.
"""

from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]
UNFINISHED = "�"  # what bytes decode to that are no character yet


class TextDecoder:
    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._start = 0  # the first token that is decoded again
        self._read = 0  # tokens whose text was returned

    def push(self, token: int) -> str:
        """The text that this token completes; empty where its last character is not whole."""
        self._tokens.append(token)
        return self._new(whole=False)

    def flush(self) -> str:
        """What is left, however it ends."""
        return self._new(whole=True)

    def _new(self, whole: bool) -> str:
        before = self._decode(self._tokens[self._start : self._read])
        text = self._decode(self._tokens[self._start :])
        if len(text) <= len(before) or (text.endswith(UNFINISHED) and not whole):
            return ""
        self._start, self._read = self._read, len(self._tokens)
        return text[len(before) :]
