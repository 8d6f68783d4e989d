#include <filesystem>
#include <iostream>

#include "weft/base/error.h"
#include "weft/cli/command.h"
#include "weft/train/report.h"

namespace weft {

Command report_command() {
  return {"report",
          "Writes report.html of a run (also one that is under way) from its metrics and samples.",
          "RUN_DIR",
          {},
          "weft report runs/demo",
          1,
          1,
          [](const Arguments& args, const Registry&) -> int {
            const std::string& dir = args.positional[0];
            if (!std::filesystem::exists(dir + "/metrics.jsonl")) throw FileError(dir, "metrics.jsonl", "not there: is this a run directory?");
            write_report(dir);
            std::cout << dir << "/report.html\n";
            return kExitDone;
          }};
}

}  // namespace weft
