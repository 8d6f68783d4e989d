#include "weft/text/decoder.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "weft/base/error.h"
#include "weft/text/unicode.h"

namespace weft::tok {
namespace {

bool is_one_character(std::string_view text) { return !text.empty() && utf8_size(text[0]) == static_cast<int>(text.size()); }

std::optional<int> hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

// The byte of a token <0xAB>.
std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const auto high = hex_digit(token[3]);
  const auto low = hex_digit(token[4]);
  if (!high || !low) return std::nullopt;
  return static_cast<char>(*high * 16 + *low);
}

// Appends the token's bytes when all its characters are in the byte alphabet, else its UTF-8.
void append_byte_level(std::string_view token, std::string& bytes) {
  const size_t before = bytes.size();
  for (int64_t pos = 0; pos < static_cast<int64_t>(token.size());) {
    const Utf8Step step = utf8_step(token, pos);
    const auto byte = step.state == Utf8State::kValid ? alphabet_to_byte(step.value) : std::nullopt;
    if (!byte) {
      bytes.resize(before);
      bytes += token;
      return;
    }
    bytes.push_back(static_cast<char>(*byte));
    pos += step.size;
  }
}

std::string strip(std::string_view text, const std::string& content, int64_t start, int64_t stop) {
  for (int64_t i = 0; i < start && text.starts_with(content); ++i) text.remove_prefix(content.size());
  for (int64_t i = 0; i < stop && text.ends_with(content); ++i) text.remove_suffix(content.size());
  return std::string(text);
}

}  // namespace

Decoder::Decoder() { stages_.emplace_back(); }

Decoder Decoder::parse(const JsonNode& node) {
  Decoder decoder;
  decoder.stages_.clear();
  Growth growth;
  decoder.add(node, 0, growth);
  bool fused = false;
  for (Stage& stage : decoder.stages_) {
    stage.fused = fused;
    const bool chunks =
        stage.kind == Kind::kFuse || stage.kind == Kind::kStrip || stage.kind == Kind::kMetaspace ||
        (stage.kind == Kind::kReplace && stage.pattern.literal() != nullptr && is_one_character(*stage.pattern.literal()));
    stage.whole = fused && !chunks;
    fused = fused || stage.kind == Kind::kFuse || stage.kind == Kind::kByteLevel;
  }
  return decoder;
}

void Decoder::add(const JsonNode& node, int depth, Growth& growth) {
  const std::string type = node.type();
  if (type == "Sequence") {
    if (depth >= kMaxSequenceDepth) node.fail(fmt::format("sequences nested deeper than {}", kMaxSequenceDepth));
    const JsonNode list = node.at("decoders");
    for (int64_t i = 0; i < list.size(); ++i) add(list.item(i), depth + 1, growth);
    return;
  }
  Stage stage;
  const auto one_character = [&](const char* key) {
    const std::string text = node.at(key).string();
    if (!is_one_character(text)) node.at(key).fail(fmt::format("expected one character, found \"{}\"", text));
    return text;
  };
  if (type == "ByteLevel") {
    stage.kind = Kind::kByteLevel;
  } else if (type == "Replace") {
    stage.kind = Kind::kReplace;
    stage.pattern = Pattern::parse(node.at("pattern"));
    stage.content = node.at("content").string();
    growth.add_replace(node, stage.pattern, stage.content);
  } else if (type == "ByteFallback") {
    stage.kind = Kind::kByteFallback;
  } else if (type == "Fuse") {
    stage.kind = Kind::kFuse;
  } else if (type == "Strip") {
    stage.kind = Kind::kStrip;
    stage.content = one_character("content");
    stage.start = node.at("start").integer(0, INT32_MAX);
    stage.stop = node.at("stop").integer(0, INT32_MAX);
  } else if (type == "Metaspace") {
    stage.kind = Kind::kMetaspace;
    stage.content = one_character("replacement");
    stage.drop_first =
        node.string_or("prepend_scheme", node.boolean_or("add_prefix_space", true) ? "always" : "never") != "never";
  } else {
    node.at("type").fail(fmt::format(
        "decoder \"{}\" is not supported (supported: Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace)", type));
  }
  if (static_cast<int64_t>(stages_.size()) >= kMaxSteps) node.fail(fmt::format("more than {} decoders", kMaxSteps));
  stages_.push_back(std::move(stage));
}

std::string DecoderRun::transform(const Decoder::Stage& stage, std::string_view token, bool first) const {
  switch (stage.kind) {
    case Decoder::Kind::kReplace: return replace_all(token, stage.pattern, stage.content);
    case Decoder::Kind::kStrip: return strip(token, stage.content, stage.start, stage.stop);
    case Decoder::Kind::kMetaspace: {
      std::string out;
      for (size_t pos = 0; pos < token.size();) {
        if (!token.substr(pos).starts_with(stage.content)) {
          out.push_back(token[pos++]);
          continue;
        }
        if (!first || !stage.drop_first) out.push_back(' ');
        pos += stage.content.size();
      }
      return out;
    }
    default: return std::string(token);
  }
}

