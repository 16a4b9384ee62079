#!/bin/bash
# GRPO on the shop with verl: its prompts are tasks of a RolloutJob, whose agents call tools in sandboxes.
#
#   examples/verl/train.sh [hydra overrides]
#
# Overrides come last and win. Several nodes: `ray start` on each, then trainer.nnodes=N rollout_job.relays=N (see
# docs/trainers/verl.md). Everything is written below $OUT (default: outputs/shop-verl).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-outputs/shop-verl}
rollout=actor_rollout_ref.rollout

python "$here/make_data.py" "$out/data"
exec python -m verl.trainer.main_ppo \
  algorithm.adv_estimator=grpo \
  algorithm.rollout_correction.rollout_is=token \
  algorithm.rollout_correction.rollout_is_threshold=2.0 \
  data.train_files="$out/data/train.parquet" \
  data.val_files="$out/data/test.parquet" \
  data.train_batch_size=8 \
  data.max_prompt_length=768 \
  data.max_response_length=1024 \
  data.return_raw_chat=True \
  actor_rollout_ref.model.path="$here/../shop/model" \
  actor_rollout_ref.actor.optim.lr=3e-4 \
  actor_rollout_ref.actor.ppo_mini_batch_size=8 \
  actor_rollout_ref.actor.use_dynamic_bsz=True \
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 \
  $rollout.name=vllm \
  $rollout.tensor_model_parallel_size=1 \
  $rollout.n=8 \
  $rollout.temperature=1.0 \
  $rollout.val_kwargs.n=1 \
  $rollout.val_kwargs.temperature=0 \
  $rollout.gpu_memory_utilization=0.5 \
  $rollout.log_prob_use_dynamic_bsz=True \
  $rollout.log_prob_max_token_len_per_gpu=16384 \
  $rollout.calculate_log_probs=True \
  +$rollout.agent.agent_loop_manager_class=sandgate.trainer.verl.RolloutJobManager \
  +$rollout.custom.rollout_job.manifest="$here/job.yaml" \
  +$rollout.custom.rollout_job.out="$out/job" \
  "+$rollout.custom.rollout_job.columns=[verb,item,n,pay]" \
  trainer.project_name=shop \
  trainer.experiment_name=shop-verl \
  trainer.default_local_dir="$out/checkpoints" \
  "trainer.logger=[console]" \
  trainer.n_gpus_per_node=1 \
  trainer.nnodes=1 \
  trainer.total_training_steps=50 \
  "$@"
