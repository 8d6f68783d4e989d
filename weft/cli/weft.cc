#include "weft/cli/weft.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <new>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/base/this_rank.h"
#include "weft/base/threads.h"
#include "weft/cli/command.h"
#include "weft/comm/launch.h"
#include "weft/nn/block_allocator.h"

namespace weft {
namespace {

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {train_command(),  sft_command(),      generate_command(), eval_command(),
                                           check_command(),  tokenize_command(), plan_command(),     inspect_command(),
                                           convert_command(), report_command(), doctor_command()};
  return all;
}

std::string overview() {
  std::string out =
      "weft post-trains language models with reinforcement learning.\n\nweft COMMAND ... (weft COMMAND --help explains each)\n\n";
  for (const Command& c : commands()) out += fmt::format("  {:<10} {}\n", c.name, c.summary);
  return out +
         "\nExit codes: 0 done, 1 failed, 2 bad command or recipe, 75 stopped by a signal after a checkpoint, 76 lost a peer.\n";
}

int run(const std::vector<std::string>& words, const Registry& registry) {
  if (words.empty()) throw UsageError(overview());
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    std::cout << overview();
    return kExitDone;
  }
  if (words[0] == "--version") {
    std::cout << "weft 0.1.0\n";
    return kExitDone;
  }
  const auto it = std::find_if(commands().begin(), commands().end(), [&](const Command& c) { return c.name == words[0]; });
  if (it == commands().end()) {
    const Command* near = nullptr;
    int64_t distance = 4;
    for (const Command& c : commands())
      if (const int64_t d = edit_distance(words[0], c.name); d < distance) distance = d, near = &c;
    throw UsageError(fmt::format("unknown command '{}'{}", words[0],
                                 near ? "; did you mean '" + near->name + "'?" : "; weft --help lists them"));
  }
  const std::vector<std::string> rest(words.begin() + 1, words.end());
  if (std::find(rest.begin(), rest.end(), "--help") != rest.end() || std::find(rest.begin(), rest.end(), "-h") != rest.end()) {
    std::cout << help_text(*it);
    return kExitDone;
  }
  return it->run(parse_arguments(*it, rest), registry);
}

}  // namespace

int main(int argc, char** argv, const Registry& registry) {
  set_denormals_flushed();
  struct CloseLogs {
    ~CloseLogs() { close_rank_logs(); }
  } close_logs;
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit is then an error of the write that hits it, as a full disk is
  nn::use_block_cache_for_tensors();
  at::set_num_threads(1);  // ATen does little here, and its sums change with its threads
  try {
    if (const LaunchWorld launched = launch_world(); launched.mpi && launched.size != 1) set_process_rank(launched.rank);
    const int code = run(std::vector<std::string>(argv + std::min(argc, 1), argv + argc), registry);
    std::cout.flush();
    if (!std::cout) throw SystemError("standard output could not be written (a full disk?): the answer is not complete");
    return code;
  } catch (const StoppedError& e) {  // of all ranks alike
    std::cout.flush();
    if (this_rank() > 0)
      write_log_file(this_rank(), LogLevel::kError, e.what());
    else
      log_error("{}", e.what());
    return e.exit_code();
  } catch (const Error& e) {
    std::cout.flush();
    if (!error_was_told(e.what())) log_error("{}", e.what());
    return e.exit_code();
  } catch (const std::filesystem::filesystem_error& e) {
    if (!error_was_told(e.what())) log_error("{}: {}", e.path1().string(), e.code().message());
  } catch (const std::bad_alloc&) {
    log_error("out of memory");
  } catch (const std::exception& e) {
    if (!error_was_told(e.what()))
      log_error("internal error: {}. This is a bug of weft: please report it with the command that you ran", e.what());
  }
  return kExitFailed;
}

}  // namespace weft
