"""TaskSpec: what it refuses, in words that name the field."""

import pytest
from pydantic import ValidationError

from contract.task_spec import TaskSpec


def spec(**changes: object) -> dict[str, object]:
    good = {"base_model": "m", "dataset": {"file_id": "f"}, "search_space": {"learning_rate": [1e-4]}}
    return good | changes


def space(**changes: object) -> dict[str, object]:
    return spec(search_space={"learning_rate": [1e-4]} | changes)


BAD = [
    (space(rank=[0]), "search_space.rank.0", "greater than or equal to 1"),
    (space(rank=[8, 257]), "search_space.rank.1", "less than or equal to 256"),
    (space(rank=[8.0]), "search_space.rank.0", "integer"),
    (space(rank=["8"]), "search_space.rank.0", "integer"),
    (space(rank=[True]), "search_space.rank.0", "integer"),
    (space(rank={"a": 8}), "search_space.rank", "list"),
    (space(rank=[]), "search_space.rank", "at least 1 item"),
    (space(rank=[8, 4, 8]), "search_space.rank", "holds 8 more than once"),
    (space(learning_rate=[-1]), "search_space.learning_rate.0", "greater than 0"),
    (space(learning_rate=[0]), "search_space.learning_rate.0", "greater than 0"),
    (space(learning_rate=[float("nan")]), "search_space.learning_rate.0", "finite"),
    (space(learning_rate=[float("inf")]), "search_space.learning_rate.0", "finite"),
    (space(learning_rate=[True]), "search_space.learning_rate.0", "must be a number, not true"),
    (space(learning_rate=[1e-4, 0.0001]), "search_space.learning_rate", "more than once"),
    (space(learning_rate=[]), "search_space.learning_rate", "at least 1 item"),
    (space(alpha=[0]), "search_space.alpha.0", "greater than 0"),
    (space(batch_size=[0]), "search_space.batch_size.0", "greater than or equal to 1"),
    (space(seed=[-1]), "search_space.seed.0", "greater than or equal to 0"),
    (space(dropout=[1]), "search_space.dropout.0", "less than 1"),
    (space(weight_decay=[-0.1]), "search_space.weight_decay.0", "greater than or equal to 0"),
    (space(schedule=["step"]), "search_space.schedule.0", "'constant', 'linear' or 'cosine'"),
    (space(lr_warmup_ratio=[1.0]), "search_space.lr_warmup_ratio.0", "less than 1"),
    (space(target_modules=[["q_proj", "lm_head"]]), "search_space.target_modules.0.1", "'q_proj'"),
    (space(target_modules=[[]]), "search_space.target_modules.0", "at least 1 item"),
    (space(target_modules=[["q_proj", "q_proj"]]), "search_space.target_modules", "more than once"),
    (space(target_modules=[["q_proj", "o_proj"], ["o_proj", "q_proj"]]), "search_space.target_modules", "more than once"),
    (space(rslora=[1]), "search_space.rslora.0", "boolean"),
    (space(alpha=[8], alpha_ratio=[2]), "search_space", "both 'alpha' and 'alpha_ratio'"),
    (space(beta=[0.1]), "search_space", "only objective dpo has"),
    (space(method="bayes"), "search_space.method", "'grid', 'random', 'list' or 'tpe'"),
    (space(jobs=[{"learning_rate": 1e-4}]), "search_space", "belongs to method 'list'"),
    (space(method="list", jobs=[{"learning_rate": 1e-4}]), "search_space", "'learning_rate' belongs to the other methods"),
    (spec(search_space={"method": "list"}), "search_space", "needs 'jobs'"),
    (spec(search_space={"method": "list", "jobs": []}), "search_space.jobs", "at least 1 item"),
    (spec(search_space={"method": "list", "jobs": [{"rank": 8}]}), "search_space.jobs.0.learning_rate", "required"),
    (spec(search_space={"method": "list", "jobs": [{"learning_rate": 1e-4}] * 2}), "search_space", "jobs[1] is listed before"),
    (spec(search_space={"method": "list", "jobs": [{"learning_rate": 1e-4, "beta": 1}]}), "search_space", "only objective dpo"),
    (
        spec(search_space={"method": "list", "jobs": [{"learning_rate": 1e-4, "target_modules": ["q_proj"] * 2}]}),
        "search_space.jobs.0.target_modules",
        "names a module more than once",
    ),
    (space(method="random"), "search_space", "needs 'n'"),
    (space(method="random", n=2), "search_space", "only 1 combinations"),
    (space(method="random", n=0), "search_space.n", "greater than or equal to 1"),
    (space(n=1), "search_space", "belongs to methods 'random' and 'tpe'"),
    (space(method="tpe"), "search_space", "method 'tpe' needs 'n', the number of combinations to try"),
    (space(method="tpe", rank=[1, 2, 3, 4], learning_rate=[1e-4, 1e-3], n=8), "search_space", "take 9 or more"),
    (
        space(learning_rate=[n / 1e6 for n in range(1, 101)], rank=list(range(1, 101)), seed=list(range(100))),
        "search_space",
        "the grid has 1000000 combinations, the limit is 1024",
    ),
    (
        space(
            method="random",
            n=8,
            **{name: list(range(1, 257)) for name in ("learning_rate", "rank", "batch_size", "seed", "alpha")},
            weight_decay=[n / 256 for n in range(256)],
            dropout=[n / 512 for n in range(256)],
            lr_warmup_ratio=[n / 512 for n in range(256)],
        ),
        "search_space",
        f"the space has {2**64} combinations, the limit is {2**63 - 1}",
    ),
    (spec(search_space={}), "search_space.learning_rate", "required"),
    (spec(serach_space={}), "serach_space", "not permitted"),
    (spec(base_model=""), "base_model", "at least 1 character"),
    (spec(base_model="a\0b"), "base_model", "NUL"),
    (spec(name="\0"), "name", "NUL"),
    (spec(labels={"a": "\0"}), "labels.a", "NUL"),
    (spec(labels={str(n): "" for n in range(17)}), "labels", "at most 16"),
    (spec(dataset={}), "dataset.file_id", "required"),
    (spec(dataset={"file_id": "f", "validation_fraction": 0}), "dataset.validation_fraction", "greater than 0"),
    (spec(dataset={"file_id": "f", "validation_fraction": 0.9}), "dataset.validation_fraction", "less than or equal to 0.5"),
    (spec(training={"epochs": 0}), "training.epochs", "greater than or equal to 1"),
    (spec(training={"max_seq_len": 4}), "training.max_seq_len", "greater than or equal to 8"),
    (spec(training={"weight_decay": float("nan")}), "training.weight_decay", "finite"),
    (spec(early_exit={"policy": "hyperband"}), "early_exit.policy", "'alto_guarded', 'asha' or 'none'"),
    (spec(early_exit={"reduction_factor": 1}), "early_exit.reduction_factor", "greater than or equal to 2"),
    (spec(early_exit={"max_evaluation_share": 0}), "early_exit.max_evaluation_share", "greater than 0"),
    (spec(early_exit={"keep_fraction": 0}), "early_exit.keep_fraction", "greater than 0"),
    (spec(early_exit={"warmup_fraction": 1.5}), "early_exit.warmup_fraction", "less than or equal to 1"),
    (spec(objective={"type": "ppo"}), "objective.type", "'sft' or 'dpo'"),
    (spec(objective={"turns": "first"}), "objective.turns", "'all' or 'last'"),
    (spec(precision="int4"), "precision", "'bf16', 'nf4', 'nf4_double' or 'fp8'"),
    (spec(warm_start={}), "warm_start.adapter_id", "required"),
    (spec(gpus=0), "gpus", "greater than or equal to 1"),
    (spec(gpus=True), "gpus", "integer"),
    (spec(max_gpus=0), "max_gpus", "greater than or equal to 1"),
    (spec(max_gpus=128), "max_gpus", "less than or equal to 64"),
    (spec(max_gpus=2.0), "max_gpus", "integer"),
    (spec(gpus=2, max_gpus=1), "max_gpus", "is 1, must be 'gpus' doubled any number of times: 2, 4, 8, 16, 32, 64"),
    (spec(gpus=3, max_gpus=9), "max_gpus", "is 9, must be 'gpus' doubled any number of times: 3, 6, 12, 24, 48"),
    (spec(gpus=0, max_gpus=3), "gpus", "greater than or equal to 1"),
    (spec(priority=101), "priority", "less than or equal to 100"),
    (space(learning_rate=[1e39]), "search_space.learning_rate.0", "less than or equal to 1000000000000000000000000000000"),
    (space(alpha=[1e39]), "search_space.alpha.0", "less than or equal to 65536"),
    (space(alpha_ratio=[1e39]), "search_space.alpha_ratio.0", "less than or equal to 256"),
    (spec(training={"max_steps": 10**12}), "training.max_steps", "less than or equal to 10000000"),
    (spec(training={"max_grad_norm": 1e39}), "training.max_grad_norm", "less than or equal to 1000000"),
    (spec(early_exit={"eval_every": 10**12}), "early_exit.eval_every", "less than or equal to 10000000"),
    (spec(not_before="9999-12-31T00:00:00Z"), "not_before", "lies after the year 2199"),
    (spec(deadline="9999-12-31T00:00:00Z"), "deadline", "lies after the year 2199"),
    (spec(not_before="0001-01-01T00:00:00+14:00"), "not_before", "lies before the year 1970"),
    (spec(deadline="1969-12-31T00:00:00Z"), "deadline", "lies before the year 1970"),
]


