#pragma once
// What is large of a sample - its routing trace, and the sets that its tokens were drawn from - stays on the rank that sampled it
// and travels to the ranks that will read it, once. All else of a sample is on every rank: advantages and mini-batches need it.

#include <cstdint>
#include <vector>

#include "weft/train/generate.h"
#include "weft/train/job.h"

namespace weft {

// Afterwards this rank has the details of the samples with wanted[i] (and of those that it had). Each comes from one rank that
// has it; those who have it take turns. Collective over the job; `samples` are the same on all ranks but for their details.
void fetch_details(const Job& job, std::vector<ScoredSample>& samples, const std::vector<uint8_t>& wanted);

}  // namespace weft
