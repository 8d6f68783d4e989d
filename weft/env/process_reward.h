#pragma once
// Rewards that run outside: the user's Python function in a pool of Python processes, or any program that speaks the same
// JSON lines. Results come in order whatever the pool does. A function that takes whole batches (TRL's signature) gets the
// batch split into as many parts as there are processes, samples of one row never apart; one that takes a single completion
// (verl's) gets completions one by one, whichever process is free. The time limit counts from sending a part to its answer.
//
// Protocol (one JSON text a line, UTF-8). We write
//   {"id": 7, "rows": [{"prompt": "...", "messages": [...] or null, "completion": "...", "prompt_ids": [...],
//     "completion_ids": [...], "ground_truth": any or null, "data_source": "...", "row_number": 12, "sample_index": 0,
//     "fields": {the row of the data file}}]}
// and read {"id": 7, "scores": [1.0, null, {"score": 0.5, "acc": 1}]}, one score per row in order: a number, null (does not
// apply), "nan", "inf", "-inf", or an object with "score" and further figures; or {"id": 7, "error": "text", "row": index in
// rows or null}. End of file on its input ends the program. What it writes to standard error is shown as messages.
//
// Errors: FileError (no such file), SystemError (the program cannot be started), RewardError for the rest.

#include <memory>
#include <string>
#include <vector>

#include "weft/base/error.h"
#include "weft/env/reward.h"

namespace weft {

// A reward that did not do its work: raised an exception, took too long, crashed, answered with a wrong count or no number.
// Names the row and shows the last lines of the traceback.
class RewardError : public Error {
 public:
  explicit RewardError(std::string message) : Error(std::move(message)) {}
};

struct RewardProcessOptions {
  std::string python = "python3";
  int64_t processes = 2;           // at least 1
  double time_limit_s = 60;        // for one part of a batch, or one completion
  double load_time_limit_s = 120;  // until the Python file is imported
};

// `function` of the Python file `path`, TRL's or verl's signature by its parameter names; without a name verl's
// "compute_score". Starts the processes and waits until the file is imported.
std::unique_ptr<RewardFunction> make_python_reward(const std::string& path, const std::string& function,
                                                   const RewardProcessOptions& options);

// A program with arguments, as the recipe's `command`; `name` is for metrics and messages.
std::unique_ptr<RewardFunction> make_command_reward(const std::string& name, const std::vector<std::string>& command,
                                                    const RewardProcessOptions& options);

}  // namespace weft
