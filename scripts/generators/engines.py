"""docs/reference/engines.md: what an engine must give, held by the conformance suite; and what each engine cannot."""

from __future__ import annotations

from dataclasses import dataclass

PATH = "docs/reference/engines.md"
SUITE = "tests/gateway/engine/test_conformance.py"
FAULTS = "tests/gateway/engine/test_faults.py"


@dataclass(frozen=True, slots=True)
class Clause:
    """One thing that an engine must give."""

    what: str
    vllm: str
    sglang: str
    tests: tuple[str, ...]
    """Of the conformance suite, or of the suite of faults."""


CLAUSES = (
    Clause(
        "The ids that were sampled, each with its logprob, aligned; none is a sentinel, NaN, positive or outside of "
        "the vocabulary. Ids that end a generation are part of it.",
        "`token_ids` and `logprobs.content`",
        "`meta_info.output_token_logprobs`, compared with `output_ids`",
        (
            "test_ids_logprobs_and_versions_are_aligned",
            "test_refused",
            "test_alternatives_are_as_many_as_asked_most_likely_first",
        ),
    ),
    Clause(
        "A stream whose steps together are the sample, the same as without a stream.",
        "events hold new tokens",
        "events hold all tokens so far, or new ones (`--incremental-streaming-output`, much cheaper); both are read",
        ("test_a_stream_is_the_sample_and_json_is_the_same",),
    ),
    Clause(
        "The prompt as it was sent, id for id, or a refusal: too long, or of another tokenizer.",
        "its 400",
        "its 400; ids outside of the vocabulary are refused by us, as it does not look; `prompt_tokens` is compared, "
        "and `--allow-auto-truncate` is not accepted. Its window is what a prompt and its answer fill: without what "
        "it reserves for drafts, not more than its cache holds",
        (
            "test_a_prompt_over_the_window_is_refused_with_the_window",
            "test_ids_that_do_not_exist_are_another_tokenizers",
        ),
    ),
    Clause(
        "Why it ended: `stop` with the stop id or string that did it (none for the model's own end), `length` or "
        "`abort`.",
        "`finish_reason`, `stop_reason`; a `length` before what was asked for and before a full window is a limit of "
        "its own (/v1/completions): the answer goes on",
        "`finish_reason.type`, `matched`; an abort with a status is a refusal, but for what a weight update aborts",
        (
            "test_length_is_exact",
            "test_a_stop_id_ends_it_and_is_kept",
            "test_a_stop_string_ends_it_and_its_tokens_are_kept",
            "test_an_answer_goes_on_behind_a_limit_of_the_engines_own",
            "test_an_answer_behind_a_limit_of_the_engines_own_ends_before_a_swap_that_waits",
            "test_a_long_answer_goes_on_behind_as_many_limits_as_it_takes",
            "test_what_cannot_go_on_behind_a_limit_of_the_engines_own_has_ended_there",
            "test_an_engine_whose_window_is_full_ends_an_answer_rightly",
        ),
    ),
    Clause(
        "The policy version of every token, also where weights change in its middle. Without reports, tokens of "
        "a stream count as of the version last set when they came, a whole answer as of that when it was asked for. "
        "Weights that lost their label are not used.",
        "`weight_versions` of 0.32 and later (`/v1/completions`: 0.33), `/weight_info`",
        "`meta_info.weight_versions`, `/model_info` (`/server_info` with `--tokenizer-worker-num`)",
        (
            "test_a_weight_update_in_the_middle_is_seen_token_by_token",
            "test_tokens_from_before_the_first_update_are_of_the_initial_version",
            "test_labels_that_nobody_sets_mean_the_told_version",
            "test_without_reports_a_stream_is_of_what_was_told_as_its_tokens_came",
            "test_weights_that_lost_their_label_are_not_used_until_they_have_one",
            "test_an_answer_of_weights_that_lost_their_label_is_never_the_told_version",
            "test_versions_are_told_per_piece_when_the_weights_change_in_the_middle",
        ),
    ),
    Clause(
        "An abort, by which a generation that nobody wants any more frees the engine.",
        "`/inference/v1/abort_requests`",
        "`/abort_request` (it aborts every rid that starts with this one: ours end in `~`)",
        (
            "test_cancelling_frees_the_engine",
            "test_cancelling_frees_the_engine_without_a_stream",
            "test_a_listener_that_fails_frees_the_engine",
            "test_closing_ends_what_runs_and_refuses_what_comes",
        ),
    ),
    Clause(
        "What was sampled stays: a generation that was aborted, or whose connection broke, goes on after its last id.",
        "prompt and sampled ids as the next prompt; a seed is moved. A presence or frequency penalty, which is counted "
        "over sampled tokens, and a grammar begin anew; streamed in part, they are a 503",
        "the same, with `repetition_penalty`, too; a seed is kept, as SGLang draws by seed and position",
        (
            "test_an_aborted_generation_is_taken_up_again",
            "test_what_an_engine_ended_too_early_is_not_taken_up_before_the_gateway_goes_on",
            "test_a_stream_that_breaks_goes_on_after_its_last_id",
            "test_what_breaks_before_anything_was_heard_is_asked_again",
            "test_what_breaks_again_and_again_is_unavailable",
            "test_an_engine_that_aborts_for_ever_is_given_up",
            "test_a_refusal_in_the_middle_of_a_stream_keeps_what_was_sampled",
            "test_a_grammar_is_not_begun_anew_behind_what_was_told",
            "test_a_penalty_is_not_begun_anew_behind_what_was_told",
            "test_an_engine_that_fails_in_the_middle_is_not_asked_elsewhere",
        ),
    ),
    Clause(
        "Pause and continue, for weight updates. New requests wait.",
        "`/pause` (`abort`, `keep`, `wait`), `/resume`",
        "`/pause_generation` (`abort`; `keep` is its `retract`, so that old caches go), `/continue_generation`",
        ("test_a_frozen_generation_goes_on_by_itself", "test_a_new_request_waits_for_the_end_of_a_pause"),
    ),
)

