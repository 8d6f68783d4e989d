#include "weft/text/jinja_lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "weft/text/jinja_error.h"
#include "weft/text/jinja_escape.h"
#include "weft/text/jinja_unicode.h"

namespace weft::jinja {

namespace {

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit_char(char c) { return c >= '0' && c <= '9'; }
bool is_name_char(char c) { return is_name_start(c) || is_digit_char(c); }

std::string normalize_newlines(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
      continue;
    }
    text += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

class Lexer {
 public:
  Lexer(std::string text, const std::string& name) : text_(std::move(text)), name_(name) {}

  std::vector<Lexeme> run() {
    while (pos_ < text_.size()) {
      size_t tag = find_tag(pos_);
      if (tag == text_.npos) {
        add_data(pos_, text_.size());
        pos_ = text_.size();
        break;
      }
      char kind = text_[tag + 1];
      char sign = tag + 2 < text_.size() ? text_[tag + 2] : '\0';
      if (sign != '-' && sign != '+') sign = '\0';
      add_data(pos_, strip_left(pos_, tag, sign, kind != '{'));
      pos_ = tag + 2 + (sign != '\0');
      if (kind == '#')
        comment(tag);
      else if (kind == '{')
        expression(tag, Token::kVariableBegin, Token::kVariableEnd);
      else if (std::optional<size_t> body = raw_begin())
        raw(tag, *body);
      else
        expression(tag, Token::kBlockBegin, Token::kBlockEnd);
      line_starting_ = pos_ > 0 && text_[pos_ - 1] == '\n';
    }
    add(Token::kEnd, text_.size(), "");
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(size_t at, std::string message) {
    Place p = place(at);
    throw TemplateError(name_, std::move(message), p.line, p.column);
  }

  // Places are asked in rising order, nearly always; going back starts over.
  Place place(size_t at) {
    if (at < placed_) placed_ = 0, place_ = Place{};
    for (; placed_ < at; ++placed_) {
      if (text_[placed_] == '\n')
        ++place_.line, place_.column = 1;
      else
        ++place_.column;
    }
    return place_;
  }

  void add(Token token, size_t at, std::string text) { out_.push_back({token, place(at), std::move(text)}); }

  void add_data(size_t from, size_t to) {
    if (to > from) add(Token::kData, from, text_.substr(from, to - from));
  }

  size_t find_tag(size_t from) const {
    for (size_t at = text_.find('{', from); at != text_.npos; at = text_.find('{', at + 1)) {
      if (at + 1 < text_.size() && (text_[at + 1] == '{' || text_[at + 1] == '%' || text_[at + 1] == '#')) return at;
    }
    return text_.npos;
  }

  // Where the text before a tag ends: `-` takes white space, a block or comment alone takes the blanks of its line.
  size_t strip_left(size_t from, size_t tag, char sign, bool is_block) const {
    std::string_view data(text_.data() + from, tag - from);
    if (sign == '-') return from + strip(data, Side::kRight).size();
    if (sign == '+' || !is_block) return tag;
    size_t newline = data.rfind('\n');
    size_t start = newline == data.npos ? 0 : newline + 1;
    if (start == 0 && !line_starting_) return tag;
    return strip(data.substr(start)).empty() ? from + start : tag;
  }

  void skip_space() {
    while (pos_ < text_.size()) {
      size_t next = pos_;
      if (!is_space(next_code(text_, next))) break;
      pos_ = next;
    }
  }

  // After the sign in front of an end was read: `-` eats white space behind it, a block or comment eats a newline.
  void after_end(char sign, bool is_block) {
    if (sign == '-')
      skip_space();
    else if (sign != '+' && is_block && pos_ < text_.size() && text_[pos_] == '\n')
      ++pos_;
  }

  void comment(size_t tag) {
    size_t end = text_.find("#}", pos_);
    if (end == text_.npos) fail(tag, "Missing end of comment tag");
    char sign = end > pos_ ? text_[end - 1] : '\0';
    pos_ = end + 2;
    after_end(sign, true);
  }

  // `raw -%}` behind a block begin: where its body starts.
  std::optional<size_t> raw_begin() {
    size_t before = pos_;
    skip_space();
    std::optional<size_t> body;
    if (text_.compare(pos_, 3, "raw") == 0) {
      pos_ += 3;
      skip_space();
      bool minus = text_.compare(pos_, 3, "-%}") == 0;
      if (minus || text_.compare(pos_, 2, "%}") == 0) {
        pos_ += minus ? 3 : 2;
        if (minus) skip_space();
        body = pos_;
      }
    }
    pos_ = before;
    return body;
  }

  void raw(size_t tag, size_t body) {
    line_starting_ = text_[body - 1] == '\n';
    for (size_t at = text_.find("{%", body); at != text_.npos; at = text_.find("{%", at + 1)) {
      pos_ = at + 2;
      char sign = pos_ < text_.size() && (text_[pos_] == '-' || text_[pos_] == '+') ? text_[pos_] : '\0';
      pos_ += sign != '\0';
      skip_space();
      if (text_.compare(pos_, 6, "endraw") != 0) continue;
      pos_ += 6;
      skip_space();
      char end_sign = pos_ < text_.size() && (text_[pos_] == '-' || text_[pos_] == '+') ? text_[pos_] : '\0';
      pos_ += end_sign != '\0';
      if (text_.compare(pos_, 2, "%}") != 0) continue;
      pos_ += 2;
      add_data(body, strip_left(body, at, sign, true));
      after_end(end_sign, true);
      return;
    }
    fail(tag, "Missing end of raw directive");
  }

  bool at_end(bool is_block) {
    const char* close = is_block ? "%}" : "}}";
    char sign = text_[pos_];
    bool signed_end = (sign == '-' || (sign == '+' && is_block)) && text_.compare(pos_ + 1, 2, close) == 0;
    if (!signed_end && text_.compare(pos_, 2, close) != 0) return false;
    add(is_block ? Token::kBlockEnd : Token::kVariableEnd, pos_, close);
    pos_ += signed_end ? 3 : 2;
    after_end(signed_end ? sign : '\0', is_block);
    return true;
  }

  void expression(size_t tag, Token begin, Token end) {
    bool is_block = end == Token::kBlockEnd;
    add(begin, tag, is_block ? "{%" : "{{");
    std::string open;
    while (true) {
      skip_space();
      if (pos_ >= text_.size())
        fail(tag, is_block ? "the tag that starts here has no '%}'" : "the tag that starts here has no '}}'");
      if (open.empty() && at_end(is_block)) return;
      char c = text_[pos_];
      if (is_name_start(c))
        name();
      else if (is_digit_char(c))
        number();
      else if (c == '\'' || c == '"')
        string(c);
      else
        op(open);
    }
  }

  void name() {
    size_t start = pos_;
    while (pos_ < text_.size() && is_name_char(text_[pos_])) ++pos_;
    add(Token::kName, start, text_.substr(start, pos_ - start));
  }

  // Digits that `accept` knows, single underscores between them.
  template <class Accept>
  std::string digits(Accept accept) {
    std::string out;
    while (pos_ < text_.size()) {
      if (accept(text_[pos_]))
        out += text_[pos_++];
      else if (!out.empty() && text_[pos_] == '_' && pos_ + 1 < text_.size() && accept(text_[pos_ + 1]))
        ++pos_;
      else
        break;
    }
    return out;
  }

  void number() {
    size_t start = pos_;
    char marker = pos_ + 1 < text_.size() ? static_cast<char>(text_[pos_ + 1] | 0x20) : '\0';
    if (text_[pos_] == '0' && (marker == 'x' || marker == 'o' || marker == 'b')) return radix(start, marker);
    std::string text = digits(is_digit_char);
    bool is_float = false;
    bool behind_dot = start > 0 && text_[start - 1] == '.';
    if (!behind_dot && pos_ + 1 < text_.size() && text_[pos_] == '.' && is_digit_char(text_[pos_ + 1])) {
      ++pos_;
      text += "." + digits(is_digit_char);
      is_float = true;
    }
    if (!behind_dot && pos_ < text_.size() && (text_[pos_] | 0x20) == 'e') {
      size_t at = pos_ + 1;
      std::string sign;
      if (at < text_.size() && (text_[at] == '+' || text_[at] == '-')) sign = text_[at++];
      if (at < text_.size() && is_digit_char(text_[at])) {
        pos_ = at;
        text += "e" + sign + digits(is_digit_char);
        is_float = true;
      }
    }
    if (!is_float && text.size() > 1 && text[0] == '0' && text.find_first_not_of('0') != text.npos) {
      fail(start, "an integer may not start with 0");
    }
    if (text.size() > 4300) fail(start, "a number has more than 4300 digits");
    if (pos_ < text_.size() && is_name_char(text_[pos_])) fail(pos_, "a name may not follow a number directly");
    add(is_float ? Token::kFloat : Token::kInteger, start, std::move(text));
  }

  void radix(size_t start, char marker) {
    unsigned base = marker == 'x' ? 16 : marker == 'o' ? 8 : 2;
    pos_ += 2;
    auto digit = [&](char c) -> unsigned {
      if (is_digit_char(c)) return static_cast<unsigned>(c - '0');
      char low = static_cast<char>(c | 0x20);
      return low >= 'a' && low <= 'f' ? static_cast<unsigned>(low - 'a' + 10) : 99;
    };
    if (pos_ < text_.size() && text_[pos_] == '_') ++pos_;
    std::string text = digits([&](char c) { return digit(c) < base; });
    if (text.empty() || (pos_ < text_.size() && is_name_char(text_[pos_]))) fail(start, "malformed integer");
    unsigned __int128 value = 0;
    for (char c : text) {
      value = value * base + digit(c);
      if (value > UINT64_MAX) fail(start, "an integer with a base prefix is limited to 64 bits");
    }
    add(Token::kInteger, start, fmt::format("{}", static_cast<uint64_t>(value)));
  }

  void string(char quote) {
    size_t start = pos_++;
    while (pos_ < text_.size() && text_[pos_] != quote) pos_ += text_[pos_] == '\\' ? 2 : 1;
    if (pos_ >= text_.size()) fail(start, fmt::format("the string that starts here has no closing {}", quote));
    std::string_view body = std::string_view(text_).substr(start + 1, pos_ - start - 1);
    ++pos_;
    std::string decoded, problem;
    if (!decode_escapes(body, decoded, problem)) fail(start, "in a string: " + problem);
    add(Token::kString, start, std::move(decoded));
  }

  void op(std::string& open) {
    static constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    static constexpr std::string_view kOne = "+-/*%~[](){}><=.:|,;";
    std::string_view rest = std::string_view(text_).substr(pos_);
    size_t size = std::any_of(std::begin(kTwo), std::end(kTwo), [&](auto two) { return rest.substr(0, 2) == two; }) ? 2 : 1;
    char c = rest[0];
    if (size == 1 && kOne.find(c) == kOne.npos) {
      size_t next = pos_;
      next_code(text_, next);
      fail(pos_, fmt::format("unexpected character {}", quote_text(rest.substr(0, next - pos_))));
    }
    if (c == '(')
      open += ')';
    else if (c == '[')
      open += ']';
    else if (c == '{')
      open += '}';
    else if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) fail(pos_, fmt::format("unexpected '{}'", c));
      if (open.back() != c) fail(pos_, fmt::format("unexpected '{}', expected '{}'", c, open.back()));
      open.pop_back();
    }
    add(Token::kOperator, pos_, std::string(rest.substr(0, size)));
    pos_ += size;
  }

  std::string text_;
  const std::string& name_;
  size_t pos_ = 0;
  size_t placed_ = 0;
  Place place_;
  bool line_starting_ = true;
  std::vector<Lexeme> out_;
};

}  // namespace

std::vector<Lexeme> tokenize(std::string_view source, const std::string& name) {
  if (!valid_utf8(source)) throw TemplateError(name, "the template is not valid UTF-8", 1, 1);
  return Lexer(normalize_newlines(source), name).run();
}

}  // namespace weft::jinja
