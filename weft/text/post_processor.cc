#include "weft/text/post_processor.h"

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/text/bpe.h"
#include "weft/text/normalizer.h"

namespace weft::tok {
namespace {

constexpr int64_t kMaxFrame = 1024;  // ids on one side

void add_template(const JsonNode& node, SpecialFrame& frame) {
  const JsonNode single = node.at("single");
  SpecialFrame added;
  bool seen_text = false;
  for (int64_t i = 0; i < single.size(); ++i) {
    const JsonNode part = single.item(i);
    if (const auto sequence = part.find("Sequence")) {
      if (sequence->at("id").string() != "A") sequence->at("id").fail("a template of one text has the sequence A only");
      if (seen_text) sequence->fail("the text twice is not supported");
      seen_text = true;
      continue;
    }
    const auto special = part.find("SpecialToken");
    if (!special) part.fail("expected {\"Sequence\": ...} or {\"SpecialToken\": ...}");
    const JsonNode ids = node.at("special_tokens").at(special->at("id").string()).at("ids");
    std::vector<int32_t>& side = seen_text ? added.after : added.before;
    for (int64_t j = 0; j < ids.size(); ++j) side.push_back(static_cast<int32_t>(ids.item(j).integer(0, kMaxTokenId)));
    if (static_cast<int64_t>(side.size()) > kMaxFrame) part.fail(fmt::format("more than {} special ids", kMaxFrame));
  }
  if (!seen_text) single.fail("the sequence A is missing");
  frame.before.insert(frame.before.begin(), added.before.begin(), added.before.end());
  frame.after.insert(frame.after.end(), added.after.begin(), added.after.end());
}

void add(const JsonNode& node, int depth, SpecialFrame& frame) {
  const std::string type = node.type();
  if (type == "Sequence") {
    if (depth >= kMaxSequenceDepth) node.fail(fmt::format("sequences nested deeper than {}", kMaxSequenceDepth));
    const JsonNode list = node.at("processors");
    if (list.size() > kMaxSteps) list.fail(fmt::format("more than {} post-processors", kMaxSteps));
    for (int64_t i = 0; i < list.size(); ++i) add(list.item(i), depth + 1, frame);
  } else if (type == "TemplateProcessing") {
    add_template(node, frame);
  } else if (type != "ByteLevel") {
    node.at("type").fail(
        fmt::format("post-processor \"{}\" is not supported (supported: Sequence, ByteLevel, TemplateProcessing)", type));
  }
}

}  // namespace

SpecialFrame parse_post_processor(const JsonNode& node) {
  SpecialFrame frame;
  add(node, 0, frame);
  return frame;
}

}  // namespace weft::tok
