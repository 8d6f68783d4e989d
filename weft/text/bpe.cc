#include "weft/text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <nlohmann/json.hpp>
#include <queue>

#include "weft/base/error.h"
#include "weft/text/unicode.h"

namespace weft::tok {
namespace {

constexpr uint32_t kNoRank = UINT32_MAX;
constexpr int64_t kShortPiece = 24;  // below this many symbols scanning all ranks beats a heap

uint64_t pair_key(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

size_t slot_of(uint64_t key, size_t mask) {
  key *= 0x9E3779B97F4A7C15u;
  return static_cast<size_t>(key ^ (key >> 29)) & mask;
}

}  // namespace

Bpe Bpe::parse(const JsonNode& node) {
  // The first files of the format did not name the type.
  const std::string type = node.string_or("type", "BPE");
  if (type != "BPE") node.at("type").fail(fmt::format("model \"{}\" is not supported (supported: BPE)", type));
  if (const auto dropout = node.find("dropout")) {
    if (!dropout->raw().is_number() || dropout->raw().get<double>() != 0.0)
      dropout->fail("dropout is not supported; set it to null");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto affix = node.find(key);
    if (affix && !affix->string().empty()) affix->fail("a prefix or suffix of subwords is not supported");
  }
  Bpe bpe;
  bpe.fuse_unknown_ = node.boolean_or("fuse_unk", false);
  bpe.byte_fallback_ = node.boolean_or("byte_fallback", false);
  bpe.ignore_merges_ = node.boolean_or("ignore_merges", false);
  bpe.parse_vocab(node.at("vocab"));
  bpe.parse_merges(node.at("merges"));
  if (const auto unknown = node.find("unk_token")) {
    bpe.unknown_ = unknown->string();
    bpe.has_unknown_ = true;
    bpe.unknown_id_ = bpe.token_id(bpe.unknown_);
  }
  return bpe;
}

void Bpe::parse_vocab(const JsonNode& node) {
  if (!node.raw().is_object()) node.fail(fmt::format("expected an object, found {}", node.raw().type_name()));
  ids_.reserve(node.raw().size());
  texts_.reserve(node.raw().size());
  for (const auto& [token, value] : node.raw().items()) {
    const bool integer = value.is_number_integer();
    const int64_t id = value.is_number_unsigned() ? static_cast<int64_t>(std::min<uint64_t>(value.get<uint64_t>(), INT64_MAX))
                       : integer                  ? value.get<int64_t>()
                                                  : -1;
    if (!integer || id < 0 || id > kMaxTokenId) {
      node.fail(fmt::format("token \"{}\" has the id {}; ids are integers of 0..{}", token, value.dump(), kMaxTokenId));
    }
    const auto [other, fresh] = texts_.emplace(static_cast<int32_t>(id), token);
    if (!fresh) node.fail(fmt::format("tokens \"{}\" and \"{}\" share the id {}", other->second, token, id));
    ids_.emplace(token, static_cast<int32_t>(id));
  }
  low_ids_.fill(-1);
  for (char32_t c = 0; c < low_ids_.size(); ++c) {
    std::string character;
    append_utf8(c, character);
    low_ids_[c] = token_id(character).value_or(-1);
  }
  byte_ids_.fill(-1);
  for (size_t b = 0; b < byte_ids_.size(); ++b) byte_ids_[b] = token_id(fmt::format("<0x{:02X}>", b)).value_or(-1);
}

void Bpe::parse_merges(const JsonNode& node) {
  const int64_t count = node.size();
  merges_.assign(std::bit_ceil(static_cast<size_t>(count) * 2 + 2), Merge{});
  for (int64_t rank = 0; rank < count; ++rank) {
    const nlohmann::json& value = node.raw()[static_cast<size_t>(rank)];
    std::string_view left;
    std::string_view right;
    if (value.is_string()) {
      const std::string_view text = value.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
        node.item(rank).fail(fmt::format("\"{}\" is not two tokens with one space between", text));
      }
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
      left = value[0].get_ref<const std::string&>();
      right = value[1].get_ref<const std::string&>();
    } else {
      node.item(rank).fail("expected two strings, or a string of two tokens with one space between");
    }
    const std::string merged = fmt::format("{}{}", left, right);
    std::array<int32_t, 3> ids{};
    const std::array<std::string_view, 3> parts{left, right, merged};
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto id = token_id(parts[i]);
      if (!id) node.item(rank).fail(fmt::format("\"{}\" is not in the vocabulary", parts[i]));
      ids[i] = *id;
    }
    add_merge(ids[0], ids[1], static_cast<uint32_t>(rank), ids[2]);
  }
}

void Bpe::add_merge(int32_t left, int32_t right, uint32_t rank, int32_t id) {
  const size_t mask = merges_.size() - 1;
  const uint64_t key = pair_key(left, right);
  size_t slot = slot_of(key, mask);
  while (merges_[slot].id >= 0 && merges_[slot].pair != key) slot = (slot + 1) & mask;
  merges_[slot] = {key, rank, id};
}

const Bpe::Merge* Bpe::find_merge(int32_t left, int32_t right) const {
  const size_t mask = merges_.size() - 1;
  const uint64_t key = pair_key(left, right);
  for (size_t slot = slot_of(key, mask); merges_[slot].id >= 0; slot = (slot + 1) & mask) {
    if (merges_[slot].pair == key) return &merges_[slot];
  }
  return nullptr;
}