void DecoderRun::feed(size_t index, std::string_view token, std::string& out) {
  if (index == states_.size()) {
    out += token;
    return;
  }
  const Decoder::Stage& stage = decoder_->stages_[index];
  State& state = states_[index];
  if (stage.whole) {
    state.held += token;
    return;
  }
  const bool first = state.count == 0 || stage.fused;
  switch (stage.kind) {
    case Decoder::Kind::kJoin:
      if (state.count++ > 0) feed(index + 1, " ", out);
      feed(index + 1, token, out);
      return;
    case Decoder::Kind::kByteLevel: {
      append_byte_level(token, state.held);
      std::string text;
      state.held.erase(0, static_cast<size_t>(append_lossy(state.held, false, text)));
      feed(index + 1, text, out);
      return;
    }
    case Decoder::Kind::kByteFallback:
      if (const auto byte = byte_of(token)) {
        state.held.push_back(*byte);
        return;
      }
      end_byte_run(index, out);
      feed(index + 1, token, out);
      return;
    case Decoder::Kind::kFuse: feed(index + 1, token, out); return;
    case Decoder::Kind::kStrip:
      if (stage.fused) {
        strip_chunk(index, token, out);
        return;
      }
      break;
    case Decoder::Kind::kReplace:
    case Decoder::Kind::kMetaspace: break;
  }
  ++state.count;
  feed(index + 1, transform(stage, token, first), out);
}

void DecoderRun::end_byte_run(size_t index, std::string& out) {
  std::string bytes;
  bytes.swap(states_[index].held);
  if (bytes.empty()) return;
  if (!find_invalid_utf8(bytes)) {
    feed(index + 1, bytes, out);
    return;
  }
  // One per byte, the good characters of the run included, and each its own token.
  std::string replacement;
  append_utf8(kReplacement, replacement);
  for (size_t i = 0; i < bytes.size(); ++i) feed(index + 1, replacement, out);
}

void DecoderRun::strip_chunk(size_t index, std::string_view chunk, std::string& out) {
  const Decoder::Stage& stage = decoder_->stages_[index];
  State& state = states_[index];
  while (state.count < stage.start && !chunk.empty()) {
    if (!chunk.starts_with(stage.content)) {
      state.count = stage.start;
      break;
    }
    chunk.remove_prefix(stage.content.size());
    ++state.count;
  }
  if (stage.stop == 0) {
    feed(index + 1, chunk, out);
    return;
  }
  // The last `stop` of the characters at the end may have to go.
  size_t tail = 0;
  while (tail < chunk.size() && chunk.substr(0, chunk.size() - tail).ends_with(stage.content)) tail += stage.content.size();
  std::string ready;
  if (tail == chunk.size()) {
    state.held += chunk;
  } else {
    ready.swap(state.held);
    ready += chunk.substr(0, chunk.size() - tail);
    state.held = chunk.substr(chunk.size() - tail);
  }
  const size_t most = static_cast<size_t>(stage.stop) * stage.content.size();
  if (state.held.size() > most) {
    ready += state.held.substr(most);
    state.held.resize(most);
  }
  feed(index + 1, ready, out);
}

void DecoderRun::finish(std::string& out) {
  for (size_t index = 0; index < states_.size(); ++index) {
    const Decoder::Stage& stage = decoder_->stages_[index];
    std::string held = std::move(states_[index].held);
    states_[index].held.clear();
    if (stage.whole && stage.kind == Decoder::Kind::kByteLevel) {
      std::string bytes;
      append_byte_level(held, bytes);
      std::string text;
      append_lossy(bytes, true, text);
      feed(index + 1, text, out);
    } else if (stage.whole && stage.kind == Decoder::Kind::kByteFallback) {
      if (const auto byte = byte_of(held)) {
        states_[index].held.assign(1, *byte);
        end_byte_run(index, out);
      } else {
        feed(index + 1, held, out);
      }
    } else if (stage.whole) {
      feed(index + 1, transform(stage, held, true), out);
    } else if (stage.kind == Decoder::Kind::kByteLevel) {
      std::string text;
      append_lossy(held, true, text);
      feed(index + 1, text, out);
    } else if (stage.kind == Decoder::Kind::kByteFallback) {
      states_[index].held = std::move(held);
      end_byte_run(index, out);
    }
    // Strip: what it still holds is what it takes.
  }
  for (State& state : states_) state.count = 0;
}

}  // namespace weft::tok
