#pragma once
// Text to token ids and back, as Hugging Face's tokenizers does it from a tokenizer.json with a BPE model.
//
// Ids are int32, of 0..vocab_size()-1; there may be holes. A Tokenizer is immutable, cheap to copy (copies share it) and may
// be used from many threads at once. Everything is deterministic. Truncation and padding that a file asks for are ignored:
// nothing is cut silently. Encoding takes n log n time in the text.
//
// Errors: FileError for a file that is missing, malformed or asks for what is not supported, with the path inside the JSON;
// ValueError for a text that is not UTF-8 (with the byte offset) or larger than 1 GiB.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

class Tokenizer {
 public:
  // Reads dir/tokenizer.json, and when they are there tokenizer_config.json, special_tokens_map.json and chat templates.
  static Tokenizer load(const std::string& dir);
  // The text of a tokenizer.json alone; `path_for_errors` names it in messages.
  static Tokenizer from_json(std::string_view json, const std::string& path_for_errors);

  // `add_special_tokens` adds what the post-processor adds (BOS, EOS), also when the text already starts with it. Special
  // tokens written in the text are always found.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const;
  // Ids that are no tokens vanish. Bytes that make no character become U+FFFD.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  std::optional<int32_t> token_id(std::string_view token) const;  // by its spelling in the file ("Ġthe", "<|im_end|>")
  std::string token_text(int32_t id) const;                       // that spelling; ValueError for an id that is no token
  int64_t vocab_size() const;                                     // largest id + 1
  bool is_special(int32_t id) const;                              // left out by skip_special_tokens

  // Named special tokens of the config; unset when the config does not name one, or (pad only) names one that is no token.
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;
  const std::map<std::string, std::string>& special_tokens() const;  // "bos_token" -> "<s>", for chat templates
  const std::map<std::string, std::string>& chat_templates() const;  // by name; the usual one is "default"

 private:
  friend class StreamDecoder;
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  static std::shared_ptr<Impl> parse(std::string_view json, const std::string& path);

  std::shared_ptr<const Impl> impl_;
};

// Decodes ids as they come. All texts given out, joined, are Tokenizer::decode of all ids; what is given out is final, ends
// at a character, and is held back only while later ids can still change it. Linear time overall. Copyable; shares the
// tokenizer, so that it may outlive the caller's. Not for use from two threads at once.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens);
  StreamDecoder(const StreamDecoder& other);
  StreamDecoder& operator=(const StreamDecoder& other);
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;
  ~StreamDecoder();

  std::string push(int32_t id);
  // The rest, unfinished characters as U+FFFD. The next push starts a new text.
  std::string flush();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weft