PARAMETERS = (
    (
        "`temperature`, penalties, `max_tokens`, `stop`, stop ids",
        "yes; with `--skip-tokenizer-init` vLLM looks for no stop strings, and samples on: the gateway ends the turn "
        "at the first (but for a stream whose logprobs were told token by token)",
        "yes; stop strings not with `--skip-tokenizer-init`",
    ),
    (
        "`top_p`, `top_k`, `min_p`",
        "yes",
        "400 with `processed_logprobs` (unless temperature is 0): SGLang's logprobs are of before them; `min_p` is "
        "always a 400 with `--enable-deterministic-inference`, as SGLang dies of it",
    ),
    (
        "a temperature between 0 and 0.01",
        "0.01, in the record, too: vLLM would raise it silently",
        "the same: SGLang would take one below 1e-6 for 0",
    ),
    ("penalties with `raw_logprobs`", "yes", "400: SGLang's raw logprobs are of after them"),
    ("`seed`", "yes", "with `--enable-deterministic-inference`, else 400: SGLang would ignore it"),
    (
        "JSON schema, regex, structural tag",
        "yes, but for what no grammar says ([below](#what-a-schema-does-not-hold))",
        "the same",
    ),
    ("images", "yes", "400"),
    ("LoRA adapters by model name", "yes", "yes (`lora_path`)"),
    ("the policy as a LoRA adapter (docs/trainers/trl.md)", "yes", "refused at the update"),
    ("a model name that it does not serve", "404", "404 from us: SGLang would answer with what it has"),
)

