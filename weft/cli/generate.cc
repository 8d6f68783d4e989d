#include <iostream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/threads.h"
#include "weft/cli/command.h"
#include "weft/rollout/engine.h"
#include "weft/train/loaded_model.h"
#include "weft/train/prompts.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

SamplingParams sampling(const Arguments& args) {
  SamplingParams p;
  p.n = args.get_int("--n", 1, 1);
  p.max_tokens = args.get_int("--max-tokens", 128, 1);
  p.min_tokens = args.get_int("--min-tokens", 0);
  p.temperature = args.get_double("--temperature").value_or(0.0);
  p.top_p = args.get_double("--top-p").value_or(1.0);
  p.top_k = args.get_int("--top-k", 0, -1);
  p.min_p = args.get_double("--min-p").value_or(0.0);
  if (args.has("--stop")) p.stop = {args.get("--stop")};
  p.ignore_eos = args.has("--ignore-eos");
  return p;
}

}  // namespace

Command generate_command() {
  return {"generate",
          "Samples from a checkpoint: one prompt, or with - one a line from standard input. Prints JSON lines.",
          "DIR PROMPT",
          {{"--chat", "", "the prompt is a user message: apply the chat template"},
           {"--n", "N", "samples of each prompt (default 1)"},
           {"--max-tokens", "N", "longest response (default 128)"},
           {"--min-tokens", "N", "no end token before"},
           {"--temperature", "T", "0 (default) is greedy"},
           {"--top-p", "P", "keep the most likely tokens up to this mass"},
           {"--top-k", "K", "keep the K most likely tokens"},
           {"--min-p", "P", "keep tokens at least this likely relative to the best"},
           {"--seed", "N", "default 1"},
           {"--stop", "TEXT", "end at this text"},
           {"--ignore-eos", "", "go on after end tokens"},
           {"--logprobs", "", "print token ids and log-probs"},
           {"--param-dtype", "DTYPE", "float32 or bfloat16; default: the checkpoint's"},
           {"--threads", "N", "threads; default: all cores"}},
          "weft generate models/tiny-moe \"12+30=\" --n 4 --temperature 1",
          2,
          2,
          [](const Arguments& args, const Registry& registry) -> int {
            set_num_threads(static_cast<int>(args.get_int("--threads", 0)));
            std::optional<DType> dtype;
            if (args.has("--param-dtype") && !(dtype = parse_dtype(args.get("--param-dtype"))))
              throw UsageError(fmt::format("--param-dtype {}: expected float32 or bfloat16", args.get("--param-dtype")));
            LoadedModel m = load_model(args.positional[0], dtype, "cpu", registry.families);
            const Tokenizer tokenizer = Tokenizer::load(m.dir);
            std::vector<std::string> prompts{args.positional[1]};
            if (prompts[0] == "-") {
              prompts.clear();
              for (std::string line; std::getline(std::cin, line);) {
                if (line.ends_with('\r')) line.pop_back();
                if (!line.empty()) prompts.push_back(line);
              }
            }
            EngineConfig config;
            config.end_ids = end_token_ids(m.hf, m.generation, &tokenizer);
            config.max_num_seqs = 64;
            Engine engine(*m.model, config, &tokenizer);
            const int64_t samples = sampling(args).n;
            std::optional<ChatTemplate> chat;
            if (args.has("--chat")) chat = default_chat_template(tokenizer, m.dir);
            for (size_t i = 0; i < prompts.size(); ++i) {
              GenerationRequest r;
              r.id = static_cast<RequestId>(i);
              if (chat) {
                ChatTemplate::Inputs in;
                in.messages = Json::array({{{"role", "user"}, {"content", prompts[i]}}});
                in.add_generation_prompt = true;
                in.special_tokens = tokenizer.special_tokens();
                r.prompt_ids = tokenizer.encode(chat->render(in).text, false);
              } else {
                r.prompt_ids = tokenizer.encode(prompts[i], true);
              }
              r.params = sampling(args);
              r.seed = static_cast<uint64_t>(args.get_int("--seed", 1));
              engine.add(std::move(r));
            }
            // Printed in the order of the input, each as soon as those before it have ended.
            std::map<std::pair<int64_t, int64_t>, std::string> ended;
            std::pair<int64_t, int64_t> next{0, 0};
            while (engine.step()) {
              for (const GeneratedSample& s : engine.take_finished()) {
                const Trajectory& t = s.trajectory;
                Json j;
                j["prompt"] = prompts[static_cast<size_t>(s.request)];
                j["sample"] = t.sample_index;
                j["text"] = s.text;
                j["finish_reason"] = t.finish_reason;
                if (args.has("--logprobs")) j["ids"] = t.response_ids, j["logprobs"] = t.rollout_log_probs;
                ended[{static_cast<int64_t>(s.request), t.sample_index}] = j.dump(-1, ' ', false, Json::error_handler_t::replace);
              }
              for (auto it = ended.find(next); it != ended.end(); it = ended.find(next)) {
                std::cout << it->second << "\n" << std::flush;
                ended.erase(it);
                if (++next.second == samples) next = {next.first + 1, 0};
              }
            }
            return kExitDone;
          }};
}

}  // namespace weft
