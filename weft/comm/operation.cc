#include "weft/comm/operation.h"

#include <algorithm>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/comm/group_key.h"

namespace weft {

std::string_view op_kind_name(OpKind kind) {
  switch (kind) {
    case OpKind::kAllGather: return "all_gather";
    case OpKind::kReduceScatter: return "reduce_scatter";
    case OpKind::kAllReduce: return "all_reduce";
    case OpKind::kAllToAll: return "all_to_all";
    case OpKind::kBroadcast: return "broadcast";
    case OpKind::kGather: return "gather";
    case OpKind::kScatter: return "scatter";
    case OpKind::kSend: return "send";
    case OpKind::kRecv: return "recv";
    case OpKind::kBarrier: return "barrier";
    case OpKind::kSharedGather: return "all_gather_shared";
    case OpKind::kExchange: return "exchange";
  }
  return "unknown";  // a foreign process's record may hold anything
}

std::string op_text(const Op& op) {
  return fmt::format("{} #{} of '{}' ({} bytes)", op_kind_name(op.kind), op.sequence, op.group->axis, op.bytes);
}

std::string next_group_key(std::map<std::string, int>* made, const std::vector<int>& ranks, const std::string& axis) {
  const std::string kind = fmt::format("{} [{}]", axis, fmt::join(ranks, ","));
  return fmt::format("{} #{}", kind, (*made)[kind]++);
}

void fill_group(Group* group, const std::string& key, const std::vector<int>& ranks, const std::string& axis, int world_rank) {
  group->axis = axis;
  group->ranks = ranks;
  const auto found = std::find(ranks.begin(), ranks.end(), world_rank);
  WEFT_CHECK(found != ranks.end(), "rank {} is not in group {}", world_rank, key);
  group->me = static_cast<int>(found - ranks.begin());
  uint64_t id = 0;
  for (const char c : key) id = hash_combine(id, static_cast<unsigned char>(c));
  group->id = id | 1;  // never 0
  group->next_sent.assign(ranks.size(), 0);
  group->next_received.assign(ranks.size(), 0);
}

}  // namespace weft