PROVED = (
    ("in-process script", "all of it", "-"),
    ("vLLM's wire, scripted (0.32, 0.31, completions of 0.32 and 0.33)", "all of it", "-"),
    (
        "vLLM 0.32 itself, on a CPU",
        "all but scripted faults",
        "logprobs against a forward pass: docs/logprobs.md",
    ),
    (
        "vLLM 0.33's Python on 0.32's kernels, on a CPU, once (November 2026)",
        "all but scripted faults",
        "`sandgate doctor`, its image processors (40 of 40), its parsers; not its kernels, no GPU, no weight update of "
        "a trainer's",
    ),
    ("SGLang's wire, scripted (both streams; without versions)", "all of it", "-"),
    (
        "SGLang 0.5.23's own HTTP server, tokenizer manager and types, on a CPU, with a script as scheduler",
        "all but stop strings and scripted faults",
        "every body is taken by its types; the scripted server answers as it does, field by field",
    ),
    (
        "SGLang 0.5.23 itself, on a GPU (see below)",
        "all but scripted faults",
        "logprobs against a forward pass, weights that change in the middle, the gateway's rows",
    ),
)

HEAD = """\
<!-- Generated from scripts/generators/engines.py by `make fix`. Do not edit. -->
# Engines: what one must give

`spec.engine.kind` (in a gateway's settings `engine.kind`) says whose API an engine speaks: `vllm` or `sglang`. An
engine is the `Engine` protocol of `gateway/sandgate/gateway/engine/api.py`: `generate`, `status`, `aclose`. Replicas,
retries, resumes and health are one pool for all kinds (`pool.py`); an engine's own is a `Dialect` (`dialect.py`) with a
`Way` (`way.py`) for each replica. A new kind is those two, a row in `factory.py`, and the tests that are named here.

| what | vLLM | SGLang | tests |
|---|---|---|---|"""

