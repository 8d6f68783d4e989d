#include "weft/text/normalizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"

namespace weft::tok {

Pattern Pattern::parse(const JsonNode& node) {
  Pattern pattern;
  if (const auto literal = node.find("String")) {
    pattern.literal_ = literal->string();
    if (pattern.literal_.empty()) literal->fail("an empty pattern");
    return pattern;
  }
  const auto regex = node.find("Regex");
  if (!regex) node.fail("expected {\"String\": ...} or {\"Regex\": ...}");
  try {
    pattern.regex_.emplace(regex->string());
  } catch (const ValueError& e) {
    regex->fail(e.what());
  }
  return pattern;
}

std::vector<Span> Pattern::matches(std::string_view text) const {
  return regex_ ? regex_->matches(text) : find_literal(text, literal_);
}

std::string replace_all(std::string_view text, const Pattern& pattern, std::string_view content) {
  std::string out;
  out.reserve(text.size());
  size_t done = 0;
  for (const auto& [begin, end] : pattern.matches(text)) {
    out.append(text.substr(done, static_cast<size_t>(begin) - done));
    out.append(content);
    done = static_cast<size_t>(end);
  }
  out.append(text.substr(done));
  return out;
}

void Growth::add(const JsonNode& node, int64_t factor) {
  total_ *= factor;
  if (total_ > kMaxGrowth) node.fail(fmt::format("the stages up to here can make a text more than {} times as long", kMaxGrowth));
}

void Growth::add_replace(const JsonNode& node, const Pattern& pattern, std::string_view content) {
  const auto size = static_cast<int64_t>(content.size());
  if (size > kMaxContent) node.fail(fmt::format("content of {} bytes, more than {}", size, kMaxContent));
  // A regular expression may match nothing, before every byte.
  if (pattern.literal() == nullptr) {
    add(node, size + 1);
  } else {
    const auto matched = static_cast<int64_t>(pattern.literal()->size());
    add(node, std::max<int64_t>(1, (size + matched - 1) / matched));
  }
}

Normalizer Normalizer::parse(const JsonNode& node) {
  Normalizer normalizer;
  Growth growth;
  normalizer.add(node, 0, growth);
  return normalizer;
}

void Normalizer::add(const JsonNode& node, int depth, Growth& growth) {
  const std::string type = node.type();
  if (type == "Sequence") {
    if (depth >= kMaxSequenceDepth) node.fail(fmt::format("sequences nested deeper than {}", kMaxSequenceDepth));
    const JsonNode list = node.at("normalizers");
    for (int64_t i = 0; i < list.size(); ++i) add(list.item(i), depth + 1, growth);
    return;
  }
  Step step{};
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    step.kind = Step::Kind::kForm;
    step.form = type == "NFC"    ? NormalForm::kNfc
                : type == "NFD"  ? NormalForm::kNfd
                : type == "NFKC" ? NormalForm::kNfkc
                                 : NormalForm::kNfkd;
    // The longest expansions in UTF-8: U+1D160 threefold, U+FDFA elevenfold.
    growth.add(node, type == "NFKC" || type == "NFKD" ? 11 : 3);
  } else if (type == "Prepend") {
    step.kind = Step::Kind::kPrepend;
    step.content = node.at("prepend").string();
    if (static_cast<int64_t>(step.content.size()) > kMaxContent)
      node.at("prepend").fail(fmt::format("more than {} bytes", kMaxContent));
  } else if (type == "Replace") {
    step.kind = Step::Kind::kReplace;
    step.pattern = Pattern::parse(node.at("pattern"));
    step.content = node.at("content").string();
    growth.add_replace(node, step.pattern, step.content);
  } else {
    node.at("type").fail(
        fmt::format("normalizer \"{}\" is not supported (supported: Sequence, NFC, NFD, NFKC, NFKD, Prepend, Replace)", type));
  }
  if (static_cast<int64_t>(steps_.size()) >= kMaxSteps) node.fail(fmt::format("more than {} normalizers", kMaxSteps));
  steps_.push_back(std::move(step));
}

std::string Normalizer::apply(std::string_view text) const {
  std::string out(text);
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Step::Kind::kForm: out = normalize(out, step.form); break;
      case Step::Kind::kPrepend:
        if (!out.empty()) out.insert(0, step.content);
        break;
      case Step::Kind::kReplace: out = replace_all(out, step.pattern, step.content); break;
    }
  }
  return out;
}

}  // namespace weft::tok
