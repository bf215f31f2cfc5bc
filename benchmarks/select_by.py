"""Is a winner by a metric as good on unseen rows as the winner by loss? Three sets fixed beforehand, three seeds each.

    python -m benchmarks.select_by --data FOLDER [--sets mrpc,p3_classification,gsm8k] [--seeds 3] [--kept FILE] [--small]
        [--commit HASH]

On the example base: two searches of the same 20 configurations with the product's defaults, one by validation loss and one
whose `select_by` is the metric, which also decides its cut after warmup. Adapters that a search by the metric compares, at
its cut and at its end, answer 64 prompts of the validation rows (the product's default). The winner of each, as the service
chooses it, answers all rows of a test part that neither training nor selection reads, and so does every other adapter that was
kept; the two are compared by the metric, prompt by prompt. The metric: exact match, and on GSM8K the number after its marker;
what the base alone reaches is said. The gate: greedy tokens of the winner by the metric are those that transformers and PEFT
find likeliest after the same tokens, in float32.
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from benchmarks.quality.base_set_pairs import LLAMA, SETS, Pair, RowSet
from benchmarks.quality.kept_search import KeptSearch, search, third_of
from benchmarks.result_file import write_result
from contract.evaluation.text_evaluation import ExactMatch, Number, TextMetric
from contract.messages.placement_messages import BaseModelRef
from contract.model_revision import revision_of
from contract.row_scores import RowScores
from service.tasks.selection import Candidate, choose
from worker.adapters.peft_export import export_peft
from worker.data.dataset import TokenRows
from worker.data.evaluation_prompts import Prompt, prompts_of
from worker.generate.batch_scheduler import GenerationLimits
from worker.generate.sequence import Sampling
from worker.generate.sequence import Sequence as Generated
from worker.metrics.text_metrics import scorer
from worker.model.arena import Slot
from worker.policy.generation_memory import PAGE_TOKENS, PREFILL_TOKENS
from worker.replicas.base_loader import DeviceBase, load_base
from worker.replicas.text_generation import MOST_SEQUENCES, generator_of

BASE = Path(__file__).parent.parent / "examples" / "base-model"
_P3 = "sft/p3_tasks"
CLASSIFICATION = RowSet(
    "p3_classification", tuple(f"{_P3}/{name}.jsonl" for name in ("qasc", "quarel", "quartz", "sciq")), True
)
COMPARED: dict[str, tuple[RowSet, TextMetric, int]] = {  # with the metric, and the most new tokens
    "mrpc": (SETS["mrpc"], ExactMatch(type="exact_match"), 8),
    "p3_classification": (CLASSIFICATION, ExactMatch(type="exact_match"), 24),
    "gsm8k": (SETS["gsm8k"], Number(type="number"), 200),
}
VALIDATION_PROMPTS = 64  # contract.evaluation: the default of max_prompts
GATE_PROMPTS, GATE_TOKENS = 8, 16
TIE = {"cpu": 1e-4, "cuda": 0.15}  # of the spread of a token's logits: bf16 errs by 0.02 (benchmarks.generate), of both


def greedy(base: DeviceBase, prompts: Sequence[Prompt], slot: Slot | None, new_tokens: int) -> list[Generated]:
    """Greedy answers, as an evaluation of the product has them."""
    made = [
        Generated(prompt.tokens, Sampling(min(new_tokens, base.max_positions - len(prompt.tokens))), slot) for prompt in prompts
    ]
    pages = sorted((-(-one.most_tokens // PAGE_TOKENS) for one in made), reverse=True)
    limits = GenerationLimits(MOST_SEQUENCES, PREFILL_TOKENS, base.max_positions)
    generator = generator_of(base, 1 + sum(pages[:MOST_SEQUENCES]), limits)
    for one in made:
        generator.add(one)
    while generator.busy:
        generator.step()
    generator.release()
    return made


class Answers:
    """What the base and adapters on it score by the metric, prompt by prompt."""

    def __init__(self, base: DeviceBase, metric: TextMetric, new_tokens: int) -> None:
        self._base, self._new_tokens = base, new_tokens
        self._score = scorer(metric, time.thread_time)

    def of(self, rows: TokenRows, most: int, slot: Slot | None) -> list[float]:
        """On so many of the rows' prompts at most. slot: None for the base alone."""
        prompts = [one for one in prompts_of(rows, most, self._base.decode) if one.text]
        made = greedy(self._base, prompts, slot, self._new_tokens)
        said = [one.completion.text for one in made if one.completion is not None]
        return [self._score(text, prompt.reference) for text, prompt in zip(said, prompts, strict=True)]

    def at_cut(self, rows: TokenRows, slot: Slot | None) -> RowScores:
        """As the service compares jobs where a warmup ends, and at the end."""
        return RowScores.of_results(self.of(rows, VALIDATION_PROMPTS, slot))

    def kept(self, found: KeptSearch, rows: TokenRows, most: int) -> dict[int, list[float]]:
        """Of every adapter that the search kept, by job."""
        scores = {}
        for one in found.driver.candidates():
            slot = found.hold(one.index)
            scores[one.index] = self.of(rows, most, slot)
            self._base.trainer.arena.detach(slot)
        return scores


