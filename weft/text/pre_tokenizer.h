#pragma once
// The "pre_tokenizer" of a tokenizer.json: Sequence, Split, ByteLevel, Digits, Metaspace. Cuts normalised text into the
// pieces that the model encodes one by one. Immutable, safe to use from many threads. Errors: FileError for what the file
// says, ValueError when a regular expression backtracks beyond bounds.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/text/json_node.h"
#include "weft/text/normalizer.h"
#include "weft/text/regex.h"

namespace weft::tok {

struct Piece {
  std::string_view text;
  bool at_start;  // at offset 0 of the whole text
};

class PreTokenizer {
 public:
  PreTokenizer() = default;  // one piece
  static PreTokenizer parse(const JsonNode& node);

  // The pieces point into `text` or into strings that this adds to `arena`; both must outlive them.
  std::vector<Piece> split(std::string_view text, bool at_start, std::deque<std::string>& arena) const;

 private:
  enum class Behavior : uint8_t { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Scheme : uint8_t { kAlways, kFirst, kNever };
  enum class Kind : uint8_t { kSplit, kByteLevel, kDigits, kMetaspace };
  struct Step {
    Kind kind = Kind::kSplit;
    Pattern pattern;                          // Split
    Behavior behavior = Behavior::kIsolated;  // Split
    bool invert = false;                      // Split
    bool individual_digits = false;           // Digits
    bool add_prefix_space = false;            // ByteLevel
    std::optional<Regex> regex;               // ByteLevel
    std::string replacement;                  // Metaspace
    Scheme scheme = Scheme::kAlways;          // Metaspace
    bool split = true;                        // Metaspace
  };

  void add(const JsonNode& node, int depth);
  static Step parse_split(const JsonNode& node);
  static Step parse_metaspace(const JsonNode& node);
  static void cut(const Piece& piece, const std::vector<Span>& matches, Behavior behavior, bool invert, std::vector<Piece>& out);
  static void run(const Step& step, const std::vector<Piece>& in, std::deque<std::string>& arena, std::vector<Piece>& out);
  static void run_byte_level(const Step& step, const std::vector<Piece>& in, std::deque<std::string>& arena,
                             std::vector<Piece>& out);
  static void run_metaspace(const Step& step, const std::vector<Piece>& in, std::deque<std::string>& arena,
                            std::vector<Piece>& out);

  std::vector<Step> steps_;
};

}  // namespace weft::tok