@pytest.mark.parametrize(("given", "field", "words"), BAD, ids=[f"{field}: {words}" for _, field, words in BAD])
def test_a_mistake_names_its_field_and_the_limit(given, field, words):
    with pytest.raises(ValidationError) as refusal:
        TaskSpec.model_validate(given)
    errors = refusal.value.errors()
    assert [".".join(map(str, error["loc"])) for error in errors] == [field]
    assert words.lower() in errors[0]["msg"].lower()


@pytest.mark.parametrize(("asked", "widths"), [({}, (1,)), ({"gpus": 3}, (3,)), ({"gpus": 3, "max_gpus": 12}, (3, 6, 12))])
def test_a_task_may_run_at_its_width_doubled_up_to_the_most(asked, widths):
    assert TaskSpec.model_validate(spec(**asked)).widths == widths


def test_several_mistakes_are_said_at_once():
    with pytest.raises(ValidationError) as refusal:
        TaskSpec.model_validate(spec(gpus=0, search_space={"learning_rate": [-1], "rank": [0]}))
    assert len(refusal.value.errors()) == 3


def test_jobs_take_from_their_task_what_the_space_leaves_open():
    bare = TaskSpec.model_validate(space() | {"training": {"weight_decay": 0.2}})
    assert [(job.weight_decay, job.beta) for job in bare.jobs()] == [(0.2, None)]
    given = TaskSpec.model_validate(space(weight_decay=[0, 0.5]) | {"objective": {"type": "dpo"}})
    assert [(job.weight_decay, job.beta) for job in given.jobs()] == [(0, 0.1), (0.5, 0.1)]
    betas = TaskSpec.model_validate(space(beta=[0.05, 0.5]) | {"objective": {"type": "dpo"}})
    assert [job.beta for job in betas.jobs()] == [0.05, 0.5]


def test_a_spec_survives_the_wire():
    made = TaskSpec.model_validate(
        space(method="random", n=1, alpha=[8], target_modules=[["v_proj", "q_proj"]]) | {"labels": {"run": "7"}, "gpus": 2}
    )
    assert TaskSpec.model_validate_json(made.model_dump_json()) == made