def compared(name: str, seed: int, device: torch.device, sets: Path, small: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """(row, gate) of one set under one seed."""
    began = time.monotonic()
    rows, metric, new_tokens = COMPARED[name]
    base = load_base(BaseModelRef(name=LLAMA, source=str(BASE), revision=revision_of(BASE)), device)
    pair, most, answers = Pair(LLAMA, rows), 80 if small else None, Answers(base, metric, new_tokens)
    asked = {"metrics": [metric.model_dump()], "max_prompts": VALIDATION_PROMPTS, "max_new_tokens": new_tokens}
    by_metric = third_of(pair, seed, small, evaluation=asked, select_by=metric.type)
    loss_search = search(base, pair, third_of(pair, seed, small), seed, sets, most)
    metric_search = search(base, pair, by_metric, seed, sets, most, answers.at_cut)
    seen = answers.kept(metric_search, metric_search.ground.data.validation, VALIDATION_PROMPTS)
    test = metric_search.ground.test
    base_seen = answers.of(metric_search.ground.data.validation, VALIDATION_PROMPTS, None)
    base_unseen = answers.of(test, len(test), None)
    loss_unseen, metric_unseen = (answers.kept(one, test, len(test)) for one in (loss_search, metric_search))
    loss_winner, _ = loss_search.driver.chosen()
    metric_winner, selection = choose(
        [
            Candidate(one.index, one.rank, one.val_loss, RowScores.of_results(seen[one.index]))
            for one in metric_search.driver.candidates()
        ],
        RowScores.of_results(base_seen),
        metric.type,
        metric_search.driver.ranked_out,
    )
    gate = _gate(metric_search, metric_winner.index, device)
    mine, theirs = metric_unseen[metric_winner.index], loss_unseen[loss_winner.index]
    behind, error = _behind(mine, theirs)
    return {
        "set": name, "seed": seed, "metric": metric.type, "configurations": len(by_metric.jobs()),
        "kept": {"by_metric": sorted(metric_unseen), "by_loss": sorted(loss_unseen)},
        "prompts": [len(base_seen), len(base_unseen)], "by_metric": metric_winner.index, "by_loss": loss_winner.index,
        "unseen": {"base": mean(base_unseen), "by_metric": mean(mine), "by_loss": mean(theirs),
                   "best": max(mean(each) for each in [*loss_unseen.values(), *metric_unseen.values()])},
        "validation": {"base": mean(base_seen), "by_metric": mean(seen[metric_winner.index])},
        "behind": behind, "standard_error": error, "worse": behind > error, "verdict": selection.verdict,
        "seconds": time.monotonic() - began,
    }, gate  # fmt: skip


def _behind(mine: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """By how much `theirs` is better on the same prompts, and the standard error of that difference."""
    each = [their - my for my, their in zip(mine, theirs, strict=True)]
    middle = mean(each)
    return middle, math.sqrt(sum((one - middle) ** 2 for one in each) / (len(each) - 1) / len(each))


@torch.no_grad()
def _gate(found: KeptSearch, job: int, device: torch.device) -> dict[str, Any]:
    """Greedy tokens of a winner's first prompts beside transformers' with PEFT in float32. A first token that differs is none
    where PEFT's own logits of both are nearly equal: the base's precision decides such a pair by its rounding."""
    base = found.ground.base
    prompts = prompts_of(found.ground.test, GATE_PROMPTS, base.decode)
    slot = found.hold(job)
    ours = greedy(base, prompts, slot, GATE_TOKENS)
    with tempfile.TemporaryDirectory() as name:
        weights, config = base.trainer.arena.weights(slot), found.ground.spec.jobs()[job]
        export_peft(Path(name), base.trainer.backbone.targets, weights, config=config, base_model=LLAMA)
        base.trainer.arena.detach(slot)
        plain = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32).to(device)
        model: Any = PeftModel.from_pretrained(plain, name).eval()
    ties = wrong = 0
    for one in ours:
        logits = model(input_ids=torch.tensor([[*one.prompt, *one.generated]], device=device)).logits[0, len(one.prompt) - 1 :]
        own = logits[range(len(one.generated)), one.generated]
        behind = (logits[: len(own)].amax(1) - own) / logits[: len(own)].std(1)
        ties += int(((behind > 0) & (behind <= TIE[device.type])).sum())
        wrong += int((behind > TIE[device.type]).sum())
    return {
        "tokens": sum(len(one.generated) for one in ours),
        "ties": ties,
        "different": wrong,
        "tolerance": TIE[device.type],
        "passed": wrong == 0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the sets")
    parser.add_argument("--sets", default=",".join(COMPARED))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kept", type=Path, help="a file that each search is added to; those in it are not run again")
    parser.add_argument("--small", action="store_true", help="9 configurations, 80 rows: to try it; nothing is written")
    parser.add_argument("--commit", help="the commit measured, where the tree is not a checkout")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = [json.loads(line) for line in given.kept.read_text().splitlines()] if given.kept and given.kept.exists() else []
    known = {(one["row"]["set"], one["row"]["seed"]) for one in found}
    for seed in range(given.seeds):
        for name in (name for name in given.sets.split(",") if (name, seed) not in known):
            row, gate = compared(name, seed, device, given.data, given.small)
            found.append({"row": row | {"commit": given.commit}, "gate": gate})
            print(found[-1], flush=True)
            if given.kept:
                with given.kept.open("a") as kept:
                    print(json.dumps(found[-1]), file=kept)
    rows, gates = [one["row"] for one in found], [one["gate"] for one in found]
    figures = {
        "searches": float(len(rows)),
        "worse_by_a_standard_error": float(sum(row["worse"] for row in rows)),
        "behind_mean": mean(row["behind"] for row in rows),
        "behind_most": max(row["behind"] for row in rows),
    }
    gate = {"searches": gates, "passed": all(one["passed"] for one in gates)}
    print(figures, gate["passed"], flush=True)
    if not given.small:
        write_result("select_by", gate, figures, rows, given.commit)


if __name__ == "__main__":
    main()
