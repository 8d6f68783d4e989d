#pragma once
// The "added_tokens" of a tokenizer.json: tokens that are found in the text before the model sees it, in two passes (raw
// text, then normalised text). Immutable after parse, safe to use from many threads. Errors: FileError.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/text/bpe.h"
#include "weft/text/json_node.h"
#include "weft/text/normalizer.h"

namespace weft::tok {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  std::string searched;  // content, normalised when `normalized`
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;

  bool operator==(const AddedToken&) const = default;
};

// A part of a text: text between tokens (id -1), or a token with the text it took.
struct Segment {
  int32_t id;
  std::string_view text;
};

class AddedTokens {
 public:
  // Ids: a token of the model keeps its id; others get the next free id, in file order, whatever the file says.
  static AddedTokens parse(const JsonNode& list, const Bpe& model, const Normalizer& normalizer);

  // Cuts `text` at the tokens of one pass. Leftmost, then longest; the work is bounded by text size times token size.
  std::vector<Segment> split(std::string_view text, bool normalized_pass) const;
  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  // A byte trie over the contents of one pass.
  struct Trie {
    struct Node {
      int64_t token = -1;
      std::vector<std::pair<uint8_t, int32_t>> children;
    };
    std::vector<Node> nodes{Node{}};
    std::array<int32_t, 256> roots{};  // child of the root, 0 when there is none

    void add(std::string_view content, int64_t token);
    // Longest token at the beginning of `text`, or -1.
    int64_t longest(std::string_view text) const;
  };

  std::vector<AddedToken> tokens_;
  std::array<Trie, 2> tries_;
};

}  // namespace weft::tok