TAIL = """\
## An engine of your own on this machine's CPU

From the environment that `make demo` runs its engine in:

```console
$ export VLLM_SERVER_DEV_MODE=1 VLLM_CPU_KVCACHE_SPACE=1 HF_HUB_OFFLINE=1
$ "$(make -s engine | tail -n 1)"/bin/python -m vllm.entrypoints.openai.api_server --model examples/shop/model \\
    --served-model-name shop --host 127.0.0.1 --port 8000 --dtype float32 --max-model-len 2048 --max-num-seqs 32 \\
    --enforce-eager --enable-scale-out --logprobs-mode processed_logprobs
```

`VLLM_SERVER_DEV_MODE=1` opens its control plane, without which no trainer can update its weights; whoever
reaches the port has it.
`VLLM_CPU_KVCACHE_SPACE` is in GiB. Then
`sandgate doctor --model examples/shop/model --engine-url http://127.0.0.1:8000`.

## vLLM's own settings

* `--logprobs-mode` is measured before a replica's first turn, and again when its process was another one: a replica in
  another mode than `engine.logprobsMode` is not used. Most often by five alternatives of one token; with
  `--max-logprobs` below 5 by tokens alone, each sampled where no other is allowed. Nor is a replica used that refuses
  to be measured, or whose answers do not show its mode: `sandgate doctor` says so, too.
* `--structured-outputs-config`: turns say their form (`response_format`, `tool_choice`, `parallel_tool_calls`) as
  a structural tag, which the backends `auto` (the default) and `xgrammar` take. `guidance` and `outlines` refuse it,
  and `disable_any_whitespace` does not reach it. Any JSON object (`json_object`) of a model without thoughts is said
  as such.
* An engine with `auto` has one backend, that of its first form. From 0.33 on it refuses forms of another (400, which
  says what to do); 0.32 answers 500 to tags then. Clients beside the gateway should not send `json` schemas to an
  `auto` engine: one with `multipleOf` of a number, say, makes it `guidance`. `--structured-outputs-config '{"backend":
  "xgrammar"}'` rules that out. What the gateway sends never chooses another than `xgrammar`.
* `VLLM_MAX_MEDIA_REQUEST_DECODE_BYTES=0` for engines of your own, from 0.33 on: its default refuses turns with more
  than 179 megapixels of pictures, where a gateway takes 268. Engines that the operator or `sandgate run` manages have
  it.
* Speculative decoding is lossless with the `rejection_sample_method` `standard` (the default) and `block`. `synthetic`
  and 0.33's `fly` accept drafts that the model would not have sampled: logprobs are then of another distribution than
  what was sampled. Do not train on such an engine: a gateway does not see it, `sandgate doctor` does where the engine
  has `VLLM_SERVER_DEV_MODE=1`.

### What a schema does not hold

A schema becomes a grammar of xgrammar's (0.2.8 was looked at), with vLLM and, by default, with SGLang, and that does
not say all that a schema can:

* Left out without a word, so that an answer may break it: `uniqueItems`, `multipleOf` of a `number`, `minLength` and
  `maxLength` beside `pattern` or `format`, a `format` that is not among `email`, `date`, `time`, `date-time`,
  `duration`, `ipv4`, `ipv6`, `hostname`, `uuid`, `uri` (and its kinds) and JSON pointers, look-ahead in a `pattern`,
  `allOf` of several, `not`, `if`, `dependentRequired`, what stands beside `anyOf`, `allOf`, `enum`, `const` or `$ref`,
  that only one of `oneOf` may hold, and a `$ref` to elsewhere. The rest of such a schema holds. It is no 400: most
  answers keep to these anyway, and SDKs check them. Who relies on one checks it in the agent.
* Narrower than the schema: `contains` without `items` (it leaves `[]` only), `patternProperties` or `propertyNames`
  beside `properties` (those of `properties` only), and an object without `additionalProperties` (as if it were false).
* A 400: a `pattern` that is no regular expression, `minimum` above `maximum`, an unknown `type`, `minContains`.

## vLLM without `--enable-scale-out`

The flag opens `/inference/v1/generate`, which takes and gives token ids. Engines that the operator or `sandgate run`
manages have it. Without it a gateway asks `/v1/completions`, says so once in its log, and some things are less:

* no version for each token before 0.33: tokens have the version that was last told
  ([client.md](../trainers/client.md#which-version-a-token-has));
* no abort by id: a generation that nobody wants ends with its connection;
* no images: a turn with one is refused;
* a `max_new_tokens` of `--override-generation-config`, or of a folder of `--generation-config`, ends an answer early:
  it goes on in further requests; a turn with a form, or with a presence or frequency penalty, cannot, and ends there
  (`length`);
* a form that a turn is held to begins behind the reasoning, not with the first token, where the engine has
  `--reasoning-parser`.

## SGLang

```console
$ python -m sglang.launch_server --model-path /models/my-model --served-model-name my-model --port 30000 \\
    --incremental-streaming-output
```

```yaml
  engine: {kind: sglang, endpoints: [http://127.0.0.1:30000]}
```

* Native `/generate` with token ids; every sampling parameter is sent, so `--preferred-sampling-params` and
  `--sampling-defaults` count for nothing. Read in SGLang 0.5.23, which reports versions for each token; older servers
  are taken, with the version last set, if they know what is sent.
* Logprobs are log_softmax(logits / temperature), of after penalties and grammars and before top_p, top_k and min_p.
  Where these are off that is `processed_logprobs`, the default mode. `SGLANG_RETURN_ORIGINAL_LOGPROB=1` gives
  `raw_logprobs`. A gateway measures which one it is, by two temperatures, before a replica's first turn.
* Engines that the operator manages are vLLM; SGLang is named in `endpoints` or found by `selector`.
* Weight updates: `fleet.weight_update(version, engines=urls, kind="sglang")`. A load from disk renames SGLang's model
  to the checkpoint's path; from then on its name is not compared.
* `/flush_cache` is refused while something waits for its grammar, and a paused SGLang does not get on with that: a
  pause clears the cache at once, before any swap, and lets SGLang go on for a while where it cannot.
* Speculative decoding is lossless with its defaults. With `--speculative-accept-threshold-single` or
  `--speculative-accept-threshold-acc` it is not, so that logprobs would be of another distribution: such a server is
  not used.
* `--tokenizer-worker-num`: each HTTP worker has a label of its own, and one is told it. A gateway reads that of the
  schedulers, by which tokens are sampled, in `/server_info`; of data parallel ranks the oldest counts. A server that
  does not say it is not used.
* An answer ends as `length` where SGLang clips it without a word: two tokens before the end of its context (0.5.23), or
  at `SGLANG_MAX_NEW_TOKENS_LIMIT`, which it does not tell.
* `/health` samples a token, which waits while a weight update holds the engine: then it counts whether the server
  answers at all.
* Behind a router (sgl-router, model gateway) workers cannot be told apart by version or abort: name the workers, not
  the router. Data parallelism within one server is its own affair. Neither was tried.
* `--enable-deterministic-inference` seeds a request without a seed with 42: all samples of a prompt are the same. A
  gateway gives each request a seed of its own there.

### On a GPU

Run once, in November 2026: one NVIDIA H100 80GB (driver 580.159), SGLang 0.5.23, sglang-kernel 0.4.10, torch 2.14.1
(CUDA 13.0), triton 3.8.0, attention backend `triton`, sampling backend `pytorch`, without flashinfer and SGLang's fused
dual GEMM (both were left out of what could be brought there). The model is the shop example's. The file is
`tests/gateway/engine/sglang/on_gpu.py`; it says how to run it again. All of the conformance suite held, with
`--incremental-streaming-output`; with streams of all tokens so far, all of it and most of the rest, as that run was cut
by its time.

Logprobs against transformers in float32, in nats; "plain" is temperatures 0 to 1.3 and 64 at once:

| server | what | largest difference |
|---|---|---|
| float32, deterministic, `TRITON_F32_DEFAULT=ieee` | plain; 24 long ones; a cached prompt; a full window | 2.1e-5 |
| the same | behind a pause, behind an abort, behind new weights, in the rows of a gateway | 1.1e-5 |
| the same, `SGLANG_RETURN_ORIGINAL_LOGPROB=1` | plain; the rows of a gateway | 1.7e-5 |
| float32, deterministic, TF32 (Triton's default) | plain; a cached prompt; new weights | 8.7e-3 |
| bfloat16, not deterministic | plain; 24 long ones; behind a pause; the rows of a gateway | 3.1e-1 |

* New weights from disk in the middle of a generation, `keep` and `abort`: the token that the record names as the first
  of the new version is the first that the new weights give. Before it the logprobs are those of the old weights within
  6.6e-6, behind it those of the new within 6.1e-6; with a wrong label they would be off by 0.5 to 0.9.
* What it showed to be wrong was mended: `min_p` ended a deterministic server with all that it was sampling, and samples
  without a seed were all the same there.
* Speed of a random model of Qwen3-0.6B's shape (a vocabulary of 1,024; bfloat16), conversations of four turns of up to
  128 tokens, not streamed, journal on disk, load, gateway and engine on one machine of 16 cores, the rounds in turns:

| at once | who | turns/s | p50, ms | p99, ms |
|---|---|---|---|---|
| 64 | engine alone | 86, 100, 92 | 753, 640, 694 | 824, 724, 731 |
| 64 | through the gateway | 60, 100, 84 | 755, 613, 746 | 1969, 705, 823 |
| 256 | engine alone | 119, 129, 135 | 2198, 1914, 1883 | 2373, 2463, 2101 |
| 256 | through the gateway | 112, 125 | 2117, 1904 | 2756, 2314 |

The rounds differ from each other by more than the gateway costs; the first through it was its first. Not run: several
GPUs, flashinfer, structural tags, a seed beside `top_p`, CUDA graphs with streams of all tokens so far, a cache too
small for what runs, weights from a trainer's GPU, LoRA, hours of load.
"""


def generate() -> dict[str, str]:
    lines = [HEAD]
    for clause in CLAUSES:
        tests = "<br>".join(f"`{name}`" for name in clause.tests)
        lines.append(f"| {clause.what} | {clause.vllm} | {clause.sglang} | {tests} |")
    lines += ["", f"The tests are in `{SUITE}` and `{FAULTS}`; one that fails names the engine.", ""]
    lines += [
        "## What is honoured",
        "",
        "What cannot be is a 400 before anything is sampled; nothing is dropped, but for some keywords of a schema.",
        "",
    ]
    lines += ["| what a client asks for | vLLM | SGLang |", "|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in PARAMETERS]
    lines += ["", "## Proved on", "", "| engine | of the table above | and |", "|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in PROVED]
    return {PATH: "\n".join([*lines, "", TAIL])}
