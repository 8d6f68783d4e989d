#include "weft/text/tokenizer.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "weft/base/error.h"
#include "weft/text/added_tokens.h"
#include "weft/text/bpe.h"
#include "weft/text/decoder.h"
#include "weft/text/json_node.h"
#include "weft/text/normalizer.h"
#include "weft/text/post_processor.h"
#include "weft/text/pre_tokenizer.h"
#include "weft/text/tokenizer_config.h"
#include "weft/text/unicode.h"

namespace weft {
namespace {

constexpr size_t kMaxText = size_t{1} << 30;
constexpr int64_t kMaxFile = int64_t{1} << 29;

}  // namespace

struct Tokenizer::Impl {
  tok::Normalizer normalizer;
  tok::PreTokenizer pre_tokenizer;
  tok::Bpe model;
  tok::AddedTokens added;
  tok::SpecialFrame frame;
  tok::Decoder decoder;
  std::unordered_map<int32_t, size_t> added_by_id;
  std::unordered_map<std::string, int32_t> added_by_content;
  int64_t vocab_size = 0;
  tok::TokenizerConfig config;
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
  std::optional<int32_t> pad;

  const tok::AddedToken* added_token(int32_t id) const {
    const auto it = added_by_id.find(id);
    return it != added_by_id.end() ? &added.tokens()[it->second] : nullptr;
  }

  // The text that the decoder sees; null for an id that is no token.
  const std::string* decoder_text(int32_t id, bool skip_special) const {
    if (const tok::AddedToken* token = added_token(id)) return skip_special && token->special ? nullptr : &token->searched;
    const auto it = model.tokens().find(id);
    return it != model.tokens().end() ? &it->second : nullptr;
  }

  std::optional<int32_t> token_id(std::string_view token) const {
    const auto it = added_by_content.find(std::string(token));
    return it != added_by_content.end() ? it->second : model.token_id(token);
  }

  void index_tokens() {
    for (size_t i = 0; i < added.tokens().size(); ++i) {
      const tok::AddedToken& token = added.tokens()[i];
      added_by_id.emplace(token.id, i);
      added_by_content.emplace(token.content, token.id);
      vocab_size = std::max<int64_t>(vocab_size, int64_t{token.id} + 1);
    }
    for (const auto& [id, text] : model.tokens()) vocab_size = std::max<int64_t>(vocab_size, int64_t{id} + 1);
  }

  void encode_text(std::string_view text, bool at_start, std::vector<int32_t>& out) const {
    std::string normalized;
    if (!normalizer.is_identity()) {
      normalized = normalizer.apply(text);
      text = normalized;
    }
    for (const tok::Segment& segment : added.split(text, true)) {
      if (segment.id >= 0) {
        out.push_back(segment.id);
        continue;
      }
      std::deque<std::string> arena;
      const bool first = at_start && segment.text.data() == text.data();
      for (const tok::Piece& piece : pre_tokenizer.split(segment.text, first, arena)) model.encode(piece.text, out);
    }
  }
};

std::shared_ptr<Tokenizer::Impl> Tokenizer::parse(std::string_view json, const std::string& path) {
  const nlohmann::json document = tok::parse_json(json, path);
  const tok::JsonNode root(document, path);
  auto impl = std::make_shared<Impl>();
  if (const auto node = root.find("normalizer")) impl->normalizer = tok::Normalizer::parse(*node);
  if (const auto node = root.find("pre_tokenizer")) impl->pre_tokenizer = tok::PreTokenizer::parse(*node);
  impl->model = tok::Bpe::parse(root.at("model"));
  if (const auto node = root.find("added_tokens")) impl->added = tok::AddedTokens::parse(*node, impl->model, impl->normalizer);
  if (const auto node = root.find("decoder")) impl->decoder = tok::Decoder::parse(*node);
  impl->index_tokens();
  if (const auto node = root.find("post_processor")) {
    impl->frame = tok::parse_post_processor(*node);
    for (const auto* side : {&impl->frame.before, &impl->frame.after}) {
      for (const int32_t id : *side) {
        if (impl->decoder_text(id, false) == nullptr) node->fail(fmt::format("it adds the id {}, which is no token", id));
      }
    }
  }
  return impl;
}

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& path_for_errors) {
  return Tokenizer(parse(json, path_for_errors));
}

