#pragma once
// Byte-pair encoding: the "model" of a tokenizer.json. Immutable after parse, safe to use from many threads. Deterministic.
// Errors: FileError for what the file says; ValueError when a text needs the unknown token and the file's is no token.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "weft/text/json_node.h"

namespace weft::tok {

inline constexpr int64_t kMaxTokenId = (int64_t{1} << 24) - 1;

class Bpe {
 public:
  static Bpe parse(const JsonNode& node);

  // Appends the ids of one piece (valid UTF-8). The lowest rank merges first, the leftmost on a tie. Time n log n.
  void encode(std::string_view piece, std::vector<int32_t>& out) const;

  std::optional<int32_t> token_id(std::string_view token) const;
  const std::unordered_map<int32_t, std::string>& tokens() const { return texts_; }
  int64_t entry_count() const { return static_cast<int64_t>(texts_.size()); }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  struct Merge {
    uint64_t pair = 0;
    uint32_t rank = 0;
    int32_t id = -1;  // -1: an empty slot
  };

  void parse_vocab(const JsonNode& node);
  void parse_merges(const JsonNode& node);
  void add_merge(int32_t left, int32_t right, uint32_t rank, int32_t id);
  const Merge* find_merge(int32_t left, int32_t right) const;
  void first_symbols(std::string_view piece, std::vector<int32_t>& ids) const;
  bool add_bytes(std::string_view character, std::vector<int32_t>& ids) const;
  int32_t unknown_id(std::string_view character) const;
  int64_t merge_short(std::vector<int32_t>& ids) const;
  int64_t merge_long(std::vector<int32_t>& ids) const;

  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
  std::unordered_map<int32_t, std::string> texts_;
  std::array<int32_t, 512> low_ids_{};   // characters below U+0200, -1 when missing: most symbols of most texts
  std::array<int32_t, 256> byte_ids_{};  // <0x00>..<0xFF>, -1 when missing
  std::vector<Merge> merges_;            // open addressing, a power of two, at most half full
  std::string unknown_;
  std::optional<int32_t> unknown_id_;
  bool has_unknown_ = false;
  bool fuse_unknown_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
};

}  // namespace weft::tok
