"""The capabilities of workers of version 0.1.0, which do not send them when they register. A frozen record."""

_SAID = """
    base_model dataset dataset.file_id dataset.max_validation_rows dataset.validation_file_id dataset.validation_fraction
    early_exit early_exit.ema_alpha early_exit.eval_every early_exit.guard_patience early_exit.keep_fraction
    early_exit.max_evaluation_share early_exit.patience_divergence early_exit.patience_overfitting early_exit.policy
    early_exit.policy=alto early_exit.policy=alto_guarded early_exit.policy=asha early_exit.policy=none
    early_exit.reduction_factor early_exit.tau_gap early_exit.tau_slope early_exit.warmup_fraction early_exit.window gpus
    model_type=gemma2 model_type=gemma3_text model_type=llama model_type=mistral model_type=qwen2 model_type=qwen3 objective
    objective.turns objective.turns=all objective.turns=last objective.type objective.type=dpo objective.type=sft precision
    precision=bf16 precision=nf4 precision=nf4_double search_space search_space.alpha search_space.alpha_ratio
    search_space.batch_size search_space.beta search_space.draw_seed search_space.dropout search_space.jobs
    search_space.jobs.alpha search_space.jobs.batch_size search_space.jobs.beta search_space.jobs.dropout
    search_space.jobs.learning_rate search_space.jobs.lr_warmup_ratio search_space.jobs.rank search_space.jobs.rslora
    search_space.jobs.schedule search_space.jobs.schedule=constant search_space.jobs.schedule=cosine
    search_space.jobs.schedule=linear search_space.jobs.seed search_space.jobs.target_modules
    search_space.jobs.target_modules=down_proj search_space.jobs.target_modules=gate_proj
    search_space.jobs.target_modules=k_proj search_space.jobs.target_modules=o_proj search_space.jobs.target_modules=q_proj
    search_space.jobs.target_modules=up_proj search_space.jobs.target_modules=v_proj search_space.jobs.weight_decay
    search_space.learning_rate search_space.lr_warmup_ratio search_space.method search_space.method=grid
    search_space.method=list search_space.method=random search_space.n search_space.rank search_space.rslora
    search_space.schedule search_space.schedule=constant search_space.schedule=cosine search_space.schedule=linear
    search_space.seed search_space.target_modules search_space.target_modules=down_proj
    search_space.target_modules=gate_proj search_space.target_modules=k_proj search_space.target_modules=o_proj
    search_space.target_modules=q_proj search_space.target_modules=up_proj search_space.target_modules=v_proj
    search_space.weight_decay training training.epochs training.max_grad_norm training.max_seq_len training.max_steps
    training.weight_decay warm_start warm_start.adapter_id
"""
CAPABILITIES_0_1 = frozenset(_SAID.split())