Tokenizer Tokenizer::load(const std::string& dir) {
  const std::string path = (std::filesystem::path(dir) / "tokenizer.json").string();
  std::shared_ptr<Impl> impl = parse(tok::read_text_file(path, kMaxFile), path);
  impl->config = tok::load_tokenizer_config(dir);
  const auto named = [&](const char* name, bool required) -> std::optional<int32_t> {
    const auto it = impl->config.special_tokens.find(name);
    if (it == impl->config.special_tokens.end()) return std::nullopt;
    const auto id = impl->token_id(it->second);
    if (!id && required) {
      throw FileError(dir, name,
                      fmt::format("the config names \"{}\", which tokenizer.json does not have as a token", it->second));
    }
    return id;
  };
  impl->bos = named("bos_token", true);
  impl->eos = named("eos_token", true);
  // Many fine-tuned checkpoints name a padding token that was never added; nothing here pads with it.
  impl->pad = named("pad_token", false);
  return Tokenizer(std::move(impl));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  if (text.size() > kMaxText)
    throw ValueError(fmt::format("a text of {} bytes; at most {} can be encoded at once", text.size(), kMaxText));
  if (const auto offset = tok::find_invalid_utf8(text)) {
    throw ValueError(fmt::format("the text is not UTF-8: byte {} is 0x{:02X}", *offset,
                                 static_cast<uint8_t>(text[static_cast<size_t>(*offset)])));
  }
  std::vector<int32_t> out;
  out.reserve(text.size() / 3 + 4);
  if (add_special_tokens) out = impl_->frame.before;
  for (const tok::Segment& segment : impl_->added.split(text, false)) {
    if (segment.id >= 0) {
      out.push_back(segment.id);
    } else {
      impl_->encode_text(segment.text, segment.text.data() == text.data(), out);
    }
  }
  if (add_special_tokens) out.insert(out.end(), impl_->frame.after.begin(), impl_->frame.after.end());
  return out;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  tok::DecoderRun run(impl_->decoder);
  std::string out;
  for (const int32_t id : ids) {
    if (const std::string* text = impl_->decoder_text(id, skip_special_tokens)) run.push(*text, out);
  }
  run.finish(out);
  return out;
}

std::optional<int32_t> Tokenizer::token_id(std::string_view token) const { return impl_->token_id(token); }

std::string Tokenizer::token_text(int32_t id) const {
  if (const tok::AddedToken* token = impl_->added_token(id)) return token->content;
  const std::string* text = impl_->decoder_text(id, false);
  if (text == nullptr) throw ValueError(fmt::format("id {} is no token (ids are below {}, with holes)", id, impl_->vocab_size));
  return *text;
}

int64_t Tokenizer::vocab_size() const { return impl_->vocab_size; }

bool Tokenizer::is_special(int32_t id) const {
  const tok::AddedToken* token = impl_->added_token(id);
  return token != nullptr && token->special;
}

std::optional<int32_t> Tokenizer::bos_id() const { return impl_->bos; }
std::optional<int32_t> Tokenizer::eos_id() const { return impl_->eos; }
std::optional<int32_t> Tokenizer::pad_id() const { return impl_->pad; }
const std::map<std::string, std::string>& Tokenizer::special_tokens() const { return impl_->config.special_tokens; }
const std::map<std::string, std::string>& Tokenizer::chat_templates() const { return impl_->config.chat_templates; }

struct StreamDecoder::State {
  std::shared_ptr<const Tokenizer::Impl> tokenizer;
  bool skip_special;
  tok::DecoderRun run;
};

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
    : state_(std::make_unique<State>(State{tokenizer.impl_, skip_special_tokens, tok::DecoderRun(tokenizer.impl_->decoder)})) {}
StreamDecoder::StreamDecoder(const StreamDecoder& other) : state_(std::make_unique<State>(*other.state_)) {}
StreamDecoder& StreamDecoder::operator=(const StreamDecoder& other) {
  if (this != &other) state_ = std::make_unique<State>(*other.state_);
  return *this;
}
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;
StreamDecoder::~StreamDecoder() = default;

std::string StreamDecoder::push(int32_t id) {
  std::string out;
  if (const std::string* text = state_->tokenizer->decoder_text(id, state_->skip_special)) state_->run.push(*text, out);
  return out;
}

std::string StreamDecoder::flush() {
  std::string out;
  state_->run.finish(out);
  return out;
}

}  // namespace weft
