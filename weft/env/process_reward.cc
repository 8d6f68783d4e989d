#include "weft/env/process_reward.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "weft/base/clock.h"
#include "weft/base/log.h"
#include "weft/base/signals.h"
#include "weft/base/subprocess.h"
#include "weft/env/reward_adapter.h"

namespace weft {
namespace {

using nlohmann::json;

constexpr int64_t kShownLines = 15;

std::string last_lines(std::string_view text) {
  size_t start = text.size();
  for (int64_t lines = 0; start > 0; --start)
    if (text[start - 1] == '\n' && ++lines == kShownLines) break;
  std::string result(text.substr(start));
  return start > 0 ? "...\n" + result : result;
}

std::string dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

// The file's own text goes over unchanged (numbers keep all their digits). Line ends can only be white space in it.
void append_raw(std::string* line, std::string_view json_text) {
  const size_t start = line->size();
  line->append(json_text);
  std::replace_if(
      line->begin() + static_cast<int64_t>(start), line->end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
}

std::string request_line(int64_t id, std::span<const RewardRequest> requests) {
  std::string line = fmt::format("{{\"id\": {}, \"rows\": [", id);
  for (size_t i = 0; i < requests.size(); ++i) {
    const RewardRequest& request = requests[i];
    line += fmt::format(
        "{}{{\"prompt\": {}, \"completion\": {}, \"prompt_ids\": [{}], \"completion_ids\": [{}], \"data_source\": {}, "
        "\"row_number\": {}, \"sample_index\": {}, \"messages\": ",
        i == 0 ? "" : ", ", dump(request.prompt), dump(request.completion), fmt::join(request.prompt_ids, ","),
        fmt::join(request.completion_ids, ","), dump(request.data_source), request.row_number, request.sample_index);
    append_raw(&line, request.messages_json.value_or("null"));
    line += ", \"ground_truth\": ";
    append_raw(&line, request.ground_truth_json.value_or("null"));
    line += ", \"fields\": ";
    append_raw(&line, request.row_json);
    line += '}';
  }
  return line + "]}";
}

std::string where(std::span<const RewardRequest> requests) {
  const RewardRequest &first = requests.front(), &last = requests.back();
  if (requests.size() == 1) return where(first);
  return fmt::format("{}rows {} to {} ({} completions)", first.file.empty() ? "" : first.file + ": ", first.row_number,
                     last.row_number, requests.size());
}

std::optional<double> figure(const json& value) {
  if (value.is_number()) return value.get<double>();
  if (value.is_boolean()) return value.get<bool>() ? 1.0 : 0.0;
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

// A score as the protocol has it; nullopt when it is none.
std::optional<RewardValue> reward_value(const json& score) {
  RewardValue result;
  const json* value = &score;
  if (score.is_object()) {
    const auto found = score.find("score");
    if (found == score.end()) return std::nullopt;
    value = &*found;
    for (const auto& [key, extra] : score.items()) {
      if (key == "score") continue;
      const auto number = figure(extra);
      if (number) result.extra[key] = *number;
    }
  }
  if (value->is_null()) {
    result.applicable = false;
    return result;
  }
  const auto number = figure(*value);
  if (!number) return std::nullopt;
  result.value = *number;
  return result;
}

class ProcessReward final : public RewardFunction {
 public:
  // `greets`: the program says {"ready": ...} when it is started.
  ProcessReward(std::string name, std::string label, SubprocessOptions program, bool greets, const RewardProcessOptions& options)
      : name_(std::move(name)), label_(std::move(label)), program_(std::move(program)), greets_(greets), options_(options) {
    if (options_.processes < 1 || !(options_.time_limit_s > 0) || !(options_.load_time_limit_s > 0))
      throw UsageError(fmt::format("reward {}: {} processes with time limits {} s and {} s (loading): all must be above 0",
                                   label_, options_.processes, options_.time_limit_s, options_.load_time_limit_s));
    program_.on_stderr_line = [this](std::string_view line) { log_info("{}: {}", name_, line); };
    workers_.resize(static_cast<size_t>(options_.processes));
    for (auto& worker : workers_) worker.process = std::make_unique<Subprocess>(program_);
    for (auto& worker : workers_) greet(&worker);
  }

  ~ProcessReward() override {
    for (auto& worker : workers_)
      if (worker.process) worker.process->close_input();
    const double deadline = real_clock().now() + 1;
    for (auto& worker : workers_)
      if (worker.process) worker.process->finish(deadline - real_clock().now());
  }

  std::string name() const override { return name_; }

  std::vector<RewardValue> score(std::span<const RewardRequest> requests) override {
    const auto parts = split(requests);
    std::vector<RewardValue> values(requests.size());
    std::vector<std::exception_ptr> errors(parts.size());
    std::atomic<size_t> next{0};
    std::atomic<bool> failed{false};
    const auto work = [&](Worker* worker) {
      for (size_t i; !failed && (i = next.fetch_add(1)) < parts.size();) {
        try {
          ask(worker, requests.subspan(parts[i].first, parts[i].second), &values[parts[i].first]);
        } catch (...) {
          errors[i] = std::current_exception();
          failed = true;
        }
      }
    };
    std::vector<std::thread> threads;
    for (size_t w = 1; w < std::min(workers_.size(), parts.size()); ++w) threads.emplace_back(work, &workers_[w]);
    if (!parts.empty()) work(&workers_[0]);
    for (auto& thread : threads) thread.join();
    for (const auto& error : errors)
      if (error) std::rethrow_exception(error);
    return values;
  }

 private:
  struct Worker {
    std::unique_ptr<Subprocess> process;
    int64_t next_id = 1;
  };

  // First request and number of requests of each part.
  std::vector<std::pair<size_t, size_t>> split(std::span<const RewardRequest> requests) const {
    std::vector<std::pair<size_t, size_t>> parts;
    const size_t n = requests.size();
    const size_t share = batch_ ? (n + workers_.size() - 1) / workers_.size() : 1;
    for (size_t begin = 0; begin < n;) {
      size_t end = std::min(n, begin + share);
      while (batch_ && end < n && requests[end].row_number == requests[end - 1].row_number &&
             requests[end].file == requests[end - 1].file)
        ++end;
      parts.emplace_back(begin, end - begin);
      begin = end;
    }
    return parts;
  }

  [[noreturn]] void fail(const std::string& at, const std::string& what) const {
    throw RewardError(fmt::format("{}{}reward {}: {}", at, at.empty() ? "" : ": ", label_, what));
  }

  // The program went away in the middle: how, and its last words.
  [[noreturn]] void fail_gone(Worker* worker, const std::string& at) const {
    worker->process->close_input();
    worker->process->finish(1);
    const std::string how = worker->process->exit_text(), words = worker->process->stderr_tail();
    worker->process.reset();
    fail(at, fmt::format("its process ended ({}){}{}", how, words.empty() ? "" : "; its last lines:\n", words));
  }

  [[noreturn]] void fail_time(Worker* worker, const std::string& at, const std::string& doing, double limit,
                              const std::string& key) const {
    worker->process->kill();
    const std::string words = worker->process->stderr_tail();
    worker->process.reset();
    fail(at, fmt::format("{} took longer than {} s ({}); its process was killed{}{}", doing, limit, key,
                         words.empty() ? "" : "; its last lines:\n", words));
  }

  // One line from the program as JSON; every other outcome is an error.
  json receive(Worker* worker, const std::string& at, const std::string& doing, double deadline, double limit,
               const std::string& key) const {
    std::string line;
    PipeStatus status = PipeStatus::kTimeout;
    while (status == PipeStatus::kTimeout && real_clock().now() < deadline) {
      status = worker->process->read_line(&line, std::min(0.1, deadline - real_clock().now()));
      if (status == PipeStatus::kTimeout && stop_requested()) {
        worker->process->kill();
        worker->process.reset();
        throw StoppedError(fmt::format("stopped by {} while {} ran", stop_signal_name(), label_));
      }
    }
    switch (status) {
      case PipeStatus::kTimeout: fail_time(worker, at, doing, limit, key);
      case PipeStatus::kClosed: fail_gone(worker, at);
      case PipeStatus::kDone: break;
    }
    json message = json::parse(line, nullptr, false);
    if (!message.is_object()) {
      worker->process.reset();
      fail(at, fmt::format("it wrote '{}' to its standard output, which is not a JSON object; only the protocol may go there",
                           line.substr(0, 200)));
    }
    return message;
  }

  void greet(Worker* worker) {
    if (!greets_) return;
    const double limit = options_.load_time_limit_s;
    const json hello = receive(worker, "", "importing it", real_clock().now() + limit, limit, "reward.load_time_limit");
    if (!hello.value("ready", false)) {
      worker->process.reset();
      fail("", last_lines(hello.value("error", "it did not start")));
    }
    batch_ = hello.value("batch", true);
  }

  void ask(Worker* worker, std::span<const RewardRequest> requests, RewardValue* values) const {
    const std::string at = where(requests);
    if (!worker->process) {  // it was ended after an error
      worker->process = std::make_unique<Subprocess>(program_);
      if (greets_)
        receive(worker, at, "importing it", real_clock().now() + options_.load_time_limit_s, options_.load_time_limit_s,
                "reward.load_time_limit");
    }
    const double limit = options_.time_limit_s, deadline = real_clock().now() + limit;
    const int64_t id = worker->next_id++;
    switch (worker->process->write_line(request_line(id, requests), limit)) {
      case PipeStatus::kTimeout: fail_time(worker, at, "it", limit, "reward.timeout");
      case PipeStatus::kClosed: fail_gone(worker, at);
      case PipeStatus::kDone: break;
    }
    const json reply = receive(worker, at, "it", deadline, limit, "reward.timeout");
    if (reply.value("id", json()) != id) {
      worker->process.reset();
      fail(at, fmt::format("it answered with id {} to request {}", dump(reply.value("id", json())), id));
    }
    if (const auto error = reply.find("error"); error != reply.end() && !error->is_null()) {
      const json row = reply.value("row", json());
      const bool named = row.is_number_unsigned() && row.get<uint64_t>() < requests.size();
      fail(named ? where(requests[row.get<uint64_t>()]) : at,
           last_lines(error->is_string() ? error->get<std::string>() : dump(*error)));
    }
    const json scores = reply.value("scores", json());
    if (!scores.is_array()) fail(at, fmt::format("its answer has no list 'scores': {}", dump(reply).substr(0, 200)));
    if (scores.size() != requests.size())
      fail(at, fmt::format("it gave {} values for {} completions", scores.size(), requests.size()));
    for (size_t i = 0; i < requests.size(); ++i) {
      auto value = reward_value(scores[i]);
      if (!value) fail(where(requests[i]), fmt::format("it gave {}, not a number", dump(scores[i]).substr(0, 200)));
      values[i] = std::move(*value);
    }
  }

  std::string name_, label_;
  SubprocessOptions program_;
  bool greets_;
  bool batch_ = true;
  RewardProcessOptions options_;
  std::vector<Worker> workers_;
};

std::string neighbours(const std::filesystem::path& path) {
  std::vector<std::string> names;
  std::error_code error;
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (at->path().extension() == ".py") names.push_back(at->path().filename().string());
  if (error) return "its folder cannot be read either";
  std::sort(names.begin(), names.end());
  if (names.size() > 20) names.resize(20);
  return names.empty() ? "its folder holds no .py file" : fmt::format("its folder holds {}", fmt::join(names, ", "));
}

}  // namespace

std::unique_ptr<RewardFunction> make_python_reward(const std::string& path, const std::string& function,
                                                   const RewardProcessOptions& options) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    throw FileError(path, "", fmt::format("no such reward file (reward.funcs); {}", neighbours(path)));
  const std::string name = function.empty() ? "compute_score" : function;
  SubprocessOptions program;
  program.argv = {options.python, "-u", "-c", std::string(reward_adapter_source()), path, name};
  // Sets and dicts of strings iterate in the same order in every run, so that a run can be repeated.
  if (std::getenv("PYTHONHASHSEED") == nullptr) program.environment = {{"PYTHONHASHSEED", "0"}};
  return std::make_unique<ProcessReward>(name, path + ":" + name, std::move(program), true, options);
}

std::unique_ptr<RewardFunction> make_command_reward(const std::string& name, const std::vector<std::string>& command,
                                                    const RewardProcessOptions& options) {
  if (command.empty()) throw UsageError("reward.command is empty: it needs a program and its arguments");
  SubprocessOptions program;
  program.argv = command;
  return std::make_unique<ProcessReward>(name, fmt::format("command '{}'", fmt::join(command, " ")), std::move(program), false,
                                         options);
}

}  // namespace weft
