"""Files of rows in a node's cache, and the check that a stream holds what the reader reads."""

import hashlib
import json
from dataclasses import replace

from transformers import AutoTokenizer

from contract.rows.row_encoding import truncate
from contract.task_spec import Objective
from tests.worker import corpus
from tests.worker.corpus import EXAMPLE_BASE, jsonl
from worker.data.node_cache import NodeCache
from worker.data.row_reader import fingerprint_of, reader_of
from worker.data.token_stream import TokenStream
from worker.data.tokenising.file_tokeniser import Reading

TOKENIZER = AutoTokenizer.from_pretrained(EXAMPLE_BASE)
SFT = Reading(reader_of(TOKENIZER), Objective(), 40, fingerprint_of(TOKENIZER))
APART = replace(SFT, folder=EXAMPLE_BASE)  # in a process of its own, where the file is large
DPO = replace(SFT, objective=Objective(type="dpo"))
MIXED = [
    *corpus.rows(300),
    {"prompt": "a b", "completion": " c"},
    {"prompt": "long " * 60, "completion": " never seen"},
    {"text": "once"},
    {"prompt": "wond", "completion": "erful"},
]


def kept(cache: NodeCache, rows: list[dict[str, object]], tenant: str = "t1") -> tuple:
    """The cache's entry of a file with these rows, and how it is fetched."""
    content = jsonl(rows)
    file = cache.file(tenant, hashlib.sha256(content).hexdigest())
    return file, lambda: file.content.fetch(file.sha256, lambda: [content])


def nothing() -> None:
    return


def same(stream: TokenStream, reading: Reading, rows: list[dict[str, object]]) -> None:
    """Bit for bit what the reader says of each row by itself."""
    expected = []
    for row in rows:
        ((whole),) = reading.reader.read([row], reading.objective)
        left, _ = truncate(whole, reading.max_seq_len)
        if all(any(tokens.learned) for tokens in left):
            expected.append((hashlib.sha256(json.dumps(row).encode()).digest(), left))
    assert stream.rows == len(expected)
    assert stream.skipped == len(rows) - len(expected)
    for at, (digest, left) in enumerate(expected):
        assert stream.hashes[at].tobytes() == digest
        for part, tokens in enumerate(left):
            example = stream.example(at * stream.per_row + part)
            assert (example.tokens.tolist(), example.loss_mask.tolist()) == (tokens.ids, tokens.learned)
