#include "weft/text/added_tokens.h"

#include <algorithm>
#include <unordered_map>

#include "weft/base/error.h"
#include "weft/text/unicode.h"

namespace weft::tok {
namespace {

// Where the last character of `text` (not empty) begins.
size_t last_character(std::string_view text) {
  size_t pos = text.size() - 1;
  while (pos > 0 && (static_cast<uint8_t>(text[pos]) & 0xC0) == 0x80) --pos;
  return pos;
}

bool ends_with_word(std::string_view text) {
  return !text.empty() && is_word_character(utf8_step(text, static_cast<int64_t>(last_character(text))).value);
}

bool starts_with_word(std::string_view text) { return !text.empty() && is_word_character(utf8_step(text, 0).value); }

// Size of `text` without the white space at its end, not looking further back than `floor`.
size_t without_space_at_end(std::string_view text, size_t floor) {
  while (text.size() > floor) {
    const size_t pos = last_character(text);
    if (!is_white_space(utf8_step(text, static_cast<int64_t>(pos)).value)) break;
    text = text.substr(0, pos);
  }
  return text.size();
}

size_t space_at_start(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    const Utf8Step step = utf8_step(text, static_cast<int64_t>(pos));
    if (!is_white_space(step.value)) break;
    pos += static_cast<size_t>(step.size);
  }
  return pos;
}

}  // namespace

void AddedTokens::Trie::add(std::string_view content, int64_t token) {
  int32_t node = 0;
  for (const char c : content) {
    const auto byte = static_cast<uint8_t>(c);
    auto& children = nodes[static_cast<size_t>(node)].children;
    const auto it = std::find_if(children.begin(), children.end(), [&](const auto& child) { return child.first == byte; });
    if (it != children.end()) {
      node = it->second;
      continue;
    }
    const auto fresh = static_cast<int32_t>(nodes.size());
    children.emplace_back(byte, fresh);
    if (node == 0) roots[byte] = fresh;
    nodes.emplace_back();
    node = fresh;
  }
  // Of two tokens with the same text the first one counts.
  if (nodes[static_cast<size_t>(node)].token < 0) nodes[static_cast<size_t>(node)].token = token;
}

int64_t AddedTokens::Trie::longest(std::string_view text) const {
  int32_t node = roots[static_cast<uint8_t>(text[0])];
  int64_t found = -1;
  for (size_t i = 1; node != 0; ++i) {
    const Node& here = nodes[static_cast<size_t>(node)];
    if (here.token >= 0) found = here.token;
    if (i >= text.size()) break;
    const auto byte = static_cast<uint8_t>(text[i]);
    const auto it =
        std::find_if(here.children.begin(), here.children.end(), [&](const auto& child) { return child.first == byte; });
    node = it != here.children.end() ? it->second : 0;
  }
  return found;
}

AddedTokens AddedTokens::parse(const JsonNode& list, const Bpe& model, const Normalizer& normalizer) {
  AddedTokens added;
  std::unordered_map<std::string, size_t> seen;
  int64_t last_id = -1;  // the largest id of an added token so far
  for (int64_t i = 0; i < list.size(); ++i) {
    const JsonNode node = list.item(i);
    AddedToken token;
    token.content = node.at("content").string();
    if (token.content.empty()) continue;
    if (static_cast<int64_t>(token.content.size()) > kMaxContent)
      node.fail(fmt::format("content of {} bytes, more than {}", token.content.size(), kMaxContent));
    node.at("id").integer(0, kMaxTokenId);
    token.single_word = node.boolean_or("single_word", false);
    token.lstrip = node.boolean_or("lstrip", false);
    token.rstrip = node.boolean_or("rstrip", false);
    token.special = node.boolean_or("special", false);
    token.normalized = node.boolean_or("normalized", !token.special);
    try {
      token.searched = token.normalized ? normalizer.apply(token.content) : token.content;
    } catch (const ValueError& e) {
      node.fail(e.what());
    }
    if (static_cast<int64_t>(token.searched.size()) > kMaxContent)
      node.fail(fmt::format("normalised content of {} bytes, more than {}", token.searched.size(), kMaxContent));
    const auto [first, fresh] = seen.emplace(token.content, added.tokens_.size());
    if (!fresh) {
      const AddedToken& other = added.tokens_[first->second];
      token.id = other.id;
      if (token != other) node.fail(fmt::format("token \"{}\" is there twice, with other flags", token.content));
      continue;
    }
    if (const auto id = model.token_id(token.content)) {
      token.id = *id;
    } else {
      const int64_t next_id = std::max(model.entry_count(), last_id + 1);
      if (next_id > kMaxTokenId || model.tokens().contains(static_cast<int32_t>(next_id))) {
        node.fail(
            fmt::format("\"{}\" would get the id {}, which the model's vocabulary uses (it has holes)", token.content, next_id));
      }
      token.id = static_cast<int32_t>(next_id);
    }
    last_id = std::max<int64_t>(last_id, token.id);
    if (!token.searched.empty())
      added.tries_[token.normalized ? 1 : 0].add(token.searched, static_cast<int64_t>(added.tokens_.size()));
    added.tokens_.push_back(std::move(token));
  }
  return added;
}

std::vector<Segment> AddedTokens::split(std::string_view text, bool normalized_pass) const {
  const Trie& trie = tries_[normalized_pass ? 1 : 0];
  std::vector<Segment> segments;
  size_t done = 0;
  for (size_t pos = 0; pos < text.size();) {
    const int64_t index = trie.longest(text.substr(pos));
    if (index < 0) {
      ++pos;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    size_t begin = pos;
    size_t end = pos + token.searched.size();
    pos = end;
    if (token.single_word && (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) continue;
    if (token.lstrip && begin > done) begin = without_space_at_end(text.substr(0, begin), done);
    if (token.rstrip) end += space_at_start(text.substr(end));
    if (done < begin) segments.push_back({-1, text.substr(done, begin - done)});
    // What an earlier token stripped may hold this one, and text goes on behind this one.
    segments.push_back({token.id, text.substr(begin, end - begin)});
    done = end;
  }
  if (done < text.size()) segments.push_back({-1, text.substr(done)});
  return segments;
}

}  // namespace weft::tok
