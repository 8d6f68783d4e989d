#include "weft/train/run_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/io/atomic_file.h"
#include "weft/io/json_file.h"
#include "weft/train/report.h"
#include "weft/train/train_state.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

bool wants(const Recipe& recipe, const std::string& logger) {
  return std::find(recipe.trainer.logger.begin(), recipe.trainer.logger.end(), logger) != recipe.trainer.logger.end();
}

// "section.key" -> value of a recipe as weft prints it: a line each, comments on lines of their own.
std::map<std::string, std::string> printed_values(const std::string& recipe) {
  std::map<std::string, std::string> out;
  std::istringstream in(recipe);
  std::string section;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("["))
      section = line.substr(1, line.find(']') - 1) + ".";
    else if (const size_t equals = line.find(" = "); !line.starts_with("#") && equals != std::string::npos)
      out[section + line.substr(0, equals)] = line.substr(equals + 3);
  }
  return out;
}

void tell_changes(const std::string& before, const std::string& now) {
  const std::map<std::string, std::string> old = printed_values(before);
  std::vector<std::string> changes;
  for (const auto& [key, value] : printed_values(now)) {
    const auto was = old.find(key);
    if (was == old.end() || was->second != value)
      changes.push_back(fmt::format("{} = {} (was {})", key, value, was == old.end() ? "not there" : was->second));
  }
  if (!changes.empty()) log_warn("the recipe has changed since the checkpoint: {}", fmt::join(changes, "; "));
}

}  // namespace

RunDir::RunDir(const Recipe& recipe, std::optional<int64_t> resume_step) : path_(recipe.run_dir()) {
  fs::create_directories(path_);
  const std::string lock = path_ + "/.lock";
  lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_ < 0) throw FileError(lock, "", std::strerror(errno));
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(lock_);
    throw UsageError(
        fmt::format("another process is running in {}: wait for it, or give this run another trainer.run_name", path_));
  }
  fs::create_directories(fs::path(path_) / "samples");
  for (const char* of : {"/checkpoints", "/checkpoints/critic"}) clean_checkpoints(path_ + of);
  if (resume_step && fs::exists(path_ + "/recipe.toml"))
    tell_changes(read_text_file(path_ + "/recipe.toml"), print_recipe(recipe));
  write_file_atomically(path_ + "/recipe.toml", print_recipe(recipe));
  MetricsLogOptions options;
  options.metric_aliases = recipe.trainer.metric_aliases;
  options.resume_step = resume_step;
  options.tensorboard = wants(recipe, "tensorboard");
  metrics_ = std::make_unique<MetricsLog>(path_, std::move(options));
}

RunDir::~RunDir() {
  if (lock_ >= 0) ::close(lock_);
}

void RunDir::write_metrics(int64_t step, const MetricsRow& row) { metrics_->write(step, row); }

void RunDir::write_samples(int64_t step, const PromptSource&, const std::vector<Prompt>& prompts,
                           const std::vector<ScoredSample>& samples, const Tokenizer& tokenizer) {
  using Json = nlohmann::ordered_json;
  std::string text;
  const size_t n = prompts.empty() ? 1 : std::max<size_t>(1, samples.size() / prompts.size());
  for (size_t i = 0; i < samples.size(); ++i) {
    const Trajectory& t = samples[i].trajectory;
    const Prompt& p = prompts[i / n];
    Json j;
    j["input"] = p.text;
    j["output"] = samples[i].text;
    j["gts"] = p.ground_truth_json ? Json::parse(*p.ground_truth_json) : Json();
    j["score"] = t.reward_valid ? Json(t.reward) : Json();
    j["step"] = step;
    j["row"] = t.dataset_row;
    j["sample"] = t.sample_index;
    j["finish_reason"] = t.finish_reason;
    j["rewards"] = t.rewards;
    j["prompt_ids"] = t.prompt_ids;
    j["response_ids"] = t.response_ids;
    j["rollout_log_probs"] = t.rollout_log_probs;
    Json tokens = Json::array();
    for (int32_t id : t.response_ids) tokens.push_back(tokenizer.decode({&id, 1}, false));
    j["tokens"] = std::move(tokens);
    text += j.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  }
  write_file_atomically(fmt::format("{}/samples/{}.jsonl", path_, step), text);
}

void RunDir::write_report() { weft::write_report(path_); }

}  // namespace weft
