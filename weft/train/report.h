#pragma once
// RUN/report.html from what lies in a run directory: metrics.jsonl, recipe.toml (the resolved recipe) and samples/STEP.jsonl,
// each optional except the first. One self-contained file: no network, no library, plots as SVG, light and dark, readable on a
// phone. Samples: verl's fields (input, output, gts, score, step) and, where present, rewards {name: value}, finish_reason,
// tokens (texts) with rollout_log_probs of the same length, by which tokens are coloured. All text is escaped: prompts and
// responses are hostile. Errors: FileError for malformed files, SystemError when the report cannot be written (the old one
// stays). Deterministic.

#include <string>

namespace weft {

void write_report(const std::string& run_dir);

// The page's text, without writing it.
std::string render_report(const std::string& run_dir);

}  // namespace weft
