"""How close a text is to its reference, from 0 to 1: ROUGE by words, BLEU and chrF by sacreBLEU, rapidfuzz's ratio.

Each reads the beginnings of text and reference, since their time grows with both.
"""

from collections import Counter
from collections.abc import Sequence

import regex
from rapidfuzz import fuzz
from sacrebleu.metrics import BLEU, CHRF

MOST_WORDS = 4000  # of a text or a reference under ROUGE, whose time grows with their product
MOST_CHARACTERS = 20_000  # under BLEU, chrF and fuzzy_match
# In ASCII [a-z0-9]+, as in Google's rouge_score. Marks belong to words, since Indic scripts write vowels as marks.
_WORDS = regex.compile(r"[\p{L}\p{M}\p{Nd}]+")
_BLEU = BLEU(effective_order=True)  # of single texts: only orders that a text is long enough for
_CHRF = CHRF()


def bleu(text: str, reference: str) -> float:
    """BLEU of one text (Papineni et al. 2002): 13a tokens, up to four of them, exponential smoothing (Chen and Cherry 2014)."""
    return min(1.0, _BLEU.sentence_score(text[:MOST_CHARACTERS], [reference[:MOST_CHARACTERS]]).score / 100)


def chrf(text: str, reference: str) -> float:
    """F score of character n-grams up to 6, recall weighted twice (Popović 2015)."""
    return min(1.0, _CHRF.sentence_score(text[:MOST_CHARACTERS], [reference[:MOST_CHARACTERS]]).score / 100)


def fuzzy_match(text: str, reference: str) -> float:
    """1 - (insertions and deletions that make one of the other) / (characters of both): normalised indel similarity. Of two
    empty texts 1."""
    return fuzz.ratio(text[:MOST_CHARACTERS], reference[:MOST_CHARACTERS]) / 100


def rouge_l(text: str, reference: str) -> float:
    """F1 of the longest common subsequence of words (Lin 2004, section 3.1): runs of Unicode letters and digits, lower case."""
    ours, wanted = (_WORDS.findall(part.lower())[:MOST_WORDS] for part in (text, reference))
    if not ours or not wanted:
        return 0.0
    common = _longest_common(ours, wanted)
    return 2 * common / (len(ours) + len(wanted))


def rouge_n(length: int, text: str, reference: str) -> float:
    """F1 of the runs of `length` words that both have, each as often as it is in both (Lin 2004, section 2), words as above."""
    ours, wanted = (_runs(_WORDS.findall(part.lower())[:MOST_WORDS], length) for part in (text, reference))
    total = ours.total() + wanted.total()
    return 2 * (ours & wanted).total() / total if total else 0.0


def _runs(words: Sequence[str], length: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(length)), strict=False))


def _longest_common(left: Sequence[str], right: Sequence[str]) -> int:
    """Length of the longest common subsequence, in bits of one number a row (Hyyrö 2004)."""
    places: dict[str, int] = {}
    for at, word in enumerate(left):
        places[word] = places.get(word, 0) | 1 << at
    full = (1 << len(left)) - 1
    row = full
    for word in right:
        matches = places.get(word, 0)
        both = row & matches
        row = (row + both | row - both) & full
    return len(left) - row.bit_count()