std::optional<int32_t> Bpe::token_id(std::string_view token) const {
  const auto it = ids_.find(token);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

bool Bpe::add_bytes(std::string_view character, std::vector<int32_t>& ids) const {
  const auto id_of = [&](char c) { return byte_ids_[static_cast<uint8_t>(c)]; };
  if (!std::all_of(character.begin(), character.end(), [&](char c) { return id_of(c) >= 0; })) return false;
  for (const char c : character) ids.push_back(id_of(c));
  return true;
}

int32_t Bpe::unknown_id(std::string_view character) const {
  if (!unknown_id_) {
    throw ValueError(
        fmt::format("\"{}\" is not in the vocabulary, and neither is the tokenizer's unk_token \"{}\"", character, unknown_));
  }
  return *unknown_id_;
}

void Bpe::first_symbols(std::string_view piece, std::vector<int32_t>& ids) const {
  bool after_unknown = false;
  for (size_t pos = 0; pos < piece.size();) {
    const Utf8Step step = utf8_step(piece, static_cast<int64_t>(pos));
    const std::string_view character = piece.substr(pos, static_cast<size_t>(step.size));
    pos += character.size();
    const int32_t id = step.value < low_ids_.size() ? low_ids_[step.value] : token_id(character).value_or(-1);
    if (id >= 0) {
      ids.push_back(id);
      after_unknown = false;
    } else if (byte_fallback_ && add_bytes(character, ids)) {
      after_unknown = false;
    } else if (has_unknown_) {
      if (!after_unknown || !fuse_unknown_) ids.push_back(unknown_id(character));
      after_unknown = true;
    }
  }
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& out) const {
  if (piece.empty()) return;
  if (piece.size() > static_cast<size_t>(INT32_MAX))
    throw ValueError(fmt::format("a piece of {} bytes, more than {}", piece.size(), INT32_MAX));
  if (ignore_merges_) {
    if (const auto id = token_id(piece)) {
      out.push_back(*id);
      return;
    }
  }
  std::vector<int32_t> ids;
  ids.reserve(piece.size());
  first_symbols(piece, ids);
  const int64_t count = static_cast<int64_t>(ids.size()) <= kShortPiece ? merge_short(ids) : merge_long(ids);
  out.insert(out.end(), ids.begin(), ids.begin() + count);
}

int64_t Bpe::merge_short(std::vector<int32_t>& ids) const {
  auto count = static_cast<int64_t>(ids.size());
  std::array<const Merge*, kShortPiece> merges{};  // merges[i]: of symbols i and i + 1
  const auto look_up = [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    merges[at] = i + 1 < count ? find_merge(ids[at], ids[at + 1]) : nullptr;
  };
  for (int64_t i = 0; i < count; ++i) look_up(i);
  while (true) {
    int64_t best = -1;
    uint32_t best_rank = kNoRank;
    for (int64_t i = 0; i + 1 < count; ++i) {
      const Merge* merge = merges[static_cast<size_t>(i)];
      if (merge != nullptr && merge->rank < best_rank) {
        best_rank = merge->rank;
        best = i;
      }
    }
    if (best < 0) return count;
    ids[static_cast<size_t>(best)] = merges[static_cast<size_t>(best)]->id;
    std::copy(ids.begin() + best + 2, ids.begin() + count, ids.begin() + best + 1);
    std::copy(merges.begin() + best + 2, merges.begin() + count, merges.begin() + best + 1);
    --count;
    look_up(best);
    if (best > 0) look_up(best - 1);
  }
}

int64_t Bpe::merge_long(std::vector<int32_t>& ids) const {
  // A linked list over the symbols and a heap of (rank, position). A heap entry is stale when the rank at its position
  // has changed since; ranks are unique to pairs.
  struct Symbol {
    int32_t id;
    uint32_t rank;  // of the merge with the next symbol
    int32_t merged;
    int32_t previous;
    int32_t next;
  };
  const auto count = static_cast<int32_t>(ids.size());
  std::vector<Symbol> symbols(ids.size());
  std::vector<uint64_t> entries;
  const auto at = [&](int32_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
  const auto rank_at = [&](int32_t i) {
    Symbol& symbol = at(i);
    const Merge* merge = symbol.next < count ? find_merge(symbol.id, at(symbol.next).id) : nullptr;
    symbol.rank = merge != nullptr ? merge->rank : kNoRank;
    symbol.merged = merge != nullptr ? merge->id : -1;
    return merge != nullptr;
  };
  const auto entry_of = [&](int32_t i) { return (static_cast<uint64_t>(at(i).rank) << 32) | static_cast<uint32_t>(i); };
  for (int32_t i = 0; i < count; ++i) at(i) = {ids[static_cast<size_t>(i)], kNoRank, -1, i - 1, i + 1};
  for (int32_t i = 0; i < count; ++i) {
    if (rank_at(i)) entries.push_back(entry_of(i));
  }
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> heap(std::greater<>{}, std::move(entries));
  while (!heap.empty()) {
    const uint64_t entry = heap.top();
    heap.pop();
    const auto i = static_cast<int32_t>(entry & 0xFFFFFFFFu);
    Symbol& symbol = at(i);
    if (symbol.rank != static_cast<uint32_t>(entry >> 32)) continue;
    Symbol& gone = at(symbol.next);
    symbol.id = symbol.merged;
    symbol.next = gone.next;
    gone.rank = kNoRank;
    if (symbol.next < count) at(symbol.next).previous = i;
    if (rank_at(i)) heap.push(entry_of(i));
    if (symbol.previous >= 0 && rank_at(symbol.previous)) heap.push(entry_of(symbol.previous));
  }
  int64_t kept = 0;
  for (int32_t i = 0; i < count; i = at(i).next) ids[static_cast<size_t>(kept++)] = at(i).id;
  return kept;
}

}  // namespace weft::tok
