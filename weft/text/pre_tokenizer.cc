#include "weft/text/pre_tokenizer.h"

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/text/unicode.h"

namespace weft::tok {
namespace {

// The pattern that ByteLevel with use_regex stands for.
constexpr const char* kByteLevelPattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::vector<Span> digit_matches(std::string_view text) {
  std::vector<Span> found;
  for (int64_t pos = 0; pos < static_cast<int64_t>(text.size());) {
    const Utf8Step step = utf8_step(text, pos);
    if (is_numeric(step.value)) found.emplace_back(pos, pos + step.size);
    pos += step.size;
  }
  return found;
}

}  // namespace

PreTokenizer PreTokenizer::parse(const JsonNode& node) {
  PreTokenizer pre_tokenizer;
  pre_tokenizer.add(node, 0);
  return pre_tokenizer;
}

void PreTokenizer::add(const JsonNode& node, int depth) {
  const std::string type = node.type();
  if (type == "Sequence") {
    if (depth >= kMaxSequenceDepth) node.fail(fmt::format("sequences nested deeper than {}", kMaxSequenceDepth));
    const JsonNode list = node.at("pretokenizers");
    for (int64_t i = 0; i < list.size(); ++i) add(list.item(i), depth + 1);
    return;
  }
  Step step;
  if (type == "Split") {
    step = parse_split(node);
  } else if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
    step.add_prefix_space = node.boolean_or("add_prefix_space", true);
    if (node.boolean_or("use_regex", true)) step.regex.emplace(kByteLevelPattern);
  } else if (type == "Digits") {
    step.kind = Kind::kDigits;
    step.individual_digits = node.boolean_or("individual_digits", false);
  } else if (type == "Metaspace") {
    step = parse_metaspace(node);
  } else {
    node.at("type").fail(
        fmt::format("pre-tokenizer \"{}\" is not supported (supported: Sequence, Split, ByteLevel, Digits, Metaspace)", type));
  }
  if (static_cast<int64_t>(steps_.size()) >= kMaxSteps) node.fail(fmt::format("more than {} pre-tokenizers", kMaxSteps));
  steps_.push_back(std::move(step));
}

PreTokenizer::Step PreTokenizer::parse_split(const JsonNode& node) {
  Step step;
  step.kind = Kind::kSplit;
  step.pattern = Pattern::parse(node.at("pattern"));
  step.invert = node.boolean_or("invert", false);
  const std::string behavior = node.at("behavior").string();
  if (behavior == "Removed") {
    step.behavior = Behavior::kRemoved;
  } else if (behavior == "Isolated") {
    step.behavior = Behavior::kIsolated;
  } else if (behavior == "MergedWithPrevious") {
    step.behavior = Behavior::kMergedWithPrevious;
  } else if (behavior == "MergedWithNext") {
    step.behavior = Behavior::kMergedWithNext;
  } else if (behavior == "Contiguous") {
    step.behavior = Behavior::kContiguous;
  } else {
    node.at("behavior")
        .fail(fmt::format("\"{}\" is none of Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous", behavior));
  }
  return step;
}

PreTokenizer::Step PreTokenizer::parse_metaspace(const JsonNode& node) {
  Step step;
  step.kind = Kind::kMetaspace;
  step.replacement = node.at("replacement").string();
  if (step.replacement.empty() || utf8_size(step.replacement[0]) != static_cast<int>(step.replacement.size())) {
    node.at("replacement").fail(fmt::format("expected one character, found \"{}\"", step.replacement));
  }
  step.split = node.boolean_or("split", true);
  // Files older than prepend_scheme say add_prefix_space.
  const std::string scheme = node.string_or("prepend_scheme", node.boolean_or("add_prefix_space", true) ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    node.at("prepend_scheme").fail(fmt::format("\"{}\" is none of always, first, never", scheme));
  }
  step.scheme = scheme == "always" ? Scheme::kAlways : scheme == "first" ? Scheme::kFirst : Scheme::kNever;
  return step;
}

std::vector<Piece> PreTokenizer::split(std::string_view text, bool at_start, std::deque<std::string>& arena) const {
  std::vector<Piece> pieces;
  if (!text.empty()) pieces.push_back({text, at_start});
  for (const Step& step : steps_) {
    std::vector<Piece> next;
    next.reserve(pieces.size());
    run(step, pieces, arena, next);
    pieces.swap(next);
  }
  return pieces;
}

