#pragma once
// The expression half of the parser, used by jinja_parser.cc.

#include <string>
#include <string_view>
#include <vector>

#include "weft/text/jinja_ast.h"

namespace weft::jinja {

class ExpressionParser {
 public:
  ExpressionParser(std::vector<Lexeme> tokens, const std::string& name) : tokens_(std::move(tokens)), name_(name) {}

 protected:
  // Counts open recursions, so that hostile nesting is an error and not a full stack.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser);
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

  [[noreturn]] void fail(Place at, std::string message) const;
  const Lexeme& current() const { return tokens_[at_]; }
  const Lexeme& ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  const Lexeme& advance() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  const Lexeme& expect(Token token, std::string_view what);
  bool is_operator(std::string_view text) const { return current().token == Token::kOperator && current().text == text; }
  bool is_name(std::string_view text) const { return current().token == Token::kName && current().text == text; }
  bool skip_operator(std::string_view text) { return is_operator(text) && (advance(), true); }
  bool skip_name(std::string_view text) { return is_name(text) && (advance(), true); }
  void expect_operator(std::string_view text);
  void expect_name(std::string_view text);

  NodePtr make(Op op, Place at) const;
  void deepen(Node& node, int32_t below) const;
  void add_kid(Node& node, NodePtr kid) const;
  void add_body(Node& node, Body body) const;
  void check_assignable(const std::string& name, Place at) const;

  NodePtr expression(bool with_condition = true);
  // Comma-separated expressions are a tuple.
  NodePtr tuple_or_expression(bool with_condition);
  // What may stand left of `=` or of `in`: names, tuples of them, with `fields` also name.field.
  NodePtr target(bool fields);
  // The filters behind `input`; `inline_first`: the first one without `|`.
  NodePtr filters(NodePtr input, bool inline_first = false);

  std::vector<MacroParts*> macros_;  // that are open

 private:
  std::string describe(const Lexeme& token) const;
  NodePtr binary(Op op, Place at, NodePtr left, NodePtr right) const;
  NodePtr disjunction();
  NodePtr conjunction();
  NodePtr negation();
  NodePtr comparison();
  NodePtr sum();
  NodePtr concatenation();
  NodePtr product();
  NodePtr power();
  NodePtr unary(bool with_filters = true);
  NodePtr primary();
  NodePtr parenthesised();
  NodePtr list();
  NodePtr dict();
  NodePtr postfix(NodePtr node);
  NodePtr subscript();
  NodePtr filters_and_tests(NodePtr node);
  NodePtr filter(NodePtr input);
  NodePtr test(NodePtr input);
  NodePtr call(NodePtr callee);
  void arguments(Node& node);
  bool tuple_ends() const;

  std::vector<Lexeme> tokens_;
  const std::string& name_;
  size_t at_ = 0;
  int32_t nesting_ = 0;
};

}  // namespace weft::jinja
