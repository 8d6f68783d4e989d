#include "weft/text/normalizer.h"

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
  const size_t limit = text.size() * 64 + (size_t{1} << 20);
  std::string out;
  out.reserve(text.size());
  size_t done = 0;
  for (const auto& [begin, end] : pattern.matches(text)) {
    out.append(text.substr(done, static_cast<size_t>(begin) - done));
    out.append(content);
    if (out.size() > limit) {
      throw ValueError(fmt::format("replacing makes more than {} bytes of a text of {}: the tokenizer's Replace is refused",
                                   limit, text.size()));
    }
    done = static_cast<size_t>(end);
  }
  out.append(text.substr(done));
  return out;
}

Normalizer Normalizer::parse(const JsonNode& node) {
  Normalizer normalizer;
  normalizer.add(node, 0);
  return normalizer;
}

void Normalizer::add(const JsonNode& node, int depth) {
  const std::string type = node.type();
  if (type == "Sequence") {
    if (depth >= kMaxSequenceDepth) node.fail(fmt::format("sequences nested deeper than {}", kMaxSequenceDepth));
    const JsonNode list = node.at("normalizers");
    for (int64_t i = 0; i < list.size(); ++i) add(list.item(i), depth + 1);
    return;
  }
  Step step{};
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    step.kind = Step::Kind::kForm;
    step.form = type == "NFC"    ? NormalForm::kNfc
                : type == "NFD"  ? NormalForm::kNfd
                : type == "NFKC" ? NormalForm::kNfkc
                                 : NormalForm::kNfkd;
  } else if (type == "Prepend") {
    step.kind = Step::Kind::kPrepend;
    step.content = node.at("prepend").string();
  } else if (type == "Replace") {
    step.kind = Step::Kind::kReplace;
    step.pattern = Pattern::parse(node.at("pattern"));
    step.content = node.at("content").string();
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
