#pragma once
// The "decoder" of a tokenizer.json: Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace; without one, tokens
// are joined with a space. It works as a chain of stages fed token by token, so that a whole decoding and a streamed one are
// the same code. Errors: FileError for what the file says, ValueError when a regular expression backtracks beyond bounds.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weft/text/json_node.h"
#include "weft/text/normalizer.h"

namespace weft::tok {

// Immutable, safe to use from many threads.
class Decoder {
 public:
  Decoder();  // joins with spaces
  static Decoder parse(const JsonNode& node);

 private:
  friend class DecoderRun;
  enum class Kind : uint8_t { kJoin, kByteLevel, kReplace, kByteFallback, kFuse, kStrip, kMetaspace };
  struct Stage {
    Kind kind = Kind::kJoin;
    Pattern pattern;          // Replace
    std::string content;      // Replace: the new text; Strip, Metaspace: the character
    int64_t start = 0;        // Strip
    int64_t stop = 0;         // Strip
    bool drop_first = false;  // Metaspace: the first token loses the character
    bool fused = false;       // an earlier stage made one token of all: chunks of it come in
    bool whole = false;       // fused, and cannot work on chunks: waits for the end
  };
  void add(const JsonNode& node, int depth, Growth& growth);

  std::vector<Stage> stages_;
};

// One decoding under way. Copyable. The decoder must outlive it. Text given out is final; time is linear in the tokens.
class DecoderRun {
 public:
  explicit DecoderRun(const Decoder& decoder) : decoder_(&decoder), states_(decoder.stages_.size()) {}

  void push(std::string_view token, std::string& out) { feed(0, token, out); }
  // Gives out what was held back. The run starts anew afterwards.
  void finish(std::string& out);

 private:
  struct State {
    std::string held;   // bytes of an unfinished character, of a run of byte tokens, or of what Strip may take
    int64_t count = 0;  // tokens seen; for Strip on fused text: characters taken at the start, or `start` once past it
  };
  void feed(size_t stage, std::string_view token, std::string& out);
  void end_byte_run(size_t stage, std::string& out);
  void strip_chunk(size_t stage, std::string_view chunk, std::string& out);
  std::string transform(const Decoder::Stage& stage, std::string_view token, bool first) const;

  const Decoder* decoder_;
  std::vector<State> states_;
};

}  // namespace weft::tok
