#include "weft/train/plan.h"

#include <charconv>
#include <iostream>
#include <sstream>

#include "weft/base/error.h"
#include "weft/cli/command.h"
#include "weft/cli/config_file.h"
#include "weft/io/atomic_file.h"

namespace weft {
namespace {

// "50" or "50,tp=400,ep=200".
void read_bandwidth(const std::string& text, PlanOptions& o) {
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) {
    const size_t equals = part.find('=');
    const std::string value = equals == std::string::npos ? part : part.substr(equals + 1);
    double gb = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), gb);
    if (error != std::errc() || end != value.data() + value.size())
      throw UsageError(fmt::format("--bandwidth {}: \"{}\" is no number; write GB/s, or GB/s,AXIS=GB/s", text, value));
    (equals == std::string::npos ? o.bandwidth_gb : o.axis_bandwidth_gb[part.substr(0, equals)]) = gb;
  }
}

PlanOptions options_of(const Arguments& args) {
  PlanOptions o;
  o.param_dtype = dtype_option(args, "--param-dtype", o.param_dtype);
  o.rollout_dtype = dtype_option(args, "--rollout-dtype", o.param_dtype, /*int8=*/true);
  o.apart = args.has("--apart");
  o.recompute = args.has("--recompute");
  o.sequence_parallel = args.has("--sequence-parallel");
  o.max_tokens_per_micro_batch = args.get_int("--max-tokens-per-micro-batch", o.max_tokens_per_micro_batch, 1);
  o.max_prompt_length = args.get_int("--max-prompt-length", 0);
  o.max_response_length = args.get_int("--max-response-length", 0);
  o.micro_batches = args.get_int("--micro-batches", 1, 1);
  o.kv_cache_tokens = args.get_int("--kv-cache-tokens", o.kv_cache_tokens, 1);
  o.block_size = args.get_int("--block-size", o.block_size, 1);
  if (args.has("--bandwidth")) read_bandwidth(args.get("--bandwidth"), o);
  o.memory_gb = args.get_double("--memory").value_or(0);
  return o;
}

}  // namespace

Command plan_command() {
  return {
      "plan",
      "What a run would hold, send and wait for on two meshes, from config.json alone: memory by kind, collectives, the refit.",
      "CONFIG.json",
      {{"--train", "MESH", "the trainer's mesh: fsdp=1024,ep=64"},
       {"--rollout", "MESH", "the rollout's: dp=64,tp=8,ep=64 (ep is tp where it is left out)"},
       {"--apart", "", "the rollout has ranks of its own, behind the trainer's; else the roles share ranks from 0"},
       {"--json", "", "print JSON: names end in their units"},
       {"--html", "FILE", "write a page with a picture of who holds and who sends what"},
       {"--param-dtype", "DTYPE", "of the trainer: bfloat16 (default) or float32"},
       {"--rollout-dtype", "DTYPE", "of the rollout, and what a refit sends: float32, bfloat16 or int8; default: the trainer's"},
       {"--max-tokens-per-micro-batch", "N", "actor.max_tokens_per_micro_batch (default 16384)"},
       {"--max-prompt-length", "N", "with --max-response-length: how many of the tokens have log-probs; default: all"},
       {"--max-response-length", "N", "a sequence longer than the budget is a micro-batch of its own"},
       {"--micro-batches", "N", "of one optimizer update, on each rank (default 1)"},
       {"--recompute", "", "actor.recompute"},
       {"--sequence-parallel", "", "actor.sequence_parallel"},
       {"--kv-cache-tokens", "N", "rollout.kv_cache_tokens, of each tp group (default 262144)"},
       {"--block-size", "N", "rollout.block_size (default 16)"},
       {"--bandwidth", "GB/S", "of each rank, each way (default 50: a 400 Gb/s port); of axes apart: 50,tp=400,ep=200"},
       {"--memory", "GB", "of a rank: what does not fit is shown, with the nearest meshes that do"}},
      "weft plan config.json --train fsdp=1024,ep=64 --rollout dp=64,tp=8,ep=64 --memory 80",
      1,
      1,
      [](const Arguments& args, const Registry& registry) -> int {
        for (const char* needed : {"--train", "--rollout"})
          if (!args.has(needed)) throw UsageError(fmt::format("weft plan needs {} MESH", needed));
        const Plan plan = make_plan(config_file(args.positional[0]), args.get("--train"), args.get("--rollout"), options_of(args),
                                    registry.families);
        if (args.has("--html")) write_file_atomically(args.get("--html"), plan_html(plan));
        std::cout << (args.has("--json") ? plan_json(plan) : plan_text(plan));
        return kExitDone;
      }};
}

}  // namespace weft