void PreTokenizer::run(const Step& step, const std::vector<Piece>& in, std::deque<std::string>& arena, std::vector<Piece>& out) {
  switch (step.kind) {
    case Kind::kByteLevel: run_byte_level(step, in, arena, out); return;
    case Kind::kMetaspace: run_metaspace(step, in, arena, out); return;
    case Kind::kDigits:
      for (const Piece& piece : in) {
        cut(piece, digit_matches(piece.text), step.individual_digits ? Behavior::kIsolated : Behavior::kContiguous, false, out);
      }
      return;
    case Kind::kSplit:
      for (const Piece& piece : in) cut(piece, step.pattern.matches(piece.text), step.behavior, step.invert, out);
      return;
  }
}

void PreTokenizer::cut(const Piece& piece, const std::vector<Span>& matches, Behavior behavior, bool invert,
                       std::vector<Piece>& out) {
  struct Part {
    int64_t begin;
    int64_t end;
    bool match;
  };
  std::vector<Part> parts;
  parts.reserve(matches.size() * 2 + 1);
  int64_t done = 0;
  const auto size = static_cast<int64_t>(piece.text.size());
  for (const auto& [begin, end] : matches) {
    if (begin > done) parts.push_back({done, begin, invert});
    parts.push_back({begin, end, !invert});
    done = end;
  }
  if (done < size) parts.push_back({done, size, invert});

  std::vector<Part> joined;
  joined.reserve(parts.size());
  bool previous = false;
  switch (behavior) {
    case Behavior::kIsolated: joined = std::move(parts); break;
    case Behavior::kRemoved:
      for (const Part& part : parts) {
        if (!part.match) joined.push_back(part);
      }
      break;
    case Behavior::kContiguous:
      for (const Part& part : parts) {
        if (!joined.empty() && joined.back().match == part.match) {
          joined.back().end = part.end;
        } else {
          joined.push_back(part);
        }
      }
      break;
    case Behavior::kMergedWithPrevious:
      for (const Part& part : parts) {
        if (part.match && !previous && !joined.empty()) {
          joined.back().end = part.end;
        } else {
          joined.push_back(part);
        }
        previous = part.match;
      }
      break;
    case Behavior::kMergedWithNext:
      for (size_t i = 0; i < parts.size(); ++i) {
        // The last match of a row goes with what follows it.
        const bool merges = parts[i].match && i + 1 < parts.size() && !parts[i + 1].match;
        if (merges) parts[i + 1].begin = parts[i].begin;
        if (!merges) joined.push_back(parts[i]);
      }
      break;
  }
  for (const Part& part : joined) {
    if (part.begin == part.end) continue;
    out.push_back({piece.text.substr(static_cast<size_t>(part.begin), static_cast<size_t>(part.end - part.begin)),
                   piece.at_start && part.begin == 0});
  }
}

void PreTokenizer::run_byte_level(const Step& step, const std::vector<Piece>& in, std::deque<std::string>& arena,
                                  std::vector<Piece>& out) {
  std::vector<Piece> cuts;
  const std::vector<Piece>* pieces = &in;
  std::vector<Piece> prefixed;
  if (step.add_prefix_space) {
    prefixed.reserve(in.size());
    for (const Piece& piece : in) {
      prefixed.push_back(piece);
      if (piece.text.starts_with(' ')) continue;
      prefixed.back().text = arena.emplace_back(fmt::format(" {}", piece.text));
    }
    pieces = &prefixed;
  }
  if (step.regex) {
    for (const Piece& piece : *pieces) cut(piece, step.regex->matches(piece.text), Behavior::kIsolated, false, cuts);
    pieces = &cuts;
  }
  size_t bytes = 0;
  for (const Piece& piece : *pieces) bytes += piece.text.size();
  // One string for all pieces; the reservation keeps the views into it valid.
  std::string& written = arena.emplace_back();
  written.reserve(bytes * 2);
  for (const Piece& piece : *pieces) {
    const size_t begin = written.size();
    for (const char c : piece.text) written += byte_to_alphabet(static_cast<uint8_t>(c));
    out.push_back({std::string_view(written).substr(begin), piece.at_start});
  }
}

void PreTokenizer::run_metaspace(const Step& step, const std::vector<Piece>& in, std::deque<std::string>& arena,
                                 std::vector<Piece>& out) {
  for (const Piece& piece : in) {
    std::string& written = arena.emplace_back();
    written.reserve(piece.text.size() + step.replacement.size());
    const bool starts = piece.text.starts_with(' ') || piece.text.starts_with(step.replacement);
    if (!starts && (step.scheme == Scheme::kAlways || (step.scheme == Scheme::kFirst && piece.at_start)))
      written += step.replacement;
    for (const char c : piece.text) {
      if (c == ' ') {
        written += step.replacement;
      } else {
        written.push_back(c);
      }
    }
    const Piece whole{written, piece.at_start};
    if (step.split) {
      cut(whole, find_literal(written, step.replacement), Behavior::kMergedWithNext, false, out);
    } else {
      out.push_back(whole);
    }
  }
}

}  // namespace weft::tok
